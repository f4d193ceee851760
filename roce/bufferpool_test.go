package roce

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"
)

func TestBufferPool(t *testing.T) {
	a, _ := newRig(t, rigConfig{})
	p, err := a.pd.NewBufferPool(100, 3, LocalWrite)
	must(t, err)
	var all []Buffer
	seen := map[*byte]bool{}
	for range p.Cap() {
		b, ok := p.TryGet()
		if !ok || len(b.Bytes()) != 100 || cap(b.Bytes()) != 100 || seen[&b.Bytes()[0]] {
			t.Fatalf("TryGet() = %v, %v: not a new buffer of 100 bytes", b, ok)
		}
		seen[&b.Bytes()[0]] = true
		if s := b.SGE(10, 90); s.Length != 90 || s.LKey != p.MR().LKey() ||
			p.MR().Bytes()[s.Addr-p.MR().Addr()-10:][0] != b.Bytes()[0] {
			t.Errorf("SGE() = %+v", s)
		}
		if got, ok := p.Buffer(b.ID()); !ok || got != b {
			t.Errorf("Buffer(%d) = %v, %v, want %v", b.ID(), got, ok, b)
		}
		all = append(all, b)
	}
	if _, ok := p.TryGet(); ok || p.InUse() != 3 {
		t.Errorf("TryGet() = true with %d of 3 buffers in use", p.InUse())
	}
	if err := p.Close(); !errors.Is(err, ErrBuffersInUse) || !errors.Is(err, ErrInUse) {
		t.Errorf("Close() = %v, want ErrBuffersInUse", err)
	}
	for _, b := range all {
		b.Release()
	}
	if _, ok := p.Buffer(all[0].ID()); ok {
		t.Error("Buffer() finds a buffer that was released")
	}
	if _, ok := p.Buffer(1<<32 | 1<<31); ok {
		t.Error("Buffer() finds a buffer that does not exist")
	}
	must(t, p.Close())
	must(t, p.Close())
	if _, err := p.Get(context.Background()); !errors.Is(err, ErrClosed) {
		t.Errorf("Get() = %v after Close, want ErrClosed", err)
	}
	for _, n := range [][2]int{{0, 1}, {1, 0}, {1 << 62, 1 << 20}, {-1, 5}} {
		if _, err := a.pd.NewBufferPool(n[0], n[1], 0); !errors.Is(err, ErrInvalid) {
			t.Errorf("NewBufferPool(%d, %d) = %v, want ErrInvalid", n[0], n[1], err)
		}
	}
}

// panics reports whether f panics.
func panics(f func()) (yes bool) {
	defer func() { yes = recover() != nil }()
	f()
	return false
}

func TestBufferMisusePanics(t *testing.T) {
	a, _ := newRig(t, rigConfig{})
	p, err := a.pd.NewBufferPool(100, 1, LocalWrite)
	must(t, err)
	old, _ := p.TryGet()
	old.Release()
	if !panics(old.Release) {
		t.Error("a second Release does not panic")
	}
	b, _ := p.TryGet() // the same buffer
	if !panics(old.Release) {
		t.Error("Release of a buffer that has a new user does not panic")
	}
	if !panics(Buffer{}.Release) {
		t.Error("Release of a zero Buffer does not panic")
	}
	for _, s := range [][2]int{{-1, 5}, {0, 101}, {100, 1}, {5, -1}} {
		if !panics(func() { b.SGE(s[0], s[1]) }) {
			t.Errorf("SGE(%d, %d) of 100 bytes does not panic", s[0], s[1])
		}
	}
	b.Release()
}

// Get waits for a released buffer, and every waiting caller gets one in the end.
func TestBufferPoolGetWaits(t *testing.T) {
	bothModes(t, func(t *testing.T, m Progress) {
		a, _ := newRig(t, rigConfig{opts: []Option{WithProgress(m)}})
		p, err := a.pd.NewBufferPool(64, 2, LocalWrite)
		must(t, err)
		first, _ := p.TryGet()
		second, _ := p.TryGet()
		short, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		if _, err := p.Get(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Get() = %v, want DeadlineExceeded", err)
		}
		ctx := within(t)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 100 {
					b, err := p.Get(ctx)
					if err != nil {
						t.Errorf("Get() = %v", err)
						return
					}
					b.Release()
				}
			})
		}
		first.Release()
		second.Release()
		wg.Wait()
		if p.InUse() != 0 {
			t.Errorf("InUse() = %d, want 0", p.InUse())
		}
	})
}

func TestBufferPoolDoesNotAllocate(t *testing.T) {
	a, _ := newRig(t, rigConfig{})
	p, err := a.pd.NewBufferPool(64, 2, LocalWrite)
	must(t, err)
	ctx := context.Background()
	n := testing.AllocsPerRun(1000, func() {
		b, _ := p.Get(ctx)
		c, _ := p.TryGet()
		b.Release()
		c.Release()
	})
	if n != 0 {
		t.Errorf("%v allocations per run, want 0", n)
	}
}
