package uverbs

import (
	"flag"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"
	"time"
)

// ownerState returns how much of closed contexts the device still refers to.
func ownerState(d *Device) (n int) {
	d.do(func() {})
	d.do(func() { n = len(d.hot) + len(d.queues) + len(d.pending) + len(d.dirty) + len(d.ahs) })
	d.mu.Lock()
	defer d.mu.Unlock()
	return n + len(d.contexts) + len(d.byQP)
}

// FuzzProgram runs two hostile programs, which do what the input says: see hostile_test.go.
func FuzzProgram(f *testing.F) {
	for n := range uint64(8) {
		f.Add(randomInput(0, n))
	}
	a, err := newArena()
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(a.close)
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) == 0 {
			return
		}
		if err := a.begin(in[0]); err != nil {
			t.Fatal(err)
		}
		if err := a.execute(in[1:]); err != nil {
			t.Fatal(err)
		}
		if err := a.end(); err != nil {
			t.Fatal(err)
		}
	})
}

var (
	runs  = flag.Uint64("hostile.n", 1000, "executions of TestHostile")
	seed  = flag.Uint64("hostile.seed", 1, "seed of TestHostile")
	first = flag.Uint64("hostile.first", 0, "number of the first execution of TestHostile")
)

// maxInput is the number of bytes of a random input.
const maxInput = 160

// randomInput returns the input of an execution.
func randomInput(seed, n uint64) []byte {
	r := rand.New(rand.NewPCG(seed, n))
	b := make([]byte, 1+r.IntN(maxInput))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// lifetime is the number of executions of a hostile program, if it does not end before.
const lifetime = 32

// TestHostile runs hostile programs with random inputs. A program executes up to lifetime inputs.
func TestHostile(t *testing.T) {
	a, err := newArena()
	if err != nil {
		t.Fatal(err)
	}
	w := newWatch(t)
	for n := *first; n < *first+*runs; {
		born := n
		fail := func(err error) {
			t.Fatalf("%v\nto repeat it: -hostile.seed=%d -hostile.first=%d -hostile.n=%d", err,
				*seed, born, n-born+1)
		}
		if err := a.begin(byte(n / lifetime)); err != nil {
			fail(err)
		}
		for alive := true; alive; n++ {
			w.hang.Reset(hangAfter)
			if err := a.execute(randomInput(*seed, n)); err != nil {
				fail(err)
			}
			alive = n+1 < *first+*runs && n+1 < born+lifetime && a.bad[0].intact() &&
				a.bad[1].intact()
		}
		if err := a.end(); err != nil {
			fail(err)
		}
		w.ended(a.count, a.steps)
	}
	w.report(a.count, a.steps)
	a.close() // not deferred: after a panic, the devices are locked
}

// watch observes a long run: that it does not hang, and that what it uses does not grow.
type watch struct {
	t       *testing.T
	start   time.Time
	hang    *time.Timer
	checked time.Time
	usage   *usage // after the start
}

// usage is what the process uses.
type usage struct {
	heap            uint64
	fds, goroutines int
}

func measure() (*usage, error) {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	fds, err := os.ReadDir("/proc/self/fd")
	return &usage{m.HeapAlloc, len(fds), runtime.NumGoroutine()}, err
}

const (
	hangAfter   = 5 * time.Minute // for one execution on a machine that is busy
	checkAfter  = 20 * time.Second
	heapGrowth  = 8 << 20 // bytes
	otherGrowth = 8       // descriptors or goroutines
)

func newWatch(t *testing.T) *watch {
	w := &watch{t: t, start: time.Now(), checked: time.Now()}
	w.hang = time.AfterFunc(hangAfter, func() { panic("an execution does not end") })
	t.Cleanup(func() { w.hang.Stop() })
	return w
}

// ended is called after the end of hostile programs, with the numbers of executions and steps.
func (w *watch) ended(n, steps uint64) {
	if now := time.Now(); now.Sub(w.checked) > checkAfter {
		w.checked = now
		w.check()
		w.report(n, steps)
	}
}

// check fails the test if more memory, descriptors or goroutines are in use than after the start.
func (w *watch) check() {
	now, err := measure()
	if err != nil {
		w.t.Fatal(err)
	}
	if w.usage == nil {
		w.usage = now
	}
	if now.heap > w.usage.heap+heapGrowth || now.fds > w.usage.fds+otherGrowth ||
		now.goroutines > w.usage.goroutines+otherGrowth {
		w.t.Fatalf("in use: %+v, at the start %+v", *now, *w.usage)
	}
}

// report logs the number of executions since the start.
func (w *watch) report(n, steps uint64) {
	s := time.Since(w.start).Seconds()
	w.t.Logf("%d executions, %.0f/s, %d steps", n, float64(n)/s, steps)
}
