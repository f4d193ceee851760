//go:build amd64 || arm64

package clock

// counter reads the processor's counter.
func counter() uint64

// steady tells whether the counter runs at one speed on all processors of the machine, whatever they do.
func steady() bool
