package qp

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// hold says WRITE ONLY packets of n bytes after a gap until one is dropped, and returns how many
// were held.
func (k *talk) hold(n int) int {
	k.t.Helper()
	dropped := k.c.ReorderDrops
	for i := 0; ; i++ {
		if k.say(k.writeTo(i+1, 0, seq(n))); k.c.ReorderDrops > dropped {
			return i
		}
	}
}

// One QP takes at most a third of the engine's memory for held packets. When the memory is used up,
// packets are dropped and not reported, one NAK without a SelACK says so, and in-order packets are
// executed as before.
func TestSelectiveMemoryBound(t *testing.T) {
	k := newSelectiveTalk(t)
	const limit = 96 << 10
	k.pool.limit = limit
	n := k.hold(talkMTU)
	if used := k.Counters().ParkedBytes; used > limit/3 || used < limit/3-1000 {
		t.Errorf("ParkedBytes = %d after %d packets, want just below %d", used, n, limit/3)
	}
	k.say(k.writeTo(n+2, 0, seq(talkMTU)))
	k.hears("NAK PSN sequence error +0 msn=0")
	k.say(k.writeTo(0, 0, seq(8)))
	ps := k.listen()
	if h, ok := bth.ParseSelACK(ps[0].Payload); ok || int(ps[0].BTH.PSN().Sub(k.base)) != n {
		t.Errorf("heard %s with SelACK %x, want an ACK of %d", k.heard(ps[0]), h, n)
	}
	if used := k.Counters().ParkedBytes; used != 0 {
		t.Errorf("ParkedBytes = %d after the gap was filled, want 0", used)
	}
}

// Without any memory, a QP works like one with go-back-N.
func TestSelectiveWithoutMemory(t *testing.T) {
	k := newSelectiveTalk(t)
	k.pool.limit = 1
	k.say(k.writeTo(1, 0, seq(8)), k.writeTo(2, 0, seq(8)))
	k.hears("NAK PSN sequence error +0 msn=0")
	k.say(k.writeTo(1, 0, seq(8)))
	k.hears("NAK PSN sequence error +0 msn=0")
	k.say(k.writeTo(0, 0, seq(8)))
	k.hears("ACK +0 msn=1")
	c := k.Counters()
	k.equal("HeldPkts", c.HeldPkts, uint64(0))
	k.equal("ReorderDrops", c.ReorderDrops, uint64(3))
}

// If nothing can be held, a gap causes one NAK. Duplicates that arrive meanwhile cause ACKs: a NAK
// for each would make the requester send everything again each time.
func TestSelectiveDuplicatesAfterDrop(t *testing.T) {
	k := newSelectiveTalk(t)
	k.say(k.writeTo(0, 0, seq(8)))
	k.hears("ACK +0 msn=1")
	k.pool.limit = 0
	k.say(k.writeTo(2, 16, seq(8)))
	k.hears("NAK PSN sequence error +1 msn=1")
	for i := range 3 {
		k.say(k.writeTo(0, 0, seq(8)))
		k.hears(fmt.Sprintf("ACK +0 msn=1 held dup=%d", i+1))
	}
}

// A QP that holds as much as it can leaves two thirds for other QPs, and all together stay below
// the limit.
func TestSelectiveMemoryIsShared(t *testing.T) {
	k := newSelectiveTalk(t)
	k.pool.limit = 1 << 20
	most := 0
	for i := range 8 {
		k.listen()
		k.renew(RC, func(_ *InitAttr, at *Attr) { at.Selective = true })
		n := k.hold(talkMTU)
		if n < most*9/10 {
			t.Errorf("QP %d holds %d packets, want at least %d", i, n, most*9/10)
		}
		most = n * 2 / 3
		if used := int(k.Counters().ParkedBytes); used > k.pool.limit {
			t.Errorf("ParkedBytes = %d, the limit is %d", used, k.pool.limit)
		}
	}
}

// A packet too far after the gap is dropped. One at the limit costs a bounded amount of memory.
func TestSelectiveSpan(t *testing.T) {
	k := newSelectiveTalk(t)
	k.say(k.writeTo(reorderSpan, 0, seq(8)))
	k.equal("ReorderDrops", k.Counters().ReorderDrops, uint64(1))
	k.hears("NAK PSN sequence error +0 msn=0")
	k.say(k.writeTo(reorderSpan-1, 0, seq(8)))
	k.equal("HeldPkts", k.Counters().HeldPkts, uint64(1))
	if used, most := k.Counters().ParkedBytes, uint64(9*reorderSpan); used > most {
		t.Errorf("ParkedBytes = %d, want at most %d", used, most)
	}
	k.hears("NAK PSN sequence error +0 msn=0 held +131071")
}

// The bitmap ends with the packet that arrived most recently. After a duplicate without AckReq it
// starts with that packet, and after a probe it ends with the last held packet.
func TestSelectiveReportsRange(t *testing.T) {
	k := newSelectiveTalk(t)
	quiet := func(psn int) pkt {
		p := k.write(psn, seq(1))
		p.noAck = true
		return p
	}
	for psn := 2; psn < 2000; psn += 2 {
		k.say(quiet(psn))
	}
	for _, c := range []struct {
		p           pkt
		start, last int
	}{
		{quiet(2001), 1504, 2001},
		{quiet(101), 0, 511},
		{quiet(901), 416, 901},
		{quiet(901), 896, 1407},
		{k.write(901, seq(1)), 1504, 2001},
		{quiet(1901), 1408, 1901},
		{k.write(-1, seq(1)), 1504, 2001},
		{quiet(0), 1505, 2001},
	} {
		k.say(c.p)
		k.now += ackLate
		ps := k.listen()
		if len(ps) != 1 {
			t.Fatalf("packet %d: %d answers, want 1", c.p.psn, len(ps))
		}
		h, ok := bth.ParseSelACK(ps[0].Payload)
		if !ok {
			t.Fatalf("packet %d: %s has no SelACK", c.p.psn, k.heard(ps[0]))
		}
		start, last := int(h.Start().Sub(k.base)), 0
		for a, b := h.Run(0); a < b; a, b = h.Run(b) {
			for i := start + a; i < start+b; i++ {
				if i%2 != 0 && i != 2001 && i != 101 && i != 901 && i != 1901 {
					t.Errorf("packet %d: %d is reported as held", c.p.psn, i)
				}
			}
			last = start + b - 1
		}
		if start != c.start || last > c.last || last < c.last-1 {
			t.Errorf("packet %d: bitmap from %d to %d, want %d to %d", c.p.psn, start, last, c.start,
				c.last)
		}
	}
}

// At most maxExtents messages are recorded. Nothing is placed after a held packet whose message was
// not recorded, even if there is space for other messages again.
func TestSelectiveManyMessages(t *testing.T) {
	k := newSelectiveTalk(t)
	first, second := k.writeParts(0, 0, seq(3*talkMTU)), k.writeParts(203, 0, seq(3*talkMTU))
	k.say(first[0], first[2])
	for i := range 200 {
		k.say(k.writeTo(3+i, 8*i, seq(8)))
	}
	k.say(second[0], second[2])
	const n = maxExtents - 100
	for i := range n {
		k.say(k.writeTo(206+i, 8*i, seq(8)))
	}
	k.placed(0)
	k.say(first[1]) // up to second[0]
	long := k.writeParts(206+n, 8*(n-1), seq(3*talkMTU))
	for i := range long {
		long[i].data = make([]byte, talkMTU)
	}
	k.say(long[0]) // overlaps the last short message
	k.placed(0)
	k.say(second[1])
	k.equal("the memory", k.written(8*(n-1), make([]byte, talkMTU)), true)
	next := k.writeParts(209+n, 0, seq(3*talkMTU))
	k.say(long[2], next[0])
	k.placed(1)
}

// Random packets to a QP with selective repeat neither panic nor leave memory behind, and never
// take more than the limit.
func TestSelectiveSurvivesRandomPackets(t *testing.T) {
	k := newSelectiveTalk(t)
	var ops []bth.Opcode
	for op := range 256 {
		if i := bth.Opcode(op).Info(); i.Known && i.Transport == bth.RC && i.Request {
			ops = append(ops, bth.Opcode(op))
		}
	}
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 5))
		k.renew(RC, func(_ *InitAttr, at *Attr) { at.Selective = true })
		k.pool.limit = 10_000 << r.IntN(10)
		k.fills.most = 1 + r.IntN(8)
		k.recvs(2*talkMTU, 5*talkMTU, 0)
		for range 100 {
			psn := r.IntN(40) - 2
			if r.IntN(50) == 0 {
				psn = r.IntN(1 << 24)
			}
			p := pkt{op: ops[r.IntN(len(ops))], psn: psn, va: k.at(8 * r.IntN(200)), key: k.rkey(),
				n: uint32(r.IntN(8 * talkMTU)), noAck: r.IntN(2) == 0, placement: PlaceGlobal}
			switch r.IntN(20) {
			case 0:
				p.n = r.Uint32()
			case 1:
				p.va = r.Uint64()
			case 2:
				p.key = bth.RKey(r.Uint32())
			}
			if !p.op.Info().Start || r.IntN(3) == 0 || !p.op.Info().End {
				p.data = seq(talkMTU)
			}
			if r.IntN(30) == 0 {
				p.data = seq(r.IntN(4096))
			}
			if p.op == bth.RCAtomicWrite {
				p.data = seq(8 + r.IntN(2))
			}
			if k.say(p); r.IntN(4) == 0 {
				k.listen()
			}
			if used := k.Counters().ParkedBytes; used > uint64(k.pool.limit) {
				t.Fatalf("seed %d: ParkedBytes = %d, the limit is %d", seed, used, k.pool.limit)
			}
			if k.q.State() == Err {
				break
			}
		}
		k.listen()
		k.DestroyQP(k.q)
		k.evs, k.wcs = nil, nil
		for i := 0; k.Filling() && i < 100; i++ {
			k.HandleTimeout(k.now)
		}
		if n := k.Counters().ParkedBytes; n != 0 {
			t.Fatalf("seed %d: ParkedBytes = %d long after DestroyQP, want 0", seed, n)
		}
	}
}

// Peers that make QPs take much memory and give it back, again and again, do not make the engine
// allocate each time. After a pause the engine keeps little.
func TestReorderPoolReusesMemory(t *testing.T) {
	e := &reorderPool{limit: DefaultReorderMemory}
	p := &bth.Packet{BTH: make(bth.BTH, 1000)}
	var rs []*reorder
	round := func() {
		for range 8 {
			r := e.take()
			rs = append(rs, r)
			if !e.reach(r, reorderSpan-1) || !e.park(r, 1, p) {
				t.Fatal("no memory")
			}
			r.set(1)
			r.held, r.top = 1, 2
		}
		for _, r := range rs {
			e.give(r)
		}
		rs = rs[:0]
	}
	round()
	if n := testing.AllocsPerRun(20, round); n != 0 {
		t.Errorf("%v allocations per round, want 0", n)
	}
	full := e.cached
	if e.trim(reorderIdle - 1); e.cached != full {
		t.Errorf("cached = %d before the pause is over, want %d", e.cached, full)
	}
	if e.trim(reorderIdle); e.cached > idleReorderMemory || e.cached == 0 {
		t.Errorf("cached = %d after a pause, want at most %d", e.cached, idleReorderMemory)
	}
}

// Whatever QPs take and give back, the memory in use and the memory that was given back stay below
// the limit, and their sums are right.
func TestReorderPoolAccounting(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 6))
		e := &reorderPool{limit: 20_000 << r.IntN(8)}
		p := &bth.Packet{BTH: make(bth.BTH, 5000)}
		p.BTH = p.BTH[:parkedSizes[len(parkedSizes)-1]]
		long := p.BTH
		var users []*reorder
		for range 300 {
			switch r.IntN(10) {
			case 0, 1:
				if q := e.take(); q != nil {
					users = append(users, q)
				}
			case 2:
				if n := len(users); n > 0 {
					i := r.IntN(n)
					e.give(users[i])
					users[i] = users[n-1]
					users = users[:n-1]
				}
			default:
				if len(users) == 0 {
					continue
				}
				q := users[r.IntN(len(users))]
				psn := q.from + uint64(r.IntN(100<<r.IntN(6)))
				p.BTH = long[:1+r.IntN(len(long))]
				if e.reach(q, psn-q.from) && !q.holds(psn) && e.park(q, psn, p) {
					q.set(psn)
					q.held++
					q.top = max(q.top, psn+1)
				}
				if q.insert(e, extent{first: psn, end: psn + 1}); r.IntN(3) == 0 {
					q.discard(e, q.from+uint64(r.IntN(300)))
					q.top = max(q.top, q.from)
				}
			}
			used := 0
			for _, q := range users {
				used += q.bytes
			}
			if e.used != used || e.used+e.cached > e.limit || e.cached != e.unused() {
				t.Fatalf("seed %d: used = %d, want %d; cached = %d, want %d; the limit is %d", seed,
					e.used, used, e.cached, e.unused(), e.limit)
			}
		}
	}
}

// unused returns the sum of the memory that was given back.
func (e *reorderPool) unused() (n int) {
	for _, r := range e.states {
		n += r.size()
	}
	for i, list := range e.rings {
		n += len(list) * ringBytes(1<<i)
	}
	for i, list := range e.packets {
		for h := list.first; h != nil; h = h.next {
			n += parkedSizes[i] + parkedOverhead
		}
	}
	return n
}

// In steady state, gaps do not allocate: messages of one packet are parked, long ones are placed.
func TestSelectiveAllocatesNothing(t *testing.T) {
	k := newSelectiveTalk(t)
	psn, b := k.base, make([]byte, bth.HeaderLen+bth.RETHLen+talkMTU)
	p := &bth.Packet{Src: k.ends[0].gid, Dst: k.gid, NetHeader: grhZeros[:]}
	var buf [8192]byte
	say := func(op bth.Opcode, psn bth.PSN) {
		bth.PutBTH(b, &bth.BTHFields{Opcode: op, PKey: bth.DefaultPKey, DestQP: k.q.qpn, PSN: psn})
		n := talkMTU
		if op.Info().RETH != 0 {
			dma := talkMTU
			if !op.Info().End {
				dma = 8 * talkMTU
			}
			bth.PutRETH(b[bth.HeaderLen:], k.at(0), k.rkey(), uint32(dma))
			n += bth.RETHLen
		}
		if err := p.Parse(b[:bth.HeaderLen+n]); err != nil {
			t.Fatal(err)
		}
		k.HandlePacket(k.now, p)
		k.now += ackSoon
		for k.HasTransmit(k.now) && k.PollTransmit(k.now, buf[:]) != nil {
		}
	}
	round := func() {
		ops := [...]bth.Opcode{bth.RCWriteOnly, bth.RCWriteFirst, bth.RCWriteMiddle,
			bth.RCWriteMiddle, bth.RCWriteMiddle, bth.RCWriteMiddle, bth.RCWriteMiddle,
			bth.RCWriteMiddle, bth.RCWriteLast, bth.RCWriteOnly}
		for _, i := range [...]int{0, 1, 3, 4, 6, 9, 7, 8, 2, 5} {
			say(ops[i], psn.Add(uint32(i)))
		}
		psn = psn.Add(uint32(len(ops)))
	}
	for range 5 {
		round()
	}
	before := k.c
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations per round, want 0", n)
	}
	if k.q.epsn != countBase+uint64(k.base)+10*106 || k.c.PlacedPkts == before.PlacedPkts ||
		k.c.HeldPkts-k.c.PlacedPkts == before.HeldPkts-before.PlacedPkts {
		t.Errorf("epsn %d, counters %+v: not all packets were executed, or none held", k.q.epsn, k.c)
	}
}
