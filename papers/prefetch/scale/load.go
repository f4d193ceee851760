package scale

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/prefetch"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/papers/kit/paper"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce"
)

const (
	pollBatch = 64
	// patience is how long a lane waits for what is under way to complete.
	patience = 10 * time.Second
)

// load is the traffic of one lane.
type load struct {
	w     *world
	lane  *lane
	burst int

	shots      []shot           // a ring: aimed at, to be posted
	next       int              // of shots
	prefetcher *roce.Prefetcher // nil: none
	qp         picker
	mr         picker
	atQP       int // picked for the shot that is aimed next
	atMR       int
	free       int    // bursts that may still be posted
	busy       []bool // by QP: a burst is under way
	done       uint64
	wcs        [pollBatch]roce.WC
	drive      func() // the peer's turn, where one thread drives both
}

// errNothing: not one message was acknowledged.
var errNothing = errors.New("nothing arrived: let other programs on this machine finish, or give it more time by --duration")

// sample is what a lane measured in a round.
type sample struct {
	rate   float64 // Mmsg/s
	misses float64 // of the last-level cache a message; negative: unknown
}

// picker says whose turn it is.
type picker struct {
	n, next int
	random  bool
	state   uint64
}

func newPicker(n int, o order, seed uint64) picker {
	return picker{n: n, random: o == random, state: seed}
}

func (p *picker) pick() int {
	if !p.random {
		i := p.next
		if p.next++; p.next == p.n {
			p.next = 0
		}
		return i
	}
	// xorshift64: cheap enough not to be measured.
	p.state ^= p.state << 13
	p.state ^= p.state >> 7
	p.state ^= p.state << 17
	return int((p.state >> 32) * uint64(p.n) >> 32)
}

const seed = 0x9e3779b97f4a7c15

func newLoad(w *world, l *lane, burst int) *load {
	o := &load{
		w: w, lane: l, burst: burst, free: underWay,
		shots: make([]shot, min(max(l.prefetch, 1), maxHints)),
		qp:    newPicker(l.qps, l.order, seed), mr: newPicker(l.mrs, l.order, seed+1),
	}
	if l.prefetch > 0 {
		o.prefetcher = w.a.dev.NewPrefetcher()
	}
	if l.qps > underWay+len(o.shots)+1 { // atQP
		o.busy = make([]bool, l.qps)
	} else {
		o.free = min(underWay, l.qps*(sendDepth/burst))
	}
	if l.qps == 1 {
		o.free = underWay
	}
	o.look()
	for i := range o.shots {
		o.shots[i].init(burst)
		o.aim(&o.shots[i])
	}
	return o
}

// maxHints is how far ahead of a post its QP is known at most.
const maxHints = 16

// shot is a burst of work requests for one QP.
type shot struct {
	q    *roce.QP
	wrs  []roce.SendWR
	sges []roce.SGE
}

func (s *shot) init(burst int) {
	s.wrs, s.sges = make([]roce.SendWR, burst), make([]roce.SGE, burst)
	for i := range s.wrs {
		s.wrs[i] = roce.SendWR{Op: roce.OpWrite, SGEs: s.sges[i : i+1]}
	}
	s.wrs[burst-1].Flags = roce.Signaled
}

// pick is the next QP that has nothing under way, if there are enough.
func (o *load) pick() int {
	i := o.qp.pick()
	if o.busy == nil {
		return i
	}
	for o.busy[i] {
		i = o.qp.pick()
	}
	o.busy[i] = true
	return i
}

// look picks whom the next shot will be aimed at. With prefetching, this program's own lists are fetched, too.
func (o *load) look() {
	o.atQP = o.pick()
	at := &o.w.a.qps[o.atQP]
	if o.lane.name != nameMRs {
		if o.prefetcher != nil {
			prefetch.Object(at, 1)
		}
		return
	}
	o.atMR = o.mr.pick()
	if o.prefetcher != nil {
		prefetch.Pair(at, &o.w.targets[o.atMR])
	}
}

// aim points a burst at the next QP and at memory. With prefetching, the QP is told that it comes: a program that
// serves many knows a little ahead whom it will serve.
func (o *load) aim(s *shot) {
	i := o.atQP
	for k := range s.wrs {
		if o.lane.name == nameMRs {
			if k > 0 {
				o.atMR = o.mr.pick()
			}
			t := &o.w.targets[o.atMR]
			s.sges[k], s.wrs[k].RemoteAddr, s.wrs[k].RKey = t.src, t.dst, t.key
			continue
		}
		t, at := &o.w.slot, uint64(i*msgSize)
		s.sges[k] = roce.SGE{Addr: t.src.Addr + at, Length: msgSize, LKey: t.src.LKey}
		s.wrs[k].RemoteAddr, s.wrs[k].RKey = t.dst+at, t.key
	}
	s.wrs[o.burst-1].ID = uint64(i)
	s.q = o.w.a.qps[i]
	if o.prefetcher != nil {
		o.prefetcher.Prefetch(s.q, &s.wrs[0])
	}
	o.look()
}

// post fills up what may be under way.
func (o *load) post() error {
	for o.free > 0 {
		s := &o.shots[o.next]
		if err := s.q.PostSend(s.wrs...); err != nil {
			if errors.Is(err, qp.ErrSQFull) { // a few QPs, and chance chose one too often
				return nil
			}
			return err
		}
		o.free--
		o.aim(s)
		if o.next++; o.next == len(o.shots) {
			o.next = 0
		}
	}
	return nil
}

// reap takes completions.
func (o *load) reap() error {
	n := o.w.a.cq.Poll(o.wcs[:])
	for i := range o.wcs[:n] {
		if o.wcs[i].Status != roce.Success {
			return session.StatusError(&o.wcs[i])
		}
		if o.busy != nil {
			o.busy[o.wcs[i].ID] = false
		}
	}
	o.free += n
	o.done += uint64(n * o.burst)
	return nil
}

func (o *load) turn(more bool) error {
	if more {
		if err := o.post(); err != nil {
			return err
		}
	}
	o.w.a.dev.Progress()
	o.drive()
	return o.reap()
}

// goOn takes turns for d.
func (o *load) goOn(d time.Duration) error {
	for start := time.Now(); time.Since(start) < d; {
		if o.w.interrupted.Load() {
			return cli.ErrInterrupted
		}
		if err := o.turn(true); err != nil {
			return err
		}
	}
	return nil
}

// run measures for d, after a warm-up. Nothing is under way when it returns without an error.
func (o *load) run(warmup, d time.Duration, m *missCounter) (s sample, err error) {
	total := o.free
	if err := o.goOn(warmup); err != nil {
		return s, err
	}
	begin, before, missed, used := time.Now(), o.done, m.read(), paper.ThreadTime()
	if err := o.goOn(d); err != nil {
		return s, err
	}
	took, n := time.Since(begin), float64(o.done-before)
	if o.w.link == linkMemory { // one thread does all: what others took of its CPU does not count
		took = paper.ThreadTime() - used
	}
	s = sample{rate: n / took.Seconds() / 1e6, misses: -1}
	if missed >= 0 && n > 0 {
		s.misses = float64(m.read()-missed) / n
	}
	for end := time.Now().Add(patience); o.free < total; {
		if err := o.turn(false); err != nil {
			return s, err
		}
		if time.Now().After(end) {
			return s, fmt.Errorf("%d of %d messages were not acknowledged within %v", total-o.free, total, patience)
		}
	}
	if n == 0 {
		return s, errNothing
	}
	return s, nil
}

// measure runs a lane on threads of its own.
func (w *world) measure(l *lane, burst int, warmup, d time.Duration) (s sample, err error) {
	o := newLoad(w, l, burst)
	o.drive = func() { w.b.dev.Progress() }
	var stop atomic.Bool
	var served chan error
	if w.link == linkVeth {
		o.drive = func() {}
		served = make(chan error, 1)
		go func() { served <- w.serve(&stop) }()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: a pinned thread is not given back
		if err = kit.Pin(w.a.cpu); err != nil {
			return
		}
		m, _ := newMissCounter() // report says why it counts nothing
		defer m.close()
		s, err = o.run(warmup, d, m)
	}()
	<-done
	if served != nil {
		stop.Store(true)
		err = errors.Join(err, <-served)
	}
	return s, err
}

// serve drives the passive end.
func (w *world) serve(stop *atomic.Bool) error {
	runtime.LockOSThread()
	if err := kit.Pin(w.b.cpu); err != nil {
		return err
	}
	for !stop.Load() {
		w.b.dev.Progress()
	}
	return nil
}
