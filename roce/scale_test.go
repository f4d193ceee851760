package roce

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/qp"
)

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestFootprint measures the heap memory of a connected RC QP (at most 1 KiB without its rings) and
// of a memory region (at most 256 bytes without its memory), including the device's tables.
func TestFootprint(t *testing.T) {
	link := newLink(t, loopback.Config{})
	a := newEnd(t, newDevice(t, link, 0, WithProgress(Manual)), rigConfig{})
	b := newEnd(t, newDevice(t, link, 1, WithProgress(Manual)), rigConfig{})
	const n = 6000
	qps := make([]*QP, 0, 2*n)
	before := heap()
	for range n {
		for _, e := range []*end{a, b} {
			q, err := e.CreateQP(e.pd,
				QPConfig{SendCQ: e.cq, SendDepth: 4, RecvDepth: 4, MaxSendSGE: 1, MaxRecvSGE: 1,
					MaxInline: 16})
			if err != nil {
				t.Fatal(err)
			}
			qps = append(qps, q)
		}
		connect(t, qps[len(qps)-2], qps[len(qps)-1])
	}
	rings := qp.InitAttr{SQDepth: 4, RQDepth: 4, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 16}
	each := int(heap()-before)/(2*n) - rings.Footprint()
	if each > 1024 {
		t.Errorf("a QP takes %d bytes without its rings", each)
	}
	mem := make([]byte, 4096)
	mrs := make([]*MR, 0, n)
	before = heap()
	for range n {
		m, err := a.pd.RegisterMR(mem, LocalWrite|RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		mrs = append(mrs, m)
	}
	region := int(heap()-before) / n
	if region > 256 {
		t.Errorf("a memory region takes %d bytes", region)
	}
	t.Logf("a QP takes %d bytes without its rings, a region %d", each, region)
	runtime.KeepAlive(qps)
	runtime.KeepAlive(mrs)
}

// TestLimitsAreNamed: a call that would exceed a limit fails, and its error names the limit. Closed
// objects do not count.
func TestLimitsAreNamed(t *testing.T) {
	link := newLink(t, loopback.Config{})
	d := newDevice(t, link, 0, WithProgress(Manual),
		WithExpert(Expert{MaxQP: 3, MaxMR: 5, MaxMemory: 4 << 20}))
	e := newEnd(t, d, rigConfig{depth: 16, mem: 4096}) // one object of each kind
	refused := func(what string, err, want error, limit string) {
		t.Helper()
		if !errors.Is(err, want) || !strings.Contains(err.Error(), limit) {
			t.Errorf("%s: %v; want %v, naming %s", what, err, want, limit)
		}
	}
	small := QPConfig{SendCQ: e.cq, SendDepth: 1, RecvDepth: 1}
	for range 2 {
		if _, err := d.CreateQP(e.pd, small); err != nil {
			t.Fatal(err)
		}
	}
	_, err := d.CreateQP(e.pd, small)
	refused("a fourth QP", err, ErrTooManyQPs, "the limit is 3")
	for range 4 {
		if _, err := e.pd.RegisterMR(make([]byte, 64), LocalWrite); err != nil {
			t.Fatal(err)
		}
	}
	_, err = e.pd.RegisterMR(make([]byte, 64), LocalWrite)
	refused("a sixth MR", err, ErrTooMany, "the limit is 5")

	const bytes = "the limit is 4194304 bytes"
	if err := e.qp.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = d.CreateQP(e.pd, QPConfig{SendCQ: e.cq, SendDepth: qp.MaxQueueDepth, MaxSendSGE: 16})
	refused("a long QP", err, ErrNoMemory, bytes)
	_, err = d.CreateCQ(1 << 20)
	refused("a long CQ", err, ErrNoMemory, bytes)
	_, err = d.CreateSRQ(e.pd, SRQConfig{Depth: qp.MaxQueueDepth, MaxSGE: 16})
	refused("a long SRQ", err, ErrNoMemory, bytes)
	_, err = e.pd.AllocMR(5<<20, LocalWrite)
	refused("much memory", err, ErrNoMemory, bytes)
	for range 3 { // each time it is released again
		q, err := d.CreateQP(e.pd,
			QPConfig{SendCQ: e.cq, SendDepth: 8192, RecvDepth: 1, MaxSendSGE: 1})
		if err != nil {
			t.Fatal(err)
		}
		cq, err := d.CreateCQ(10_000)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(q.Close(), cq.Close()); err != nil {
			t.Fatal(err)
		}
	}
	// The default limit is the machine's memory.
	d = newDevice(t, link, 1, WithProgress(Manual))
	pd, err := d.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	_, err = pd.AllocMR(1<<50, LocalWrite)
	refused("a pebibyte", err, ErrNoMemory, "the limit is")
}

// TestGroupLimit reads the limit of a control group. Without a limit the file says "max", or a
// number beyond any machine.
func TestGroupLimit(t *testing.T) {
	for text, want := range map[string]uint64{"536870912\n": 512 << 20, "max\n": 1<<63 - 1,
		"9223372036854771712\n": 9223372036854771712, "": 1<<63 - 1, "0": 1<<63 - 1} {
		file := filepath.Join(t.TempDir(), "memory.max")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := groupLimit(file); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
	if got := groupLimit(filepath.Join(t.TempDir(), "none")); got != 1<<63-1 {
		t.Errorf("missing file: %d", got)
	}
}

// TestGroupFiles: the files of the control group of the process and of its ancestors.
func TestGroupFiles(t *testing.T) {
	const v1, v2 = "/sys/fs/cgroup/memory/", "/sys/fs/cgroup/"
	root := []string{v2 + "memory.max", v1 + "memory.limit_in_bytes"}
	for groups, below := range map[string][]string{
		"": nil, "0::/\n": nil, "nonsense\n1:2\n": nil,
		"0::/system.slice/a.service\n": {v2 + "system.slice/a.service/memory.max", v2 +
			"system.slice/memory.max"},
		"9:cpu:/x\n4:hugetlb,memory:/y\n0::/\n":     {v1 + "y/memory.limit_in_bytes"},
		"0::/../../outside\n1:name=systemd:/init\n": {v2 + "outside/memory.max"},
	} {
		if got, want := groupFiles(groups), append(slices.Clone(root), below...); !slices.Equal(got,
			want) {
			t.Errorf("%q: %q, want %q", groups, got, want)
		}
	}
}

// TestDevicesShareMemoryLimit: devices without a limit share one. Close releases their part.
func TestDevicesShareMemoryLimit(t *testing.T) {
	const size = 1 << 20
	link := newLink(t, loopback.Config{})
	eventually(t, "memory of other tests to be free", func() bool {
		runtime.GC()
		return common.garbage.Load() == 0
	})
	before := common.used.Load()
	a, b := newDevice(t, link, 0, WithProgress(Manual)), newDevice(t, link, 1, WithProgress(Manual))
	rest := int(commonLimit()-before) - size
	must(t, a.mem.take(rest, "this test"))
	pd, err := b.AllocPD()
	must(t, err)
	if _, err := pd.AllocMR(2*size, LocalWrite); !errors.Is(err, ErrNoMemory) {
		t.Errorf("AllocMR with almost all memory in use by another device: %v, want %v", err,
			ErrNoMemory)
	}
	a.mem.give(rest)
	_, err = pd.AllocMR(2*size, LocalWrite)
	must(t, err)
	must(t, errors.Join(a.Close(), b.Close()))
	pd = nil
	eventually(t, "memory to be free after Close", func() bool {
		runtime.GC()
		return common.used.Load() <= before
	})
}

// TestPrefetchWindows sends messages over a few hundred QPs and regions with several prefetch
// windows: all arrive, and nothing is allocated.
func TestPrefetchWindows(t *testing.T) {
	link := newLink(t, loopback.Config{})
	a := newEnd(t, newDevice(t, link, 0, WithProgress(Manual)), rigConfig{})
	b := newEnd(t, newDevice(t, link, 1, WithProgress(Manual),
		WithExpert(Expert{Prefetch: new(2)})), rigConfig{})
	const n = 300
	var as []*QP
	var src, dst []*MR
	for range n {
		p, q := newQP(t, a), newQP(t, b)
		connect(t, p, q)
		as = append(as, p)
		src, dst = append(src, newMR(t, a)), append(dst, newMR(t, b))
	}
	p := a.NewPrefetcher()
	sges := make([]SGE, n)
	wrs := make([]SendWR, n)
	for i := range wrs {
		sges[i] = src[i].SGE(0, 64)
		wrs[i] = SendWR{Op: OpWrite, Flags: Signaled, SGEs: sges[i : i+1],
			RemoteAddr: dst[i].Addr(), RKey: dst[i].RKey()}
	}
	wcs := make([]WC, n)
	round := func() {
		for i, q := range as {
			p.Prefetch(as[(i+8)%n], &wrs[(i+8)%n])
			if err := q.PostSend(wrs[i : i+1]...); err != nil {
				t.Fatal(err)
			}
		}
		for done := 0; done < n; {
			k := a.cq.Poll(wcs)
			for _, wc := range wcs[:k] {
				if wc.Status != Success {
					t.Fatal(wc.Status)
				}
			}
			done += k
			b.Progress()
		}
	}
	for _, window := range []int{0, 1, 3, 8, MaxPrefetch} {
		if err := errors.Join(a.SetPrefetch(window), b.SetPrefetch(window)); err != nil {
			t.Fatal(err)
		}
		for i := range src {
			fill(src[i].Bytes(), uint64(window*n+i))
		}
		round()
		for i := range dst {
			if string(dst[i].Bytes()) != string(src[i].Bytes()) {
				t.Fatalf("window %d: the data of region %d differs", window, i)
			}
		}
		if !raceEnabled {
			// On a loaded host, timers of QPs may expire while the test does not run, and then a QP
			// allocates the model of its path, once.
			allocs := testing.AllocsPerRun(5, round)
			for try := 0; try < 10 && allocs != 0; try++ {
				allocs = testing.AllocsPerRun(5, round)
			}
			if allocs != 0 {
				t.Errorf("window %d: %v allocations for %d messages", window, allocs, n)
			}
		}
	}
	for _, bad := range []int{-1, MaxPrefetch + 1} {
		if err := a.SetPrefetch(bad); err == nil {
			t.Errorf("SetPrefetch(%d) succeeded", bad)
		}
		if _, err := New(newLink(t, loopback.Config{}).Port(0),
			WithExpert(Expert{Prefetch: new(bad)})); !errors.Is(err, ErrPrefetch) {
			t.Errorf("Expert.Prefetch = %d: %v", bad, err)
		}
	}
}

func newQP(t *testing.T, e *end) *QP {
	t.Helper()
	q, err := e.CreateQP(e.pd, QPConfig{SendCQ: e.cq, SendDepth: 4, RecvDepth: 1, MaxSendSGE: 1})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func newMR(t *testing.T, e *end) *MR {
	t.Helper()
	m, err := e.pd.RegisterMR(make([]byte, 64), LocalWrite|RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestPostPrefetch checks that PostSend prefetches from postPrefetchFrom QPs on, while the device
// is open and has a prefetch window.
func TestPostPrefetch(t *testing.T) {
	before := postPrefetch.Load()
	is := func(what string, want int32) {
		t.Helper()
		if got := postPrefetch.Load() - before; got != want {
			t.Errorf("%s: %d devices prefetch, want %d", what, got, want)
		}
	}
	e := newEnd(t, newDevice(t, newLink(t, loopback.Config{}), 0, WithProgress(Manual)),
		rigConfig{depth: 1})
	for len(e.qps) < postPrefetchFrom-1 {
		newQP(t, e)
	}
	is("one QP less", 0)
	last := newQP(t, e)
	is("many QPs", 1)
	for i, window := range []int{0, 0, 8, 3} {
		must(t, e.SetPrefetch(window))
		is("SetPrefetch", []int32{0, 0, 1, 1}[i])
	}
	if err := e.SetPrefetch(-1); err == nil {
		t.Error("SetPrefetch(-1) succeeded")
	}
	is("after SetPrefetch(-1)", 1)
	must(t, last.Close())
	is("one QP closed", 0)
	newQP(t, e)
	is("QP created again", 1)
	must(t, e.Close())
	is("device closed", 0)
}
