//go:build amd64 || arm64

package clock

// counter reads the processor's counter.
func counter() uint64

// steady reports whether the counter runs at the same constant rate on all processors.
func steady() bool
