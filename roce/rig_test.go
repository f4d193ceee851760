package roce

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
)

// end is an endpoint: a device with one object of each kind.
type end struct {
	*Device
	pd *PD
	cq *CQ
	qp *QP
	mr *MR
}

type rigConfig struct {
	typ   QPType
	depth int
	mem   int
	link  loopback.Config
	opts  []Option
	qp    QPConfig
	mr    []MROption
}

// newRig returns two endpoints on an in-memory link. RC and UC are connected; UD is active with
// Q_Key 0x1234.
func newRig(t testing.TB, c rigConfig) (a, b *end) {
	t.Helper()
	link := newLink(t, c.link)
	a, b = newEnd(t, newDevice(t, link, 0, c.opts...), c), newEnd(t,
		newDevice(t, link, 1, c.opts...), c)
	connect(t, a.qp, b.qp)
	return a, b
}

func newLink(t testing.TB, c loopback.Config) *loopback.Link {
	t.Helper()
	link, err := loopback.NewLink(c)
	if err != nil {
		t.Fatal(err)
	}
	return link
}

func newDevice(t testing.TB, link *loopback.Link, i int, opts ...Option) *Device {
	t.Helper()
	d, err := New(link.Port(i), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return d
}

func newEnd(t testing.TB, d *Device, c rigConfig) *end {
	t.Helper()
	if c.depth == 0 {
		c.depth = 256
	}
	if c.mem == 0 {
		c.mem = 1 << 16
	}
	e := &end{Device: d}
	var err error
	check := func() {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	e.pd, err = d.AllocPD()
	check()
	e.cq, err = d.CreateCQ(2 * c.depth)
	check()
	e.mr, err = e.pd.AllocMR(c.mem, LocalWrite|RemoteWrite|RemoteRead|RemoteAtomic, c.mr...)
	check()
	c.qp.Type, c.qp.SendCQ, c.qp.SendDepth, c.qp.RecvDepth = c.typ, e.cq, c.depth, c.depth
	e.qp, err = d.CreateQP(e.pd, c.qp)
	check()
	return e
}

func connect(t testing.TB, a, b *QP) {
	t.Helper()
	if a.Type() == UD {
		for _, q := range []*QP{a, b} {
			if err := q.Activate(0x1234); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	for _, p := range [][2]*QP{{a, b}, {b, a}} {
		if err := p[0].Connect(context.Background(), p[1].Local(), ConnectOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// poll runs both devices until cq has returned n completions.
func poll(t testing.TB, n int, cq *CQ, others ...*CQ) []WC {
	t.Helper()
	var got []WC
	var wcs [16]WC
	for end := time.Now().Add(deadline); len(got) < n; {
		k := cq.Poll(wcs[:min(len(wcs), n-len(got))])
		got = append(got, wcs[:k]...)
		for _, o := range others {
			o.dev.Progress()
		}
		if k == 0 && time.Now().After(end) {
			t.Fatalf("%d completions after %v, want %d", len(got), deadline, n)
		}
		if k == 0 && !cq.dev.manual {
			runtime.Gosched()
		}
	}
	return got
}

// pollOK polls one completion, which must be successful.
func pollOK(t testing.TB, id uint64, op WCOpcode, cq *CQ, others ...*CQ) WC {
	t.Helper()
	wc := poll(t, 1, cq, others...)[0]
	if wc.ID != id || wc.Status != Success || wc.Opcode != op {
		t.Fatalf("completion %+v (%v); want ID %d, success, %v", wc, wc.Status, id, op)
	}
	return wc
}

// fill writes random bytes into b and returns a copy.
func fill(b []byte, seed uint64) []byte {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	rand.NewChaCha8(key).Read(b)
	return bytes.Clone(b)
}

// leakCheck compares goroutines and file descriptors before and after the test.
func leakCheck(t testing.TB) {
	t.Helper()
	runtime.GC()
	goroutines, fds := runtime.NumGoroutine(), openFDs(t)
	t.Cleanup(func() {
		var g, f int
		for range 200 {
			if g, f = runtime.NumGoroutine(), openFDs(t); g <= goroutines && f <= fds {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
		buf := make([]byte, 1<<16)
		t.Errorf("%d goroutines (before: %d), %d file descriptors (before: %d)\n%s",
			g, goroutines, f, fds, buf[:runtime.Stack(buf, true)])
	})
}

// openFDs counts open file descriptors, without the runtime's poller.
func openFDs(t testing.TB) int {
	t.Helper()
	dir, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range dir {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil &&
			!strings.HasPrefix(to, "anon_inode:[eventpoll]") {
			n++
		}
	}
	return n
}

// bothModes runs a test with Auto and with Manual progress.
func bothModes(t *testing.T, f func(t *testing.T, p Progress)) {
	for _, p := range []Progress{Auto, Manual} {
		t.Run(p.String(), func(t *testing.T) { f(t, p) })
	}
}
