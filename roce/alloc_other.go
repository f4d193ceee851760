//go:build !linux

package roce

func probe(int) error { return nil }

func zeroed(n int) []byte { return make([]byte, n) }

func adviseHuge([]byte) {}

func adviseHugeAt(uintptr, uintptr) {}

func collapse(uintptr, uintptr) {}

func machineMemory() uint64 { return noLimit }
