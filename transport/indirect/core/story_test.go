package core

import (
	"hash/fnv"
	"math/rand/v2"
	"testing"
)

// runSeed runs one seed.
func runSeed(t testing.TB, seed uint64, log func(string, ...any)) (uint64, [2]Counters, Time, error) {
	sum := fnv.New64a()
	s := &sim{t: t, rng: rand.New(rand.NewPCG(seed, 7)), log: log, hash: sum, now: 1}
	s.loss, s.dup, s.frp = []float64{0, 0.05, 0.3, 0.6}[s.rng.IntN(4)], 0.1, []float64{0, 0.1,
		0.5}[s.rng.IntN(3)]
	s.total = 1 + s.rng.IntN(60)
	if s.rng.IntN(6) == 0 {
		s.hopeless = 0.2
	}
	if s.rng.IntN(5) == 0 {
		s.dies = Time(s.rng.IntN(3000))
	}
	patience := Time(80000)
	if s.rng.IntN(20) == 0 {
		s.hopeless, s.dies, patience, s.freezes = 0, 0, 2*simFreeze, Time(s.rng.IntN(2000))
	}
	slots := s.rng.IntN(simSlots + 1)
	for i := range s.hosts {
		c := Config{
			Dynamic: s.rng.IntN(5) > 0, Entries: 1 << s.rng.IntN(4), Timeout: 80,
			Patience: patience, Silence: 400000,
			PeerSlots: slots, PeerSlot: simSlot, PeerKey: keySlots, Slots: slots, Slot: simSlot,
			Segment:  simSegment,
			FirstTID: TID(s.rng.Uint32()),
		}
		if i == 1 {
			c.Entries = s.hosts[0].m.cfg.Entries
		}
		if s.rng.IntN(2) == 0 {
			c.FirstTID = ^TID(0) - TID(s.rng.IntN(40))
		}
		m, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		s.hosts[i] = &simHost{id: i, m: m, transfers: map[TID]*simTransfer{},
			naps: s.rng.IntN(3) == 0}
	}
	s.run()
	return sum.Sum64(), [2]Counters{s.hosts[0].m.Counters, s.hosts[1].m.Counters}, s.now, s.err
}

const (
	simEnd    = Time(60e6)
	simFreeze = Time(300000) // three quarters of Silence; 3750 timeouts
)

func (s *sim) run() {
	for s.err == nil {
		busy := false
		for _, h := range s.hosts {
			if !h.failed && h.posted < s.total && s.rng.IntN(3) > 0 && s.now >= h.frozen {
				s.post(h)
			}
			busy = busy || h.m.Busy() > 0 || (h.posted < s.total && !h.failed)
		}
		for _, h := range s.hosts {
			if h.runs(s.now) {
				s.turn(h)
				if h.naps {
					h.frozen = s.now + Time(s.rng.IntN(200))
				}
			}
		}
		next := Never
		if s.q.Len() > 0 {
			next = s.q.Next()
		}
		for _, h := range s.hosts {
			next = min(next, max(h.m.Timeout(), h.frozen))
			if len(h.inbox) > 0 {
				next = min(next, h.frozen)
			}
		}
		if !busy && s.q.Len() == 0 {
			break
		}
		if busy {
			next = min(next, s.now+500) // users return and post
		}
		if next == Never {
			break
		}
		if s.now = max(next, s.now); s.now > simEnd {
			s.fail("no end")
		}
		if s.dies > 0 && s.now >= s.dies {
			s.say("the connection dies")
			s.kill()
			s.dies = 0
		}
		if s.freezes > 0 && s.now >= s.freezes {
			h := s.hosts[s.rng.IntN(2)]
			s.say("%d stands still", h.id)
			h.frozen, s.freezes = s.now+simFreeze, 0
		}
		for s.q.Len() > 0 && s.q.Next() <= s.now {
			s.q.Take()()
		}
		for _, h := range s.hosts {
			if h.runs(s.now) {
				h.m.HandleTimeout(s.now)
			}
		}
	}
	s.settle()
}

// settle checks that no side has unfinished work at the end.
func (s *sim) settle() {
	for _, h := range s.hosts {
		s.turn(h)
	}
	for _, h := range s.hosts {
		for _, x := range h.transfers {
			if !x.finished {
				s.fail("%08x of host %d never ended: %+v", x.tid, h.id, x)
			}
			if x.registered {
				s.fail("%08x of host %d is still registered", x.tid, h.id)
			}
		}
		if h.m.Counters.ParkedBytes != 0 {
			s.fail("host %d: %d bytes are still parked", h.id, h.m.Counters.ParkedBytes)
		}
		if !h.failed && len(h.m.slots) != h.m.cfg.PeerSlots {
			s.fail("host %d has %d of %d slots back", h.id, len(h.m.slots), h.m.cfg.PeerSlots)
		}
		for i := range h.m.ownSlots {
			if h.m.ownSlots[i].busy {
				s.fail("host %d: slot %d is still taken", h.id, i)
			}
		}
	}
}

func TestSim(t *testing.T) {
	if *simSeed >= 0 {
		if _, _, _, err := runSeed(t, uint64(*simSeed), t.Logf); err != nil {
			t.Fatal(err)
		}
		return
	}
	seeds := *simSeeds
	if testing.Short() {
		seeds = 300
	}
	var sum Counters
	for seed := range seeds {
		_, c, _, err := runSeed(t, seed, nil)
		if err != nil {
			t.Fatalf("seed %d: %v\nreplay: go test ./transport/indirect/core -run 'TestSim$' -core.seed=%d -v", seed, err, seed)
		}
		for _, c := range c {
			sum.Add(&c)
		}
	}
	// A simulation that never meets a case proves nothing about it.
	for name, n := range map[string]uint64{
		"direct": sum.Direct, "indirect": sum.Indirect, "late answers": sum.LateAnswers,
		"full": sum.BufferFull, "straight": sum.Straight,
		"parked": sum.Parked, "read direct": sum.ReadDirect, "read indirect": sum.ReadIndirect,
		"dropped":  sum.Dropped,
		"orphaned": sum.Orphaned, "failed": sum.Failed, "stale": sum.Stale,
	} {
		if n < seeds/50 {
			t.Errorf("%s: only %d in %d seeds", name, n, seeds)
		}
	}
	t.Logf("%+v", sum)
}

// TestReplay checks that the same seed gives the same run.
func TestReplay(t *testing.T) {
	for seed := range uint64(40) {
		a, ca, ta, _ := runSeed(t, seed, nil)
		b, cb, tb, _ := runSeed(t, seed, nil)
		if a != b || ca != cb || ta != tb {
			t.Fatalf("seed %d: %x and %x", seed, a, b)
		}
	}
}
