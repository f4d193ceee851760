package model

import (
	"fmt"
	"math/rand/v2"
)

// Load is a heavy load: every QP always has messages to send.
type Load struct {
	QPs    int
	MRs    int    // QP q writes to MR q mod MRs
	Window int    // prefetch window in QPs; 0 means no prefetching
	Random bool   // no queues: the next QP is random, for a NIC whose order is unknown
	Seed   uint64 // of the random order
	Units  bool   // no pipeline: Params.Units turns look up their resources independently
}

// Rate is the result of a load.
type Rate struct {
	Mops    float64        // million messages per second
	HitRate [Kinds]float64 // share of lookups that found their entry, present or requested
	PCIe    float64        // used share of the PCIe rate
}

// The minimum of turns before and during the measurement, in total and per QP.
const (
	warmTurns    = 2000
	warmRounds   = 2
	warmRandom   = 8 // in random order: then all QPs but one in 3000 had a turn
	measureTurns = 4000
)

// Run returns the message rate of a NIC under load.
func Run(p *Params, l Load) (*Rate, error) {
	if l.QPs < 1 || l.QPs > MaxQPs || l.MRs < 1 || l.MRs > MaxQPs {
		return nil, fmt.Errorf("%w: a load of %d QPs and %d MRs: choose 1 to %d", ErrParams, l.QPs,
			l.MRs, MaxQPs)
	}
	n, err := newNIC(p, &clock{}, l.QPs, l.MRs, l.Window)
	if err != nil {
		return nil, err
	}
	// The active QPs share the WQE cache. Only the WQEs of posted messages can be read in advance.
	n.ahead = min((p.Posted+n.turn-1)/n.turn, p.Cache[WQE]/l.QPs)
	if l.Units {
		n.units = p.Units
	}
	if l.Random {
		n.ahead = max(n.ahead, 1) // the same QP may be next
		rng := rand.New(rand.NewPCG(l.Seed, uint64(l.QPs)))
		n.pick = func() (uint32, bool) { return uint32(rng.IntN(l.QPs)), true }
	} else {
		n.more = n.push
		for q := range l.QPs {
			n.queue.Push(uint32(q))
		}
	}
	turns := 0
	n.sent = func(*job) { turns++ }
	n.advance()
	rounds := warmRounds
	if l.Random {
		rounds = warmRandom
	}
	for warm := max(warmTurns, rounds*l.QPs); turns < warm; {
		n.step()
	}
	start, first, bytes := n.now, turns, n.pcie.bytes
	n.hits, n.misses = [Kinds]int64{}, [Kinds]int64{}
	for last := turns + max(measureTurns, l.QPs); turns < last; {
		n.step()
	}
	return n.rate(start, turns-first, bytes), nil
}

func (n *nic) rate(start span, turns int, bytes int64) *Rate {
	seconds := float64(n.now-start) / 1e12
	r := &Rate{
		Mops: float64(turns*n.turn) / seconds / 1e6,
		PCIe: float64(n.pcie.bytes-bytes) * 8 / float64(n.p.PCIeRate) / seconds,
	}
	for k := range Kinds {
		r.HitRate[k] = float64(n.hits[k]) / float64(max(1, n.hits[k]+n.misses[k]))
	}
	return r
}
