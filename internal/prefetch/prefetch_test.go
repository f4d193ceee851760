package prefetch

import (
	"testing"
	"unsafe"
)

// A prefetch never faults: not for nil, unmapped addresses or addresses after the end of an object.
func TestNoFaults(t *testing.T) {
	run(nil, 1)
	run(nil, 100)
	pair(nil, unsafe.Pointer(t))
	var x struct{ a [3]byte }
	Object(&x, 50)
	Bytes(nil, 8)
	Bytes(make([]byte, 1), 8)
	for shift := 12; shift < 64; shift++ {
		a := uintptr(1) << shift
		run(*(*unsafe.Pointer)(unsafe.Pointer(&a)), 2)
	}
}

func TestNoAllocation(t *testing.T) {
	b := make([]byte, 256)
	if n := testing.AllocsPerRun(100,
		func() {
			Bytes(b, 4)
			Object(&b[0], 2)
			Pair(&b[0], &b[100])
			Pair(&b[64],
				&b[9])
		}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func BenchmarkObject(b *testing.B) {
	var x [512]byte
	for b.Loop() {
		Object(&x, 5)
	}
}
