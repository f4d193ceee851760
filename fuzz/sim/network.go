package sim

import (
	"math/rand/v2"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// drawNetwork draws what concerns the recovery of losses and congestion. It has its own random
// stream, so it does not change the rest of the scenario.
func drawNetwork(sc *scenario) {
	r := rand.New(rand.NewPCG(sc.seed, 3))
	for i := range sc.conns {
		c := &sc.conns[i]
		c.goBackN = pick(r, [2]bool{}, [2]bool{}, [2]bool{}, [2]bool{true, false},
			[2]bool{false, true}, [2]bool{true, true})
		for j := range c.congestion {
			c.congestion[j] = drawCongestion(r, c.largest == bigOp)
		}
	}
	for i := range sc.reorder {
		sc.reorder[i] = pick(r, 0, 0, 0, 1<<20, 64<<10, 4<<10)
	}
	if !sc.clean && oneIn(r, 5) {
		for i := range sc.necks {
			sc.necks[i] = drawNeck(r, sc.linkMTU)
		}
	}
}

// drawCongestion draws an algorithm. Without one, the large operations of a lossy link would be
// sent a thousand times by go-back-N.
func drawCongestion(r *rand.Rand, big bool) roce.CongestionControl {
	c := pick(r, roce.CongestionAdaptive, roce.CongestionAdaptive, roce.CongestionAdaptive,
		roce.CongestionDCQCN, roce.CongestionNone)
	if big && c == roce.CongestionNone {
		c = roce.CongestionAdaptive
	}
	return c
}

// drawNeck draws a bottleneck with a queue of at least four frames.
func drawNeck(r *rand.Rand, mtu int) *loopback.Bottleneck {
	b := &loopback.Bottleneck{Bandwidth: pick(r, int64(1e9), 10e9),
		Queue: mtu * pick(r, 4, 16, 64, 1024)}
	switch r.IntN(3) {
	case 0: // a threshold
		b.MarkMin = 1 + r.IntN(b.Queue)
		b.MarkMax = b.MarkMin
	case 1: // random early detection
		b.MarkMin = r.IntN(b.Queue)
		b.MarkMax = b.MarkMin + r.IntN(b.Queue)
		b.MarkChance = r.Float64()
	}
	return b
}

// agreed reports whether both sides of a connection use selective repeat.
func (c *connConfig) agreed() bool {
	return c.typ == roce.RC && !c.goBackN[0] && !c.goBackN[1]
}

// connected checks that a connected QP uses selective repeat exactly if both sides want it.
func (s *side) connected() {
	at, err := s.q.Query()
	s.w.must(err, "query")
	s.pathMTU = int(at.PathMTU)
	switch {
	case s.i == 0 || s.c.cfg.typ != roce.RC:
	case at.Selective:
		s.w.res.Selective++
	default:
		s.w.res.GoBackN++
	}
	if want := s.c.cfg.agreed(); at.Selective != want {
		s.w.failf("side %d: selective repeat %v, want %v", s.i, at.Selective, want)
	}
}
