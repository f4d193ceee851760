package qp

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

// invariants checks the engine's data structures, which must be consistent whatever a peer sends.
func (q *QP) invariants() error {
	s := &q.sq
	tail, head := s.tail.Load(), s.head.Load()
	switch {
	case q.una > q.nxt || q.nxt > q.max:
		return fmt.Errorf("una %d, nxt %d, max %d", q.una, q.nxt, q.max)
	case s.cur-tail > head-tail || s.started-tail > head-tail || s.cur-tail > s.started-tail:
		return fmt.Errorf("tail %d, cur %d, started %d, head %d", tail, s.cur, s.started, head)
	case head-tail > uint32(s.depth):
		return fmt.Errorf("%d in a queue of %d", head-tail, s.depth)
	case q.rdUsed > uint32(q.attr.MaxRdAtomic):
		return fmt.Errorf("%d READs outstanding, %d allowed", q.rdUsed, q.attr.MaxRdAtomic)
	case tail != s.started && s.at(tail).psn+uint64(s.at(tail).npkts) <= q.una:
		return fmt.Errorf("the oldest WQE is acknowledged but not retired")
	case q.typ == RC && q.State() != Err && tail == s.started && q.una != q.max:
		return fmt.Errorf("packets in flight without a WQE")
	case q.recv.held && int(q.recv.nsge) > len(q.recv.sges):
		return fmt.Errorf("%d SGEs held", q.recv.nsge)
	case q.answers.fresh > q.answers.limit || len(q.answers.list) > 2*int(q.answers.limit):
		return fmt.Errorf("%d fresh answers of %d, limit %d", q.answers.fresh, len(q.answers.list),
			q.answers.limit)
	case q.list == inNone && (q.ackOwed || q.nakOwed || !q.answers.empty()):
		return fmt.Errorf("responses are pending, but the QP is on no list")
	case q.State() == RTS && q.typ == RC && q.una != q.nxt && !q.rec.timer.armed &&
		q.rec.timeout > 0 && !(q.win.repairing && q.list == inRunq):
		return fmt.Errorf("packets in flight without a timer")
	}
	if q.win.repairing {
		return q.scoreboardInvariants()
	}
	return nil
}

// scoreboardInvariants checks the counts of a scoreboard against its bitmaps.
func (q *QP) scoreboardInvariants() error {
	b := q.cc.board
	held, lost := uint32(0), uint32(0)
	for p := q.una; p < q.max; p++ {
		switch {
		case b.isHeld(p) && b.isLost(p):
			return fmt.Errorf("packet %d is held and lost", p)
		case b.isHeld(p):
			held++
		case b.isLost(p):
			if lost++; p < b.scan {
				return fmt.Errorf("packet %d is lost, but the search starts at %d", p, b.scan)
			}
		}
	}
	set := uint32(0)
	for i := range b.heldBits {
		set += uint32(bits.OnesCount64(b.heldBits[i] | b.lostBits[i]))
	}
	switch {
	case held != b.held || lost != b.lost || set != held+lost:
		return fmt.Errorf("%d held, %d lost, %d bits, counted %d and %d", b.held, b.lost, set, held,
			lost)
	case int(q.max-q.una) > len(b.slots):
		return fmt.Errorf("%d packets in flight, %d slots", q.max-q.una, len(b.slots))
	case len(b.reads) > int(q.attr.MaxRdAtomic):
		return fmt.Errorf("%d READ requests, %d allowed", len(b.reads), q.attr.MaxRdAtomic)
	}
	for _, t := range b.tracks {
		if int(t.head-t.tail) > len(t.log) || len(t.log) > 2*len(b.slots) {
			return fmt.Errorf("%d transmissions in a log of %d", t.head-t.tail, len(t.log))
		}
	}
	return nil
}

// A peer sends random packets, with PSNs near the right ones and with keys and ranges that are
// sometimes right. There must be no panic, no access outside of what was granted, no more
// completions than posts, and consistent data structures.
func TestHostilePeer(t *testing.T) {
	seeds := 150
	if testing.Short() {
		seeds = 20
	}
	for seed := range seeds {
		hostile(t, uint64(seed))
	}
}

func hostile(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 7))
	typ := Type(r.IntN(int(numTypes)))
	k := newTalk(t, typ)
	keep := seed%2 == 1
	k.KeepAcks(keep)
	const grant = 4096
	m, mem := k.region(k.pd, grant,
		mr.LocalWrite|mr.RemoteWrite|mr.RemoteRead|mr.RemoteAtomic|mr.RemoteInvalidate)
	k.snapshot()
	posted, done := 0, 0
	for step := range 400 {
		what := fmt.Sprintf("seed %d, step %d", seed, step)
		if k.q.State() == Err {
			k.DestroyQP(k.q)
			if typ != RC || r.IntN(3) == 0 {
				typ = Type(r.IntN(int(numTypes)))
			}
			k.collect()
			k.wcs, k.evs, posted, done = nil, nil, 0, 0
			k.renew(typ)
		}
		switch r.IntN(6) {
		case 0:
			op := Op(r.IntN(int(numOps)))
			wr := SendWR{Op: op, Flags: SendFlags(r.IntN(8)) | Signaled,
				SGEs: []SGE{k.sge(8192, r.IntN(2000))}, RemoteAddr: 5, RKey: 1}
			if op >= OpCmpSwap {
				wr.SGEs[0].Length = 8
			}
			p := k.path(1)
			wr.AH = NewAH(&p, nil)
			n, _ := k.q.PostSend([]SendWR{wr})
			posted += n
		case 1:
			n, _ := k.q.PostRecv([]RecvWR{{SGEs: []SGE{k.sge(8192, r.IntN(1000))}}})
			posted += n
		case 2:
			k.now += Time(r.Int64N(10_000_000))
		case 3:
			if keep {
				k.changeKeeping(r, k.q)
			}
		}
		p := k.randomPkt(r, m, grant)
		k.say(p)
		if r.IntN(3) > 0 {
			k.listen()
		}
		k.collect()
		done += len(k.wcs)
		k.wcs, k.evs = nil, nil
		if err := k.q.invariants(); err != nil {
			t.Fatalf("%s: %s %+v: %v", what, k.q.typ, p, err)
		}
		if done > posted {
			t.Fatalf("%s: %d completions of %d posts", what, done, posted)
		}
	}
	k.unchanged([2]int{8192, 10_192}) // only what its own requests and receives refer to
	_ = mem
}

// randomPkt returns a packet that is mostly valid.
func (k *talk) randomPkt(r *rand.Rand, m *mr.MR, grant int) pkt {
	op := bth.Opcode(r.IntN(256))
	for !op.Info().Known ||
		(r.IntN(10) > 0 && op.Info().Transport != [numTypes]bth.Transport{bth.RC, bth.UC,
			bth.UD}[k.q.typ]) {
		op = bth.Opcode(r.IntN(256))
	}
	info := op.Info()
	expected := int(bth.PSN(k.q.epsn & psnMask).Sub(k.base))
	if info.Response {
		expected = int(bth.PSN(k.q.una & psnMask).Sub(k.base))
	}
	p := pkt{op: op, psn: expected + []int{0, 0, 0, 0, 1, -1, 2, r.IntN(40) - 20,
		r.IntN(1 << 24)}[r.IntN(9)],
		key: bth.RKey(m.RKey()), va: m.Addr() + uint64(r.IntN(grant)), noAck: r.IntN(2) == 0,
		qkey: 0x1234, syndrome: bth.Syndrome(r.Uint32())}
	if r.IntN(2) == 0 {
		p.syndrome = bth.ACKNoLimit
	}
	if r.IntN(10) == 0 {
		p.va, p.key = r.Uint64(), bth.RKey(r.Uint32())
	}
	n := []int{0, 1, talkMTU, talkMTU, r.IntN(600)}[r.IntN(5)]
	if !info.HasPayload {
		n = 0
	}
	n = max(n, int(info.MinPayload))
	p.data = make([]byte, n)
	p.n = []uint32{uint32(n), uint32(n), 2 * talkMTU, uint32(r.IntN(2000)), r.Uint32()}[r.IntN(5)]
	return p
}
