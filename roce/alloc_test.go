package roce

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// zeroed returns zeros also where the heap was used before, and leaves the memory to its owner.
func TestZeroed(t *testing.T) {
	const n = 8 << 20
	for range 4 {
		old := make([]byte, n)
		for i := range old {
			old[i] = 0xff
		}
		runtime.KeepAlive(old)
	}
	runtime.GC() // the next allocations reuse the memory
	var kept [][]byte
	for range 4 {
		b := zeroed(n)
		if len(b) != n {
			t.Fatalf("%d bytes, want %d", len(b), n)
		}
		for i, v := range b {
			if v != 0 {
				t.Fatalf("byte %d is %#x", i, v)
			}
		}
		for i := range b {
			b[i] = byte(len(kept) + 1)
		}
		kept = append(kept, b)
	}
	runtime.GC()
	for k, b := range kept {
		for i, v := range b {
			if v != byte(k+1) {
				t.Fatalf("byte %d of object %d is %#x after a garbage collection", i, k, v)
			}
		}
	}
	for _, small := range []int{1, 4096, untouchedFrom + 1} {
		if len(zeroed(small)) != small {
			t.Errorf("zeroed(%d) has another length", small)
		}
	}
}

// A large region costs page faults only where it is used.
func TestAllocMRLeavesMemoryUntouched(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector has memory of its own for each page")
	}
	const size = 64 << 20
	a, _ := newRig(t, rigConfig{})
	// The region begins where an object was, after which make would zero all of it.
	used := make([]byte, 16<<20)
	for i := range used {
		used[i] = 1
	}
	runtime.KeepAlive(used)
	used = nil
	runtime.GC()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, after unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &before); err != nil {
		t.Fatal(err)
	}
	m, err := a.pd.AllocMR(size, LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &after); err != nil {
		t.Fatal(err)
	}
	if n := after.Minflt - before.Minflt; n > size/4096/8 {
		t.Errorf("%d page faults for a region of %d pages", n, size/4096)
	}
	m.Bytes()[size-1] = 1
	if m.Bytes()[0] != 0 || m.Bytes()[size-1] != 1 {
		t.Error("the region does not keep what is written")
	}
}
