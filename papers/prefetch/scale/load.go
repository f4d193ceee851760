package scale

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/roce"
)

const (
	pollBatch = 64
	// drainTimeout limits the time until all messages in flight have completed.
	drainTimeout = 10 * time.Second
)

// load is the traffic of one lane.
type load struct {
	d     *devices
	lane  *lane
	burst int

	batches    []batch          // a ring of prepared work requests
	next       int              // the next one to post
	prefetcher *roce.Prefetcher // nil without prefetching
	qp, mr     picker
	nextQP     int // picked for the batch that is prepared next
	nextMR     int

	free  int    // bursts that may be posted
	busy  []bool // by QP: a burst is in flight; nil if the lane has too few QPs
	done  uint64 // completed messages
	wcs   [pollBatch]roce.WC
	drive func() // drives the peer if one thread drives both devices
}

// sample is the result of a measurement.
type sample struct {
	rate   float64 // Mmsg/s
	misses float64 // last-level cache misses per message; negative if unknown
}

// picker picks QPs or MRs.
type picker struct {
	n, next int
	random  bool
	state   uint64
}

func newPicker(n int, o Order, seed uint64) picker {
	return picker{n: n, random: o == Random, state: seed}
}

func (p *picker) pick() int {
	if !p.random {
		i := p.next
		if p.next++; p.next == p.n {
			p.next = 0
		}
		return i
	}
	// xorshift64 is cheap enough to not affect the measurement.
	p.state ^= p.state << 13
	p.state ^= p.state >> 7
	p.state ^= p.state << 17
	return int((p.state >> 32) * uint64(p.n) >> 32)
}

const seed = 0x9e3779b97f4a7c15

func newLoad(d *devices, l *lane, burst int) *load {
	o := &load{
		d: d, lane: l, burst: burst, free: inFlight,
		batches: make([]batch, min(max(l.prefetch, 1), maxAhead)),
		qp:      newPicker(l.qps, l.order, seed), mr: newPicker(l.mrs, l.order, seed+1),
	}
	if l.prefetch > 0 {
		o.prefetcher = d.send.Dev.NewPrefetcher()
	}
	const picked = 1 // nextQP
	switch {
	case l.qps > inFlight+len(o.batches)+picked:
		o.busy = make([]bool, l.qps)
	case l.qps > 1:
		o.free = min(inFlight, l.qps*(sendDepth/burst))
	}
	o.pickNext()
	for i := range o.batches {
		o.batches[i].init(burst)
		o.prepare(&o.batches[i])
	}
	return o
}

// post posts as many bursts as may be in flight.
func (o *load) post() error {
	for o.free > 0 {
		b := &o.batches[o.next]
		if err := b.q.PostSend(b.wrs...); err != nil {
			if errors.Is(err, roce.ErrSQFull) { // few QPs in random order: one was picked too often
				return nil
			}
			return err
		}
		o.free--
		o.prepare(b)
		if o.next++; o.next == len(o.batches) {
			o.next = 0
		}
	}
	return nil
}

// reap takes completions.
func (o *load) reap() error {
	n := o.d.send.CQ.Poll(o.wcs[:])
	for i := range o.wcs[:n] {
		if o.wcs[i].Status != roce.Success {
			return endpoint.StatusError(&o.wcs[i])
		}
		if o.busy != nil {
			o.busy[o.wcs[i].ID] = false
		}
	}
	o.free += n
	o.done += uint64(n * o.burst)
	return nil
}

// step drives the devices once and, if more is set, posts before.
func (o *load) step(more bool) error {
	if more {
		if err := o.post(); err != nil {
			return err
		}
	}
	o.d.send.Dev.Progress()
	o.drive()
	return o.reap()
}

// sendFor sends for the time t.
func (o *load) sendFor(t time.Duration) error {
	for start := time.Now(); time.Since(start) < t; {
		if o.d.interrupted.Load() {
			return cli.ErrInterrupted
		}
		if err := o.step(true); err != nil {
			return err
		}
	}
	return nil
}

// run measures for the time t, after a warm-up. If it returns no error, nothing is in flight
// anymore.
func (o *load) run(warmup, t time.Duration, m *missCounter) (s sample, err error) {
	total := o.free
	if err := o.sendFor(warmup); err != nil {
		return s, err
	}
	begin, before, missed, used := time.Now(), o.done, m.read(), kit.ThreadTime()
	if err := o.sendFor(t); err != nil {
		return s, err
	}
	elapsed, n := time.Since(begin), float64(o.done-before)
	if o.d.link == kit.Memory { // one thread: other programs on its CPU do not count
		elapsed = kit.ThreadTime() - used
	}
	s = sample{rate: n / elapsed.Seconds() / 1e6, misses: -1}
	if missed >= 0 && n > 0 {
		s.misses = float64(m.read()-missed) / n
	}
	for end := time.Now().Add(drainTimeout); o.free < total; {
		if err := o.step(false); err != nil {
			return s, err
		}
		if time.Now().After(end) {
			return s, fmt.Errorf("%d of %d messages were not acknowledged within %v",
				total-o.free, total, drainTimeout)
		}
	}
	if n == 0 {
		return s, kit.ErrIdle
	}
	return s, nil
}

// measure runs a lane on its own threads.
func (d *devices) measure(l *lane, burst int, warmup, t time.Duration) (s sample, err error) {
	o := newLoad(d, l, burst)
	o.drive = func() { d.recv.Dev.Progress() }
	var stop atomic.Bool
	var served <-chan error
	if d.link == kit.Veth {
		o.drive = func() {}
		served = kit.GoOnCPU(d.cpus[1], func() error {
			for !stop.Load() {
				d.recv.Dev.Progress()
			}
			return nil
		})
	}
	err = kit.OnCPU(d.cpus[0], func() (err error) {
		m, _ := newMissCounter() // WriteTable reports its error
		defer m.close()
		s, err = o.run(warmup, t, m)
		return err
	})
	if served != nil {
		stop.Store(true)
		err = errors.Join(err, <-served)
	}
	return s, err
}
