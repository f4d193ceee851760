//go:build !linux

package roce

// assumedMemory is the memory in bytes that machines are assumed to have.
const assumedMemory = 16 << 30

func machineMemory() uint64 { return assumedMemory }

// probe does not ask the operating system.
func probe(int) error { return nil }

func zeroed(n int) []byte { return make([]byte, n) }

// There is no advice about huge pages.

func adviseHuge(addr, n uintptr) {}

func collapse(addr, n uintptr) {}
