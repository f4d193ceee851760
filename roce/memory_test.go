package roce

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/loopback"
)

// TestUseAfterClose: the memory of a region stays accessible after MR.Close and Device.Close, as
// long as there is a reference to it.
func TestUseAfterClose(t *testing.T) {
	for _, size := range []int{1, 4096, 5000, 16 << 20} {
		a, _ := newRig(t, rigConfig{opts: []Option{WithProgress(Manual)}})
		var regions [4]*MR
		for i := range regions {
			var err error
			if i < 2 {
				regions[i], err = a.pd.AllocMR(size, LocalWrite|RemoteRead)
			} else {
				regions[i], err = a.pd.RegisterMR(make([]byte, size), LocalWrite|RemoteRead)
			}
			must(t, err)
			regions[i].Bytes()[0] = 'x'
		}
		slices := [][]byte{regions[0].Bytes(), regions[1].Bytes(), regions[2].Bytes(),
			regions[3].Bytes()}
		must(t, regions[0].Close())
		must(t, regions[2].Close())
		must(t, a.Close())
		for range 2 {
			runtime.GC()
			for i, m := range regions {
				if c := slices[i][0]; c != 'x' || m.Load8(0) != 'x' || len(m.Bytes()) != size {
					t.Errorf("region %d of %d bytes: first byte %q after Close, want 'x'", i, size, c)
				}
			}
		}
		m := regions[0]
		m.Store8(size-1, 'y')
		if m.Bytes()[size-1] != 'y' {
			t.Errorf("a store after Close is lost")
		}
	}
}

// TestReadDuringClose closes the device while goroutines read its memory.
func TestReadDuringClose(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		a, b := newRig(t, rigConfig{opts: []Option{WithProgress(p)}})
		must(t, a.qp.PostSend(SendWR{Op: OpWrite, SGEs: []SGE{a.mr.SGE(0, 8)},
			RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
		var stop atomic.Bool
		var busy sync.WaitGroup
		var started sync.WaitGroup
		started.Add(2)
		busy.Go(func() {
			for first := true; !stop.Load(); first = false {
				b.mr.Load64(0)
				if first {
					started.Done()
				}
			}
		})
		busy.Go(func() {
			mem := b.mr.Bytes()[4096:]
			for first := true; !stop.Load(); first = false {
				bytes.IndexByte(mem, 1)
				if first {
					started.Done()
				}
			}
		})
		started.Wait()
		must(t, b.mr.Close())
		must(t, b.Close())
		b.mr.Add64(8, 1)
		stop.Store(true)
		busy.Wait()
	})
}

// TestClosedMemoryCounts: memory of closed regions counts until it is free. If it is needed, it is
// collected.
func TestClosedMemoryCounts(t *testing.T) {
	const limit, size = 16 << 20, 6 << 20
	d := newDevice(t, newLink(t, loopback.Config{}), 0, WithProgress(Manual),
		WithExpert(Expert{MaxMemory: limit}))
	pd, err := d.AllocPD()
	must(t, err)
	alloc := func() *MR {
		t.Helper()
		m, err := pd.AllocMR(size, LocalWrite)
		must(t, err)
		return m
	}
	for range 10 { // only two fit at the same time
		must(t, alloc().Close())
	}
	held := [2]*MR{alloc(), alloc()}
	for _, m := range held {
		must(t, m.Close())
	}
	if _, err := pd.AllocMR(size, LocalWrite); !errors.Is(err, ErrNoMemory) {
		t.Errorf("AllocMR while closed regions hold the memory: %v, want %v", err, ErrNoMemory)
	}
	runtime.KeepAlive(held)
	held = [2]*MR{}
	must(t, alloc().Close())
}

// TestAllocMRAlignment: the memory of AllocMR is zeroed and aligned, and shares no page.
func TestAllocMRAlignment(t *testing.T) {
	a, _ := newRig(t, rigConfig{opts: []Option{WithProgress(Manual)}})
	page := uint64(os.Getpagesize())
	for _, size := range []int{1, 8, 4095, 4096, 4097, 12288, 20000, 32769, 1 << 20, hugeSize,
		alignHuge, alignHuge + 1} {
		for range 3 {
			m, err := a.pd.AllocMR(size, LocalWrite)
			must(t, err)
			align := uint64(alignment(size))
			if m.Addr()%align != 0 || align < page || m.Len() != size ||
				bytes.Count(m.Bytes(), []byte{0}) != size {
				t.Fatalf("region of %d bytes at %#x is not zeroed or aligned", size, m.Addr())
			}
			fill(m.Bytes(), 1)
			must(t, m.Close())
		}
	}
}

// TestAllocMRHuge: sizes whose rounding overflows are refused, even without a limit.
func TestAllocMRHuge(t *testing.T) {
	d := newDevice(t, newLink(t, loopback.Config{}), 0, WithProgress(Manual),
		WithExpert(Expert{MaxMemory: math.MaxUint64}))
	pd, err := d.AllocPD()
	must(t, err)
	for _, size := range []int{math.MaxInt, math.MaxInt - 4096, math.MaxInt - arenaSize, 1 << 62} {
		if _, err := pd.AllocMR(size, LocalWrite); !errors.Is(err, ErrNoMemory) {
			t.Errorf("AllocMR(%d): %v, want %v", size, err, ErrNoMemory)
		}
	}
}

// TestClosedQPsReleaseMemory: closed QPs, CQs and SRQs keep neither the memory of their queues nor
// budget, although one of 64 QPs stays open and the program keeps pointers to all.
func TestClosedQPsReleaseMemory(t *testing.T) {
	const n, depth = 256, 512
	d := newDevice(t, newLink(t, loopback.Config{}), 0, WithProgress(Manual),
		WithExpert(Expert{MaxMemory: 1 << 30}))
	pd, err := d.AllocPD()
	must(t, err)
	var qps []*QP
	var cqs []*CQ
	var srqs []*SRQ
	empty, start := heap(), d.mem.used.Load()
	for range n {
		cq, err := d.CreateCQ(2 * depth)
		must(t, err)
		srq, err := d.CreateSRQ(pd, SRQConfig{Depth: depth})
		must(t, err)
		q, err := d.CreateQP(pd, QPConfig{SendCQ: cq, SendDepth: depth, RecvDepth: depth})
		must(t, err)
		must(t, q.PostRecv(RecvWR{}))
		qps, cqs, srqs = append(qps, q), append(cqs, cq), append(srqs, srq)
	}
	full := heap() - empty
	var wcs [4]WC
	for i, q := range qps {
		if i%qpSlab != 0 {
			must(t, q.Close())
			if i%2 == 0 {
				if n := cqs[i].Poll(wcs[:]); n != 1 || wcs[0].Status != WRFlushErr {
					t.Fatalf("%d completions %v, want one flushed receive", n, wcs[0].Status)
				}
			}
			must(t, errors.Join(cqs[i].Close(), srqs[i].Close()))
			if i%2 != 0 { // completions can be polled after Close
				if n := cqs[i].Poll(wcs[:]); n != 1 || wcs[0].Status != WRFlushErr {
					t.Fatalf("%d completions %v, want one flushed receive", n, wcs[0].Status)
				}
			}
			if n, err := cqs[i].Poll(wcs[:]), q.PostRecv(RecvWR{}); n != 0 ||
				!errors.Is(err, ErrClosed) {
				t.Fatalf("%d completions, PostRecv: %v; want 0 and %v", n, err, ErrClosed)
			}
		}
	}
	left, used := heap()-empty, d.mem.used.Load()-start
	if left > full/8 || used > uint64(full)/8 {
		t.Errorf("closed objects hold %d of %d bytes, the budget says %d; want less than an eighth",
			left, full, used)
	}
	if int64(left) > int64(used)+n*1024 {
		t.Errorf("%d bytes are held, the budget says %d", left, used)
	}
	t.Logf("%d bytes, after Close %d, the budget says %d", full, left, used)
	runtime.KeepAlive(qps)
	runtime.KeepAlive(cqs)
	runtime.KeepAlive(srqs)
}

// TestUnpolledCompletionsCount: a closed CQ with completions keeps its budget until they are polled
// or the CQ is garbage.
func TestUnpolledCompletionsCount(t *testing.T) {
	d := newDevice(t, newLink(t, loopback.Config{}), 0, WithProgress(Manual),
		WithExpert(Expert{MaxMemory: 1 << 30}))
	pd, err := d.AllocPD()
	must(t, err)
	start := d.mem.used.Load()
	fillCQ := func() *CQ {
		cq, err := d.CreateCQ(4096)
		must(t, err)
		q, err := d.CreateQP(pd, QPConfig{SendCQ: cq})
		must(t, err)
		must(t, q.PostRecv(RecvWR{}))
		must(t, q.Close())
		must(t, cq.Close())
		return cq
	}
	const bytes = 4096 * 48 / 2
	cq := fillCQ()
	if used := d.mem.used.Load() - start; used < bytes {
		t.Errorf("%d bytes in use by a closed CQ with completions, want at least %d", used, bytes)
	}
	cq.Poll(make([]WC, 1))
	if used := d.mem.used.Load() - start; used >= bytes {
		t.Errorf("%d bytes in use by an empty closed CQ, want less than %d", used, bytes)
	}
	fillCQ()
	eventually(t, "the CQ to be collected", func() bool {
		runtime.GC()
		return d.mem.used.Load()-start < bytes
	})
}

// TestOutOfMemory: if the operating system refuses memory, AllocMR returns ErrNoMemory. The limit
// would affect all tests, so a child process sets it.
func TestOutOfMemory(t *testing.T) {
	if os.Getenv("ROCE_TEST_NO_MEMORY") == "" {
		cmd := exec.CommandContext(context.Background(), os.Args[0], "-test.run=^TestOutOfMemory$")
		cmd.Env = append(os.Environ(), "ROCE_TEST_NO_MEMORY=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("child: %v\n%s", err, out)
		}
		return
	}
	if raceEnabled {
		t.Skip("the race detector needs more address space than the limit")
	}
	d := newDevice(t, newLink(t, loopback.Config{}), 0, WithProgress(Manual))
	pd, err := d.AllocPD()
	must(t, err)
	limit := addressSpace(t) + 128<<20
	must(t, unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: limit, Max: limit}))
	if _, err := pd.AllocMR(512<<20, LocalWrite); !errors.Is(err, ErrNoMemory) {
		t.Errorf("AllocMR beyond the address space: %v, want %v", err, ErrNoMemory)
	}
	if _, err := d.CreateCQ(MaxCQDepth); !errors.Is(err, ErrNoMemory) {
		t.Errorf("CreateCQ beyond the address space: %v, want %v", err, ErrNoMemory)
	}
	m, err := pd.AllocMR(1<<20, LocalWrite)
	must(t, err)
	must(t, m.Close())
}

// addressSpace returns the size of the address space that the process uses, in bytes.
func addressSpace(t *testing.T) uint64 {
	text, err := os.ReadFile("/proc/self/statm")
	must(t, err)
	pages, _, _ := strings.Cut(string(text), " ")
	n, err := strconv.ParseUint(pages, 10, 64)
	must(t, err)
	return n * uint64(os.Getpagesize())
}
