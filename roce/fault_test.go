package roce

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// mapFile returns a file that is mapped into memory, and a function that truncates it, after which
// accesses to the memory fault.
func mapFile(t *testing.T, size int) (mem []byte, truncate func()) {
	t.Helper()
	if raceEnabled {
		t.Skip("a fault leaves the accesses of its goroutine hidden from the race detector")
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := f.Truncate(int64(size)); err != nil {
		t.Fatal(err)
	}
	mem, err = unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	return mem, func() {
		if err := f.Truncate(0); err != nil {
			t.Fatal(err)
		}
	}
}

// If a mapped file that is registered is truncated, the device that accesses it stops with an
// error. The process and the other device continue.
func TestTruncatedFile(t *testing.T) {
	const size = 1 << 16
	for _, progress := range []Progress{Auto, Manual} {
		for name, post := range map[string]func(own *MR, remote RemoteBuffer) SendWR{
			"target of a WRITE": func(own *MR, r RemoteBuffer) SendWR {
				return SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{own.SGE(0, size)},
					RemoteAddr: r.Addr, RKey: r.RKey}
			},
			"source of a READ": func(own *MR, r RemoteBuffer) SendWR {
				return SendWR{Op: OpRead, Flags: Signaled, SGEs: []SGE{own.SGE(0, size)},
					RemoteAddr: r.Addr, RKey: r.RKey}
			},
			"target of an atomic": func(own *MR, r RemoteBuffer) SendWR {
				return SendWR{Op: OpFetchAdd, Flags: Signaled, SGEs: []SGE{own.SGE(0, 8)},
					RemoteAddr: r.Addr, RKey: r.RKey}
			},
		} {
			a, b := newRig(t, rigConfig{opts: []Option{WithProgress(progress)}})
			const all = LocalWrite | RemoteWrite | RemoteRead | RemoteAtomic
			mem, truncate := mapFile(t, size)
			mapped, errB := b.pd.RegisterMR(mem, all)
			own, errA := a.pd.AllocMR(size, all)
			if err := errors.Join(errA, errB); err != nil {
				t.Fatal(err)
			}
			truncate()
			if err := a.qp.PostSend(post(own, mapped.Remote())); err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(20 * time.Second); b.Err() == nil; {
				a.Progress()
				b.Progress()
				if time.Sleep(time.Millisecond); time.Now().After(end) {
					t.Fatalf("%v, %s: the device does not stop", progress, name)
				}
			}
			if err := b.Err(); !errors.Is(err, ErrMemoryFault) || errors.Is(err, ErrGone) {
				t.Errorf("%v, %s: Err() = %v, want ErrMemoryFault", progress, name, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			var wcs [1]WC
			if _, err := b.cq.Wait(ctx, wcs[:]); !errors.Is(err, ErrMemoryFault) {
				t.Errorf("%v, %s: Wait() = %v, want ErrMemoryFault", progress, name, err)
			}
			cancel()
			if err := a.Err(); err != nil {
				t.Errorf("%v, %s: the other device: Err() = %v", progress, name, err)
			}
			if err := errors.Join(mapped.Close(), b.Close(), a.Close()); err != nil {
				t.Errorf("%v, %s: %v", progress, name, err)
			}
		}
	}
}

// The same applies to the memory of local work requests.
func TestTruncatedSource(t *testing.T) {
	const size = 1 << 16
	for _, progress := range []Progress{Auto, Manual} {
		a, b := newRig(t, rigConfig{opts: []Option{WithProgress(progress)}})
		mem, truncate := mapFile(t, size)
		mapped, errA := a.pd.RegisterMR(mem, LocalWrite)
		target, errB := b.pd.AllocMR(size, LocalWrite|RemoteWrite)
		if err := errors.Join(errA, errB); err != nil {
			t.Fatal(err)
		}
		truncate()
		r := target.Remote()
		if err := a.qp.PostSend(SendWR{Op: OpWrite, Flags: Signaled,
			SGEs: []SGE{mapped.SGE(0, size)}, RemoteAddr: r.Addr, RKey: r.RKey}); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(20 * time.Second); a.Err() == nil; time.Sleep(time.Millisecond) {
			if a.Progress(); time.Now().After(end) {
				t.Fatalf("%v: the device does not stop", progress)
			}
		}
		if err := a.Err(); !errors.Is(err, ErrMemoryFault) || b.Err() != nil {
			t.Errorf("%v: Err() = %v and %v, want ErrMemoryFault and nil", progress, err, b.Err())
		}
		if err := errors.Join(mapped.Close(), a.Close(), b.Close()); err != nil {
			t.Errorf("%v: %v", progress, err)
		}
	}
}
