package sim

import (
	"math"
	"time"

	"github.com/gorxe/gorxe/roce"
)

// crimes are errors of a side, or accidents. Each returns the operations to post and dooms the
// connection.
func crimes() []crime {
	return []crime{
		{"bad rkey", (*side).badKey},
		{"out of bounds", (*side).outOfBounds},
		{"no right", (*side).noRight},
		{"misaligned atomic", (*side).misaligned},
		{"SEND too long", (*side).tooLong},
		{"source dies", (*side).sourceDies},
		{"target dies", (*side).targetDies},
		{"target dies under READs", (*side).readTargetDies},
		{receivesDied, (*side).receivesDie},
		{"to ERR", (*side).toErr},
		{"peer goes", (*side).peerGoes},
		{"dead key", (*side).deadKey},
		{"invalidated key", (*side).invalidatedKey},
		{"dead window", (*side).deadWindow},
		{"landing dies", (*side).landingDies},
	}
}

const receivesDied = "receives die"

type crime struct {
	name string
	do   func(*side) []*op
}

// commitCrime picks one. On unreliable QPs only the source can be deregistered.
func (s *side) commitCrime() []*op {
	k := pick(s.w.rng, crimes()...)
	if s.c.cfg.typ != roce.RC && k.name != "source dies" {
		return nil
	}
	ops := k.do(s)
	if s.c.doomed != "" {
		s.c.doomed = k.name
		s.w.res.Crimes[k.name]++
		s.w.tracef("side %d commits: %s", s.i, k.name)
	}
	return ops
}

// doom marks the connection; commitCrime sets the final name.
func (s *side) doom() { s.c.doomed = "doomed" }

// access makes a WRITE, READ or atomic on an address that must be refused.
func (s *side) access(addr uint64, key roce.RKey, n int, want roce.Status) []*op {
	r := s.w.rng
	o := &op{s: s, crime: true, allow: []roce.Status{want}}
	o.wr.Op = pick(r, roce.OpWrite, roce.OpWriteImm, roce.OpRead, roce.OpFetchAdd, roce.OpCmpSwap)
	if want == roce.RemInvReqErr {
		o.wr.Op = pick(r, roce.OpFetchAdd, roce.OpCmpSwap)
	}
	if o.atomic() {
		n = 8
		if want == roce.RemAccessErr {
			addr = (addr + 7) &^ 7
		}
	}
	if !o.writes() {
		at, ok := s.landing(n)
		if !ok {
			return nil
		}
		o.land = []piece{{s.land, at, n}}
		o.wr.SGEs = sges(o.land)
	} else {
		s.from(o, n)
		if o.wr.Op == roce.OpWriteImm {
			s.arrives(o)
		}
	}
	// reconcile must not expect an effect, so the target belongs to no region.
	o.target = &region{h: s.peer.h}
	o.wr.RemoteAddr, o.wr.RKey = addr, key
	s.doom()
	return []*op{o}
}

func (s *side) badKey() []*op {
	addr, key := s.dst.remote(0)
	switch s.w.rng.IntN(3) {
	case 0:
		key ^= 1 << s.w.rng.IntN(32)
	case 1:
		key = roce.RKey(s.dst.mr.LKey())
	case 2:
		key = 0
	}
	return s.access(addr, key, 1+s.w.rng.IntN(3000), roce.RemAccessErr)
}

func (s *side) outOfBounds() []*op {
	r := s.w.rng
	g := pick(r, s.dst, s.words)
	addr, key := g.remote(0)
	n := 8 * (1 + r.IntN(400))
	switch r.IntN(5) {
	case 0:
		addr -= 8
	case 1:
		addr += uint64(g.n) - uint64(n) + 8
		n += 8
	case 2:
		addr += uint64(g.n)
	case 3:
		addr = math.MaxUint64 - 7 // addr + n wraps around
		n += 8
	case 4:
		addr += 1 << 40
	}
	ops := s.access(addr, key, n, roce.RemAccessErr)
	for _, o := range ops {
		if o.atomic() && g == s.dst || !o.atomic() && g == s.words {
			o.wr.RKey = key // also refused for its rights, with the same answer
		}
		if o.atomic() {
			o.wr.RemoteAddr = addr &^ 7
			if addr-g.mr.Addr()+8 <= uint64(g.n) {
				o.wr.RemoteAddr = (g.mr.Addr() + uint64(g.n) + 7) &^ 7
			}
		}
	}
	return ops
}

// noRight accesses memory that does not allow it.
func (s *side) noRight() []*op {
	addr, key := s.words.remote(0) // atomics only
	ops := s.access(addr, key, 8*privateWords, roce.RemAccessErr)
	for _, o := range ops {
		if o.atomic() {
			o.wr.RemoteAddr, o.wr.RKey = s.peer.h.source.remote(0)
			o.wr.RemoteAddr = (o.wr.RemoteAddr + 7) &^ 7
		}
	}
	return ops
}

func (s *side) misaligned() []*op {
	addr, key := s.words.remote(0)
	return s.access(addr+1+uint64(s.w.rng.IntN(7)), key, 8, roce.RemInvReqErr)
}

func (s *side) tooLong() []*op {
	most := s.c.cfg.slot
	if s.c.cfg.srq[1-s.i] {
		most = s.peer.h.srq.slots.size
	}
	o := &op{s: s, crime: true, allow: []roce.Status{roce.RemInvReqErr}}
	o.wr.Op = pick(s.w.rng, roce.OpSend, roce.OpSendImm)
	s.from(o, most+1+s.w.rng.IntN(5000))
	s.arrives(o)
	s.doom()
	return []*op{o}
}

// sourceDies deregisters memory from which a SEND or WRITE is being sent.
func (s *side) sourceDies() []*op {
	r := s.w.rng
	n := 1 + r.IntN(max(1, min(s.c.cfg.slot, s.c.cfg.largest, int(s.h.dev.Info().ActiveMTU))))
	g := s.region(s.h, n, 0)
	o := &op{s: s, allow: []roce.Status{roce.LocProtErr}}
	o.wr.Op = roce.OpSend
	s.makeSend(o)
	o.data = bytesOf(g)
	o.wr.Inline = nil
	o.wr.SGEs = sges(split(r, g, 0, n, 3))
	s.c.live(s.w.randomDelay(pace), g.close)
	s.doom()
	return []*op{o}
}

// bytesOf returns what is sent from a region of this side, which does not change.
func bytesOf(g *region) []byte { return g.model(0, g.n) }

// targetDies deregisters the target of WRITEs in flight. What arrived before stays; nothing arrives
// later.
func (s *side) targetDies() []*op {
	r := s.w.rng
	g := s.region(s.peer.h, 1000+r.IntN(50000), roce.LocalWrite|roce.RemoteWrite)
	var ops []*op
	for at := 0; at < g.n && len(ops) < batch; {
		n := min(g.n-at, 1+r.IntN(20000))
		o := &op{s: s, target: g, toff: at, allow: []roce.Status{roce.RemAccessErr}}
		o.wr.Op = roce.OpWrite
		s.from(o, n)
		o.wr.RemoteAddr, o.wr.RKey = g.remote(at)
		ops = append(ops, o)
		at += n
	}
	s.c.live(s.w.randomDelay(pace), func() {
		g.close()
		freeze(g, s.pending)
	})
	s.doom()
	return ops
}

// freeze copies to the model what WRITEs in flight brought to a region before it was closed.
func freeze(g *region, pending []*op) {
	g.alive = true
	var on []*op
	for _, o := range pending {
		if o.target == g {
			on = append(on, o)
		}
	}
	settleWrites(on)
	for _, o := range on {
		o.gone = true
	}
	g.alive = false
}

// readTargetDies deregisters memory that is being READ.
func (s *side) readTargetDies() []*op {
	r := s.w.rng
	n := 1 + r.IntN(min(s.land.n-1, 100000))
	g := s.region(s.peer.h, n, roce.RemoteRead)
	at, ok := s.landing(n)
	if !ok {
		return nil
	}
	o := &op{s: s, target: g, data: bytesOf(g), allow: []roce.Status{roce.RemAccessErr}}
	o.wr.Op = roce.OpRead
	o.land = split(r, s.land, at, n, 4)
	o.wr.SGEs = sges(o.land)
	o.wr.RemoteAddr, o.wr.RKey = g.remote(0)
	s.c.live(s.w.randomDelay(pace), g.close)
	s.doom()
	return []*op{o}
}

// landingDies deregisters the local destination of a READ.
func (s *side) landingDies() []*op {
	r := s.w.rng
	g := s.region(s.h, 1+r.IntN(50000), roce.LocalWrite)
	o := &op{s: s, target: s.peer.h.source, allow: []roce.Status{roce.LocProtErr}}
	o.wr.Op = roce.OpRead
	o.toff = r.IntN(len(noise) - g.n)
	o.data = noise[o.toff : o.toff+g.n]
	o.land = split(r, g, 0, g.n, 4)
	o.wr.SGEs = sges(o.land)
	o.wr.RemoteAddr, o.wr.RKey = o.target.remote(o.toff)
	s.c.live(s.w.randomDelay(pace), func() {
		acceptAll(o.land) // what arrived so far; nothing may arrive from here on
		g.close()
	})
	s.doom()
	return []*op{o}
}

// receivesDie deregisters the memory of the peer's receives.
func (s *side) receivesDie() []*op {
	if s.c.cfg.srq[1-s.i] {
		return nil
	}
	p := s.peer
	p.deaf = true
	s.c.live(s.w.randomDelay(pace), func() {
		p.slots.g.close()
		acceptAll([]piece{{p.slots.g, 0, p.slots.g.n}}) // a message may have been arriving
	})
	o := &op{s: s}
	o.wr.Op = roce.OpSend
	s.makeSend(o)
	s.doom()
	s.neverForget()
	return []*op{o}
}

// neverForget ends a connection whose failure may go unnoticed.
func (s *side) neverForget() { s.c.live(50*time.Millisecond, func() { s.c.die(0) }) }

// toErr moves the QP to ERR by the user's decision.
func (s *side) toErr() []*op {
	s.w.must(s.q.Modify(&roce.Attr{State: roce.StateErr}, roce.AttrState), "to ERR")
	s.doom()
	s.c.live(s.w.randomDelay(maxStall), func() { s.c.die(0) })
	return nil
}

// peerGoes destroys the peer's QP while packets are in flight.
func (s *side) peerGoes() []*op {
	s.doom()
	s.c.live(s.w.randomDelay(maxStall), func() { s.c.die(0) })
	s.peer.deaf, s.peer.mute = true, true
	s.w.must(s.peer.q.Close(), "close a QP")
	return nil
}

// deadKey uses the key of a deregistered region.
func (s *side) deadKey() []*op {
	g := s.region(s.peer.h, 4096,
		roce.LocalWrite|roce.RemoteWrite|roce.RemoteRead|roce.RemoteAtomic)
	addr, key := g.remote(0)
	g.close()
	return s.access((addr+7)&^7, key, 1+s.w.rng.IntN(4000), roce.RemAccessErr)
}

// invalidatedKey uses a key after the SEND that invalidates it.
func (s *side) invalidatedKey() []*op {
	send := &op{s: s}
	send.wr.Op = roce.OpSendInv
	ops := s.makeInvalidate(send)
	addr, key := send.inv.remote(0)
	bad := s.access(addr, key, send.inv.n, roce.RemAccessErr)
	for _, o := range bad {
		if !o.writes() { // it grants only writing
			o.wr.Op, o.land = roce.OpWrite, nil
			s.from(o, send.inv.n)
		}
	}
	return append(ops, bad...)
}
