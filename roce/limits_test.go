package roce

import (
	"errors"
	"testing"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/loopback"
)

// limitedPort is a port whose node service limits its programs.
type limitedPort struct {
	driver.Port
	limits driver.Limits
}

func (p limitedPort) Limits() driver.Limits { return p.limits }
func (p limitedPort) Unwrap() driver.Port   { return p.Port }

// The lower one of each limit counts: that of the program or that of the service.
func TestLimitsOfPort(t *testing.T) {
	link := newLink(t, loopback.Config{})
	port := limitedPort{link.Port(0), driver.Limits{QPs: 2, MRs: 7, Memory: 1 << 30, Rate: 1e9}}
	d, err := New(port, WithProgress(Manual), WithExpert(Expert{MaxQP: 100, MaxMR: 90}),
		WithLimits(Limits{QPs: 9, Rate: 2e9}), WithLimits(Limits{MRs: 3, Memory: 1 << 20}))
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	if got, want := d.Limits(), (Limits{QPs: 2, MRs: 3, Memory: 1 << 20, Rate: 1e9}); got != want {
		t.Errorf("Limits() = %+v, want %+v", got, want)
	}
	e := newEnd(t, d, rigConfig{depth: 1, mem: 64})
	_, err = d.CreateQP(e.pd, QPConfig{SendCQ: e.cq})
	must(t, err)
	if _, err := d.CreateQP(e.pd, QPConfig{SendCQ: e.cq}); !errors.Is(err, ErrTooManyQPs) {
		t.Errorf("a third QP: %v, want ErrTooManyQPs", err)
	}
	for range 2 {
		_, err := e.pd.RegisterMR(make([]byte, 64), LocalWrite)
		must(t, err)
	}
	if _, err := e.pd.RegisterMR(make([]byte, 64), LocalWrite); !errors.Is(err, ErrTooMany) {
		t.Errorf("a fourth MR: %v, want ErrTooMany", err)
	}
}

// Registered memory counts for the limit of the memory, and no longer after Close.
func TestMemoryLimit(t *testing.T) {
	const limit, size = 8 << 20, 3 << 20
	link := newLink(t, loopback.Config{})
	d := newDevice(t, link, 0, WithProgress(Manual), WithLimits(Limits{Memory: limit}))
	pd, err := d.AllocPD()
	must(t, err)
	mem := make([]byte, size)
	for range 5 {
		a, err := pd.RegisterMR(mem, LocalWrite)
		must(t, err)
		b, err := pd.AllocMR(size, LocalWrite)
		must(t, err)
		if _, err := pd.RegisterMR(mem, LocalWrite); !errors.Is(err, ErrNoMemory) {
			t.Fatalf("9 MiB: %v, want ErrNoMemory", err)
		}
		if _, err := pd.RegisterMR(mem[:64], RemoteWrite); !errors.Is(err, ErrMemoryAccess) {
			t.Fatalf("RegisterMR() without LocalWrite: %v, want ErrMemoryAccess", err)
		}
		must(t, a.Close())
		must(t, b.Close())
	}
	// The cleanup of a region changes both numbers, one after the other.
	eventually(t, "no memory in use without a region", func() bool {
		return d.mem.used.Load() == d.mem.garbage.Load()
	})
}

// Memory of closed regions that is not freed yet does not keep a program from registering memory.
func TestMemoryLimitAfterClose(t *testing.T) {
	const limit, size = 8 << 20, 5 << 20
	link := newLink(t, loopback.Config{})
	d := newDevice(t, link, 0, WithProgress(Manual), WithLimits(Limits{Memory: limit}))
	pd, err := d.AllocPD()
	must(t, err)
	mem := make([]byte, size)
	for range 3 {
		a, err := pd.AllocMR(size, LocalWrite)
		must(t, err)
		must(t, a.Close())
		b, err := pd.RegisterMR(mem, LocalWrite)
		must(t, err)
		must(t, b.Close())
	}
}

// A device that has used a region for the middle of a message does not keep its memory after Close.
func TestMemoryLimitAfterMessage(t *testing.T) {
	const limit, size, n = 8 << 20, 5 << 20, 60_000
	for _, c := range []struct {
		name  string
		op    Op
		owner int // of the region: 0 posts, 1 is the peer
	}{
		{"source of a WRITE", OpWrite, 0}, {"destination of a WRITE", OpWrite, 1},
		{"destination of a READ", OpRead, 0}, {"source of a READ", OpRead, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := newRig(t, rigConfig{opts: []Option{WithProgress(Manual),
				WithLimits(Limits{Memory: limit})}})
			ends := [2]*end{a, b}
			const all = LocalWrite | RemoteWrite | RemoteRead
			large, err := ends[c.owner].pd.AllocMR(size, all)
			must(t, err)
			local, remote := a.mr, b.mr
			if c.owner == 0 {
				local = large
			} else {
				remote = large
			}
			must(t, a.qp.PostSend(SendWR{ID: 1, Op: c.op, Flags: Signaled,
				SGEs: []SGE{local.SGE(0, n)}, RemoteAddr: remote.Addr(), RKey: remote.RKey()}))
			poll(t, 1, a.cq, b.cq)
			for range 100 {
				a.Progress()
				b.Progress()
			}
			must(t, large.Close())
			large, local, remote = nil, nil, nil
			if _, err := ends[c.owner].pd.AllocMR(size, all); err != nil {
				t.Errorf("after Close: %v", err)
			}
		})
	}
}

// A fast memory region counts with the bytes that it may register.
func TestMemoryLimitFast(t *testing.T) {
	const limit, size = 1 << 20, 600_000
	link := newLink(t, loopback.Config{})
	d := newDevice(t, link, 0, WithProgress(Manual), WithLimits(Limits{MRs: 2, Memory: limit}))
	pd, err := d.AllocPD()
	must(t, err)
	for range 3 {
		f, err := pd.AllocFastMR(size)
		must(t, err)
		if _, err := pd.AllocFastMR(size); !errors.Is(err, ErrNoMemory) {
			t.Fatalf("1,200,000 bytes: %v, want ErrNoMemory", err)
		}
		if _, err := pd.AllocFastMR(-1); !errors.Is(err, ErrMemoryLength) {
			t.Fatalf("-1 bytes: %v, want ErrMemoryLength", err)
		}
		must(t, f.Close())
	}
	if used := d.mem.used.Load(); used != 0 {
		t.Errorf("%d bytes are in use without a region", used)
	}
}

func TestLimitsOutOfRange(t *testing.T) {
	for _, l := range []Limits{{QPs: -1}, {MRs: -1}, {Rate: MinRate - 1}, {Rate: MaxRate + 1}} {
		link := newLink(t, loopback.Config{})
		if d, err := New(link.Port(0), WithLimits(l)); !errors.Is(err, ErrInvalid) {
			t.Errorf("New() with %+v: %v, %v, want ErrInvalid", l, d, err)
		}
	}
}
