package sim

import (
	"math/rand/v2"

	"github.com/gorxe/gorxe/roce"
)

// Rates in bytes per second. They are so high that nothing waits for tokens longer than the retries
// of a peer last: a QP's READ responses wait for its own packets, those of a FIFO class for the
// messages of all its QPs.
const (
	minQPRate       = 5_000_000
	minClassRate    = 100_000_000
	bigMinQPRate    = 20_000_000
	bigMinClassRate = 400_000_000
)

// classPlan is what a seed decides about traffic classes.
type classPlan struct {
	used     bool
	configs  [2][roce.NumClasses]roce.ClassConfig
	linkRate [2]int64 // bits per second; 0: the backlog is what the port reports
	changes  bool     // the class of QPs changes while they are in use
	rng      *rand.Rand
}

// drawClasses draws traffic classes and rates for one of three scenarios. It has its own random
// stream, so it does not change the rest of the scenario.
func drawClasses(sc *scenario) {
	r := rand.New(rand.NewPCG(sc.seed, 4))
	p := &sc.classes
	if p.rng = r; !oneIn(r, 3) {
		return
	}
	p.used, p.changes = true, oneIn(r, 4)
	big := false
	for i := range sc.conns {
		big = big || sc.conns[i].largest == bigOp
	}
	qpRate, classRate := uint64(minQPRate), uint64(minClassRate)
	if big {
		qpRate, classRate = bigMinQPRate, bigMinClassRate
	}
	for host := range p.configs {
		for i := range p.configs[host] {
			p.configs[host][i] = drawClassConfig(r, sc, classRate)
		}
		if oneIn(r, 3) {
			p.linkRate[host] = pick(r, int64(1e9), 10e9, 100e9)
			if sc.clean { // at 1 Gb/s, ACKs may wait for a message longer than timeouts last
				p.linkRate[host] = max(p.linkRate[host], 10e9)
			}
		}
	}
	for i := range sc.conns {
		c := &sc.conns[i]
		class := r.IntN(roce.NumClasses)
		for side := range 2 {
			if c.options[side].Class = class; oneIn(r, 4) {
				c.options[side].Class = r.IntN(roce.NumClasses)
			}
			if !sc.clean && oneIn(r, 4) {
				c.rate[side] = qpRate + r.Uint64N(100*qpRate)
				c.burst[side] = r.IntN(1 << 16)
			}
		}
	}
}

// drawClassConfig draws the configuration of a class. With a clean link, waiting for tokens may
// make peers send probes, which are not allowed there.
func drawClassConfig(r *rand.Rand, sc *scenario, rate uint64) (c roce.ClassConfig) {
	c.Order = pick(r, roce.RoundRobin, roce.FIFO)
	c.Preempt = pick(r, 0, 0, 1+r.IntN(64<<10), roce.PreemptAtEnd)
	if !sc.clean && oneIn(r, 3) {
		c.Rate = rate + r.Uint64N(10*rate)
		c.Burst = r.IntN(1 << 18)
	}
	return c
}

// maybeReclass moves the QP to another class.
func (s *side) maybeReclass() {
	p := &s.w.sc.classes
	if !p.changes || !oneIn(p.rng, 8) || s.q.State() != roce.StateRTS {
		return
	}
	a := &roce.Attr{Class: uint8(p.rng.IntN(roce.NumClasses))}
	s.w.must(s.q.Modify(a, roce.AttrClass), "change the class")
}

// checkClasses checks that no class has sent more than all together, and that only those in use
// have sent anything.
func (w *world) checkClasses(h *host) {
	c := h.dev.Counters()
	for i, n := range c.Classes {
		if n.SentPkts > c.SentPkts || n.SentBytes > c.SentBytes {
			w.failf("host %d: class %d has sent %d packets, %d bytes; all have sent %d, %d", h.i, i,
				n.SentPkts, n.SentBytes, c.SentPkts, c.SentBytes)
		}
		if i > 0 && !w.sc.classes.used && n.SentPkts+n.Preemptions > 0 {
			w.failf("host %d: class %d is not in use and has sent %d packets", h.i, i, n.SentPkts)
		}
	}
}
