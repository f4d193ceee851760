package soak

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

var (
	forFlag  = flag.Duration("soak.for", time.Second, "run for this long")
	seedFlag = flag.Uint64("soak.seed", 0, "seed of all decisions; 0: a random one")
	cpuFlag  = flag.Int("soak.cpu", 0, "use at most this many percent of one core; 0: no limit")
)

const (
	// patience is how long an honest peer waits for anything.
	patience = 60 * time.Second
	// The limits of each device. They are far below what a leak of a few bytes per connection
	// needs within an hour.
	maxMemory = 64 << 20
	maxObject = 512
	// checkpoints is the number of measurements in a run.
	checkpoints = 60
	// maxFailures ends the run.
	maxFailures = 5
)

// world is the link, the device under test (0), that of the honest client (1), and the attacker.
type world struct {
	t       *testing.T
	seed    uint64
	began   time.Time
	until   time.Time
	tb      *testbed.Testbed
	attack  *attacker
	replays replays
	pace    *pacer
	failed  atomic.Int32
	n       [numStats]atomic.Uint64

	gate    sync.RWMutex // a checkpoint excludes all steps
	targets targets
}

// job is a peer, honest or hostile. step does a bounded amount of work. close releases what the job
// keeps between steps.
type job interface {
	step(r *rand.Rand) error
	close() error
}

// stepper is a job that keeps nothing between steps.
type stepper func(r *rand.Rand) error

func (f stepper) step(r *rand.Rand) error { return f(r) }
func (f stepper) close() error            { return nil }

// pacer limits the processor time of the process.
type pacer struct {
	mu    sync.Mutex
	share float64 // of one core; 0: no limit
	used  time.Duration
	at    time.Time
	left  float64 // processor time, ns, that may be used now
}

// burst is the processor time that the process may save up.
const burst = 100 * time.Millisecond

func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// wait sleeps while the process has used more than its share.
func (p *pacer) wait() {
	if p.share == 0 {
		return
	}
	for {
		p.mu.Lock()
		now, used := time.Now(), cpuTime()
		p.left = min(float64(burst), p.left+p.share*float64(now.Sub(p.at))-float64(used-p.used))
		p.at, p.used = now, used
		left := p.left
		p.mu.Unlock()
		if left >= 0 {
			return
		}
		time.Sleep(min(time.Duration(-left/p.share)+time.Millisecond, 50*time.Millisecond))
	}
}

func (w *world) over() bool { return w.failed.Load() >= maxFailures || time.Now().After(w.until) }

func (w *world) fail(format string, args ...any) {
	if w.failed.Add(1) <= maxFailures {
		w.t.Errorf("after %v: %s", time.Since(w.began).Round(time.Millisecond),
			fmt.Sprintf(format, args...))
	}
}

// wait returns a context for the wait of an honest peer.
func (w *world) wait() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), patience)
}

func TestSoak(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	w := &world{t: t, seed: seed, pace: &pacer{share: float64(*cpuFlag) / 100, at: time.Now(),
		used: cpuTime()}}
	before := processState()
	w.open()
	w.run()
	w.finish(before)
}

// open creates the link and its devices.
func (w *world) open() {
	var err error
	w.tb, err = testbed.New(testbed.Config{
		Seed: w.seed,
		Link: loopback.Config{Ports: 3},
		Options: []roce.Option{roce.WithExpert(roce.Expert{Spin: roce.NoSpin,
			MaxMemory: maxMemory, MaxPD: maxObject, MaxMR: maxObject, MaxQP: maxObject})},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.attack = newAttacker(w.tb.Link.Port(2), w.tb.Link.Port(0), w.tb.Link.Port(1))
	for _, from := range []int{0, 1} {
		w.tb.Link.SetFilter(from, 1-from, w.replays.filter)
	}
	for _, d := range w.tb.Dev {
		go func() {
			for e := range d.Events() {
				if e.Kind == roce.EventSRQLimit {
					w.n[srqLimits].Add(1)
				}
			}
		}()
	}
}

// run runs all jobs until the time is over.
func (w *world) run() {
	w.began = time.Now()
	w.until = w.began.Add(*forFlag)
	listener := w.newListener()
	jobs := map[string]job{
		"RC":               stepper(w.reliable),
		"RC, second":       stepper(w.reliable),
		"RC, long-lived":   &longLived{w: w},
		"UC":               stepper(w.unreliable),
		"UD":               stepper(w.datagrams),
		"CM":               stepper(listener.connect),
		"SRQ":              &srqJob{w: w},
		"hostile peer":     stepper(w.hostilePeer),
		"hostile outsider": stepper(w.outsider),
		"hostile MADs":     stepper(w.mads),
		"faults":           stepper(w.faults),
		"devices":          stepper(w.devices),
	}
	var wg sync.WaitGroup
	for name, j := range jobs {
		r := rand.New(rand.NewPCG(w.seed, uint64(len(name))<<32|uint64(name[0])<<8|
			uint64(name[len(name)-1])))
		wg.Go(func() { w.work(name, j, r) })
	}
	w.measure()
	wg.Wait()
	for name, j := range jobs {
		if err := j.close(); err != nil {
			w.fail("%s: close: %v", name, err)
		}
	}
	if err := listener.close(); err != nil {
		w.fail("listener: %v", err)
	}
}

// work repeats the steps of a job.
func (w *world) work(name string, j job, r *rand.Rand) {
	for !w.over() {
		w.gate.RLock()
		err := j.step(r)
		w.gate.RUnlock()
		if err != nil {
			w.fail("%s: %v", name, err)
		}
		w.pace.wait()
	}
}

// finish closes everything, compares the process with its state before, and prints a summary.
func (w *world) finish(before state) {
	w.n[dropped].Store(w.drops())
	w.tally()
	if err := w.tb.Close(); err != nil {
		w.fail("close: %v", err)
	}
	w.tb, w.attack = nil, nil
	w.targets.set(nil) // for the garbage collector
	w.covered()
	after := w.settled(before)
	w.t.Log(w.summary(before, after))
}

// covered checks that the run did something of everything. A short one has no time for all of it.
func (w *world) covered() {
	for i, name := range statNames {
		rare := stat(i) != messages && stat(i) != hostilePackets
		if w.n[i].Load() == 0 && (!rare || *forFlag >= time.Minute && stat(i) != devicesXDP) {
			w.fail("no %s", name)
		}
	}
}

// drops counts the packets that the device under test did not execute.
func (w *world) drops() (n uint64) {
	c := w.tb.Dev[0].Counters()
	for name, v := range c.All() {
		if strings.Contains(strings.ToLower(name), "drop") {
			n += v
		}
	}
	return n
}

// devices opens two devices, connects them, moves data, and closes them: mostly in memory, and now
// and then over AF_XDP.
func (w *world) devices(r *rand.Rand) error {
	if !w.pause(r, 2*time.Second) {
		return nil
	}
	c := testbed.Config{Seed: r.Uint64(), Plan: loopback.Plan{Loss: 0.01, Duplicate: 0.01},
		Options: []roce.Option{roce.WithExpert(roce.Expert{Spin: roce.NoSpin})}}
	what := devicesMemory
	if os.Geteuid() == 0 && r.IntN(4) == 0 {
		c.Veth, what = true, devicesXDP
	}
	tb, err := testbed.New(c)
	if err != nil && c.Veth && testbed.Unavailable(err) {
		return nil
	}
	if err != nil {
		return err
	}
	err = w.reliableOn(tb.Dev, r)
	w.n[what].Add(2)
	return errors.Join(err, tb.Close())
}

// pause waits for a random time of at most d. It returns false if the run is over. It must be
// called at the start of a step; a checkpoint need not wait for it.
func (w *world) pause(r *rand.Rand, d time.Duration) bool {
	w.gate.RUnlock()
	defer w.gate.RLock()
	d = min(time.Duration(r.Int64N(int64(d))), time.Until(w.until))
	if d > 0 {
		time.Sleep(d)
	}
	return !w.over()
}

// faults changes what the link does to frames.
func (w *world) faults(r *rand.Rand) error {
	upTo := func(most float64) float64 { return most * r.Float64() }
	for from := range 3 {
		var p loopback.Plan
		switch r.IntN(5) {
		case 0:
		case 1:
			p.Loss = upTo(0.01)
		case 2:
			p.Reorder, p.Duplicate = upTo(0.2), upTo(0.1)
		case 3:
			p.Loss, p.Reorder, p.Duplicate, p.Corrupt = upTo(0.03), upTo(0.05), upTo(0.05),
				upTo(0.03)
		case 4:
			p.Loss = upTo(0.005)
			p.Delay = time.Duration(r.IntN(int(time.Millisecond)))
			p.Jitter = p.Delay / 2
			p.PauseEvery, p.PauseFor = 50*time.Millisecond, 2*time.Millisecond
		}
		for to := range 3 {
			if to == from {
				continue
			}
			if err := w.tb.Link.SetPlan(from, to, p); err != nil {
				return err
			}
		}
	}
	w.n[plans].Add(1)
	w.pause(r, min(4*time.Second, *forFlag/4+1))
	return nil
}

// tally adds up the faults of the link.
func (w *world) tally() {
	for from := range 3 {
		for to := range 3 {
			if from == to {
				continue
			}
			f := w.tb.Link.Faults(from, to)
			w.n[frames].Add(f.Frames)
			w.n[lost].Add(f.Lost)
			w.n[reordered].Add(f.Reordered)
			w.n[duplicated].Add(f.Duplicated)
			w.n[corrupted].Add(f.Corrupted)
		}
	}
}
