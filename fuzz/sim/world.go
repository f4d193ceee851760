package sim

import (
	"container/heap"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

const (
	// maxVirtual bounds a scenario. A scenario that takes longer counts as hung.
	maxVirtual = 300 * time.Second
	// maxQuiet bounds the time from the last completion until no side sends anymore.
	maxQuiet = 5 * time.Second
	// maxTurns bounds a scenario in which time hardly passes.
	maxTurns = 20_000_000
	// lookAgain is when a frame for a stopped host is delivered again.
	lookAgain = 5 * time.Microsecond
)

// Options configure Run.
type Options struct {
	Seed  uint64
	Trace io.Writer // every frame, completion and event; nil: none
}

// Result describes what happened in a scenario.
type Result struct {
	Seed    uint64
	Hash    uint64        // digest of every frame, completion and instant
	Virtual time.Duration // duration
	Watched uint64        // WRITEs whose bytes became visible in the right order

	// RC connections with and without selective repeat.
	Selective, GoBackN uint64
	Packets            uint64 // processed by both engines
	Frames             uint64 // handed to the link
	Bytes              uint64 // payload sent
	Ops                uint64 // work requests completed, receives included
	Failures           uint64 // connections that failed
	Statuses           map[roce.Status]uint64
	Opcodes            map[roce.WCOpcode]uint64 // of successful completions
	Crimes             map[string]uint64
	Counters           [2]roce.Counters
}

// failure ends a scenario.
type failure struct{ error }

// Run runs the scenario of one seed. An error says which check failed.
func Run(o Options) (res Result, err error) {
	w := &world{
		sc: drawScenario(o.Seed), rng: rand.New(rand.NewPCG(o.Seed, 2)), out: o.Trace,
		res: &Result{Seed: o.Seed, Statuses: map[roce.Status]uint64{},
			Opcodes: map[roce.WCOpcode]uint64{}, Crimes: map[string]uint64{}},
	}
	defer func() {
		res = *w.res
		switch p := recover().(type) {
		case nil:
		case failure:
			err = fmt.Errorf("at %v: %w", w.elapsed(), p.error)
		default:
			err = fmt.Errorf("at %v: panic: %v\n%s", w.elapsed(), p, debug.Stack())
		}
	}()
	w.build()
	w.loop()
	w.finish()
	return
}

// world is two hosts and the link between them.
type world struct {
	sc     scenario
	rng    *rand.Rand
	link   *loopback.Link
	hosts  [2]*host
	conns  []*conn
	timers timerHeap
	seq    int
	turns  int
	nextID uint64
	flaps  int
	qps    uint64 // created, in pairs
	ranOut int    // times that the retries of a connection ran out without a reason
	digest uint64
	out    io.Writer
	res    *Result
}

// host is a device with its queues.
type host struct {
	*endpoint.Endpoint

	w       *world
	i       int
	port    *loopback.Port
	dev     *roce.Device
	srq     *sharedQueue
	source  *region // what is sent, and READ by peers; it must not be written
	shared  *region // counters that all connections add to
	added   [sharedWords]counter
	regions []*region
	sides   map[roce.QPN]*side
	recvs   map[uint64]*recv
	busy    int64 // does not run until then
	events  map[roce.EventKind]uint64

	completions, flushed, failed uint64
}

func (w *world) failf(f string, args ...any) {
	panic(failure{fmt.Errorf(f, args...)})
}

func (w *world) must(err error, f string, args ...any) {
	if err != nil {
		w.failf("%s: %v", fmt.Sprintf(f, args...), err)
	}
}

func (w *world) now() int64 { return w.link.Now() }

func (w *world) elapsed() time.Duration {
	if w.link == nil {
		return 0
	}
	return time.Duration(w.link.Now()) - time.Second
}

// note mixes a value into the digest.
func (w *world) note(vs ...uint64) {
	for _, v := range vs {
		w.digest = (w.digest ^ v) * 0x100000001b3
		w.digest ^= w.digest >> 29
	}
}

func (w *world) build() {
	sc := &w.sc
	c := testbed.Config{
		Virtual: true, Seed: sc.seed, MTU: sc.linkMTU,
		Link: loopback.Config{Queue: sc.queue, Poison: sc.poison},
	}
	for i := range c.Device {
		r := rand.New(rand.NewPCG(sc.seed, uint64(10+i)))
		c.Device[i] = []roce.Option{roce.WithSelectiveRepeat(true),
			roce.WithExpert(roce.Expert{Rand: r.Uint64, MaxWindow: sc.window,
				MaxReorderMemory: sc.reorder[i]}),
			roce.WithClasses(sc.classes.configs[i])}
		if rate := sc.classes.linkRate[i]; rate > 0 {
			c.Device[i] = append(c.Device[i], roce.WithLinkRate(rate))
		}
	}
	if w.out != nil {
		c.Wrap = func(i int,
			p driver.Port) driver.Port {
			return &tracePort{Port: p.(*loopback.Port), w: w, i: i}
		}
	}
	bed, err := testbed.New(c)
	w.must(err, "testbed")
	w.link = bed.Link
	for i := range w.hosts {
		w.hosts[i] = w.newHost(i, bed.Dev[i])
		w.must(w.link.SetPlan(i, 1-i, sc.plans[i]), "plan")
		if b := sc.necks[i]; b != nil {
			w.must(w.link.SetBottleneck(i, *b), "bottleneck")
		}
	}
	w.tracef("scenario %+v", *sc)
	for i := range sc.conns {
		w.conns = append(w.conns, w.newConn(&sc.conns[i]))
	}
	if sc.stalls {
		w.after(time.Millisecond, w.stall)
	}
	if sc.flaps {
		w.after(time.Millisecond, w.flap)
	}
}

func (w *world) newHost(i int, dev *roce.Device) *host {
	h := &host{
		w: w, i: i, port: w.link.Port(i), dev: dev, sides: map[roce.QPN]*side{},
		recvs:  map[uint64]*recv{},
		events: map[roce.EventKind]uint64{},
	}
	c := endpoint.Config{QPs: -1, SendCQ: cqDepth}
	if oneIn(w.rng, 2) {
		c.RecvCQ = cqDepth
	}
	var err error
	h.Endpoint, err = endpoint.New(dev, c)
	w.must(err, "endpoint")
	h.newSource()
	h.shared = h.newRegion(8*sharedWords, roce.LocalWrite|roce.RemoteAtomic)
	h.srq = h.newSRQ()
	return h
}

// newSource registers the noise itself.
func (h *host) newSource() {
	g := &region{h: h, mem: noise, want: pristine, n: len(noise), alive: true}
	var err error
	g.mr, err = h.PD.RegisterMR(noise, roce.RemoteRead,
		roce.WithIOVA(drawAddr(h.w.rng, len(noise))))
	h.w.must(err, "register the source")
	h.source = g
}

// stall stops a host for a while.
func (w *world) stall() {
	h := w.hosts[w.rng.IntN(2)]
	h.busy = w.now() + w.rng.Int64N(int64(maxStall))
	w.tracef("host %d stops for %v", h.i, time.Duration(h.busy-w.now()))
	w.after(time.Duration(w.rng.Int64N(int64(20*time.Millisecond))), w.stall)
}

// flap takes one port down for a moment.
func (w *world) flap() {
	if w.flaps++; w.flaps > 5 {
		return
	}
	p := w.hosts[w.rng.IntN(2)].port
	p.SetUp(false)
	w.after(time.Duration(w.rng.Int64N(int64(maxFlap))), func() { p.SetUp(true) })
	w.after(time.Duration(w.rng.Int64N(int64(20*time.Millisecond))), w.flap)
}

// loop runs until all connections have done their work.
func (w *world) loop() {
	for !w.done() {
		w.step("with work left")
		if w.elapsed() > maxVirtual {
			w.failf("not done after %v: %s", maxVirtual, w.open())
		}
	}
}

// step processes everything at one instant, or moves to the next one.
func (w *world) step(when string) {
	if w.turns++; w.turns > maxTurns {
		w.failf("%d turns: a host is busy forever: %s", w.turns, w.open())
	}
	fired := w.fire()
	if w.turn() || fired {
		w.link.Advance(time.Duration(1 + w.rng.Int64N(w.sc.cpu)))
		return
	}
	next, ok := w.next()
	if !ok {
		w.failf("nothing more will happen, %s: %s", when, w.open())
	}
	w.link.AdvanceTo(next)
}

// turn runs both hosts in random order.
func (w *world) turn() bool {
	first, did := w.rng.IntN(2), false
	for i := range w.hosts {
		h := w.hosts[(first+i)%2]
		if h.busy > w.now() {
			continue
		}
		did = h.dev.Progress() > 0 || did
		for _, c := range w.conns {
			c.sides[1-h.i].look()
		}
		did = h.reap() || did
	}
	return did
}

// next returns the next instant at which something is due.
func (w *world) next() (int64, bool) {
	now, at := w.now(), int64(math.MaxInt64)
	away := false
	for _, h := range w.hosts {
		if h.busy > now {
			away = true
			at = min(at, h.busy)
			continue
		}
		if t, ok := h.dev.NextTimeout(); ok {
			if t <= now {
				w.failf("host %d: a timer is due, but Progress found nothing to do", h.i)
			}
			at = min(at, t)
		}
	}
	if t, ok := w.link.NextEvent(); ok {
		if t <= now {
			if !away {
				w.failf("a frame has arrived but no host has received it")
			}
			t = now + int64(lookAgain)
		}
		at = min(at, t)
	}
	if len(w.timers) > 0 {
		at = min(at, w.timers[0].at)
	}
	return at, at != math.MaxInt64
}

// done reports whether every connection has ended.
func (w *world) done() bool {
	for _, c := range w.conns {
		if !c.ended {
			return false
		}
	}
	return true
}

func (w *world) open() string {
	out := ""
	for i, c := range w.conns {
		if !c.ended {
			out += fmt.Sprintf("\nconnection %d %s", i, c)
		}
	}
	return out
}

// timer is an event that the scenario schedules.
type timer struct {
	at  int64
	seq int
	f   func()
}

type timerHeap []timer

func (t timerHeap) Len() int      { return len(t) }
func (t timerHeap) Swap(i, j int) { t[i], t[j] = t[j], t[i] }
func (t timerHeap) Less(i, j int) bool {
	return t[i].at < t[j].at || t[i].at == t[j].at && t[i].seq < t[j].seq
}
func (t *timerHeap) Push(x any) { *t = append(*t, x.(timer)) }
func (t *timerHeap) Pop() any {
	last := (*t)[len(*t)-1]
	*t = (*t)[:len(*t)-1]
	return last
}

func (w *world) after(d time.Duration, f func()) {
	w.seq++
	heap.Push(&w.timers, timer{w.now() + int64(d), w.seq, f})
}

// fire runs what is due.
func (w *world) fire() bool {
	did := false
	for len(w.timers) > 0 && w.timers[0].at <= w.now() {
		heap.Pop(&w.timers).(timer).f()
		did = true
	}
	return did
}

// randomDelay returns a delay that is usually short.
func (w *world) randomDelay(most time.Duration) time.Duration {
	if oneIn(w.rng, 3) {
		return 0
	}
	return time.Duration(w.rng.Int64N(int64(most)) >> w.rng.IntN(6))
}

// posted returns how many of n work requests were accepted.
func posted(err error, n int) int {
	var pe *roce.PostError
	switch {
	case err == nil:
		return n
	case errors.As(err, &pe):
		return pe.Posted
	}
	return 0
}
