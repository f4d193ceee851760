package loop

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/qp"
)

// randomPair is a pair of loops with or without runs.
type randomPair struct {
	sides [2]*side
	ports [2]*overlapPort
}

func newRandomPair(t *testing.T, seed uint64, runs bool) *randomPair {
	p := new(randomPair)
	c := pairConfig{selective: seed%2 == 0, runs: true, link: loopback.Config{Seed: seed,
		Plan: loopback.Plan{Loss: 0.005, Duplicate: 0.005, Reorder: 0.005}}}
	c.wrap = func(i int, port driver.Port) driver.Port {
		p.ports[i] = &overlapPort{Port: port, t: t, least: 1}
		if !runs {
			return lookingPort{p.ports[i]} // it gets no runs
		}
		return p.ports[i]
	}
	p.sides[0], p.sides[1] = newPair(t, c)
	random := rand.NewChaCha8([32]byte{byte(seed)})
	for _, s := range p.sides {
		_, _ = random.Read(s.mem)
	}
	return p
}

// work posts a random work request on side i, and receives on the other one.
func (p *randomPair) work(t *testing.T, r *rand.Rand, i int) {
	s, peer := p.sides[i], p.sides[1-i]
	n := r.IntN(memSize / 2)
	if r.IntN(2) == 0 {
		n = r.IntN(3000)
	}
	wr := qp.SendWR{
		Op:         []qp.Op{qp.OpWrite, qp.OpRead, qp.OpSend, qp.OpWriteImm}[r.IntN(4)],
		Flags:      qp.SendFlags(r.IntN(2)) * qp.Signaled,
		SGEs:       []qp.SGE{{Length: uint32(n), LKey: bth.LKey(s.mr.LKey())}},
		RemoteAddr: uint64(r.IntN(memSize / 2)),
		RKey:       bth.RKey(peer.mr.RKey()),
	}
	wr.SGEs[0].Addr = uint64(r.IntN(memSize / 2))
	if wr.Op == qp.OpSend || wr.Op == qp.OpWriteImm {
		sge := qp.SGE{Addr: uint64(r.IntN(memSize / 2)), Length: memSize / 2,
			LKey: bth.LKey(peer.mr.LKey())}
		_, err := peer.qp.PostRecv([]qp.RecvWR{{SGEs: []qp.SGE{sge}}})
		must(t, err)
	}
	_, err := s.qp.Post([]qp.SendWR{wr})
	must(t, err)
	s.Posted(s.qp)
}

// run runs steps of both sides.
func (p *randomPair) run(steps int) {
	for range steps {
		stepBoth(p.sides[0], p.sides[1], time.Microsecond)
	}
}

// sameState expects that side i of a link is in the same state with and without runs.
func sameState(t *testing.T, i int, runs, single *side) {
	t.Helper()
	if !bytes.Equal(runs.mem, single.mem) {
		t.Errorf("side %d: different memory", i)
	}
	if c, d := runs.ctr, single.ctr; c != d {
		t.Errorf("side %d: counters of the loops\n%+v with runs,\n%+v without", i, c, d)
	}
	if c, d := *runs.eng.Counters(), *single.eng.Counters(); c != d {
		t.Errorf("side %d: counters of the engines\n%+v with runs,\n%+v without", i, c, d)
	}
	var got, want [512]qp.WC
	n, m := runs.cq.Poll(got[:]), single.cq.Poll(want[:])
	if n != m || got != want {
		t.Errorf("side %d: completions\n%+v with runs,\n%+v without", i, got[:n], want[:m])
	}
}

// Packets in runs have the effects of single packets, also on a link that loses, repeats and
// reorders some of them.
func TestRunsRandom(t *testing.T) {
	joined, inRuns, framed := 0, 0, 0
	for seed := range uint64(40) {
		pairs := [2]*randomPair{newRandomPair(t, seed, true), newRandomPair(t, seed, false)}
		for round := range 50 {
			for _, p := range pairs {
				r := rand.New(rand.NewPCG(seed, uint64(round)))
				for range r.IntN(4) {
					p.work(t, r, r.IntN(2))
				}
				p.run(r.IntN(200))
			}
			for i := range pairs[0].sides {
				sameState(t, i, pairs[0].sides[i], pairs[1].sides[i])
			}
			if t.Failed() {
				t.Fatalf("seed %d, round %d", seed, round)
			}
		}
		for _, p := range pairs[0].ports {
			joined, inRuns, framed = joined+p.joined, inRuns+p.inRuns, framed+p.framed
		}
	}
	if joined < 10_000 || inRuns < 10_000 || framed > inRuns/2 {
		t.Errorf("the test is too weak: %d packets sent in runs; %d received, %d of them got headers",
			joined, inRuns, framed)
	}
}
