package qp

import (
	"errors"
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// A destroyed QP leaves nothing that the engine would use later: no list entry, timer, table entry
// or doorbell. Packets for it are dropped.
func TestDestroyBusyQP(t *testing.T) {
	for _, c := range []struct {
		name string
		prep func(k *talk)
	}{
		{"idle", func(*talk) {}},
		{"doorbell rung", func(k *talk) { k.post(k.wr(1, OpWrite, 8)) }},
		{"requests to send",
			func(k *talk) { k.post(k.wr(1, OpWrite, 8)); k.HandleDoorbells(k.now) }},
		{"requests in flight", func(k *talk) { k.post(k.wr(1, OpWrite, 8)); k.listen() }},
		{"RNR timer running",
			func(k *talk) { k.post(k.wr(1, OpSend, 8)); k.listen(); k.say(rnr(0, 1)) }},
		{"ACK owed", func(k *talk) { k.say(k.write(0, seq(8))) }},
		{"NAK owed", func(k *talk) { k.say(k.write(3, seq(8))) }},
		{"READ being answered", func(k *talk) { k.say(k.read(0, 0, 900)) }},
		{"message half received",
			func(k *talk) { k.recvs(900); k.say(pkt{op: bth.RCSendFirst, data: seq(256)}) }},
		{"in ERR with a doorbell",
			func(k *talk) { must(k.t, k.modify(Err)); k.post(k.wr(1, OpWrite, 8)); k.completes() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newTalk(t, RC)
			c.prep(k)
			k.DestroyQP(k.q)
			k.DestroyQP(k.q) // twice: no effect
			k.snapshot()
			k.say(k.write(0, seq(8)), ack(0), send(1, seq(8)))
			k.hears()
			k.now += 10 * second
			k.hears()
			k.completes()
			k.unchanged()
			if _, ok := k.NextTimeout(); ok {
				t.Error("a timer is still armed")
			}
			k.equal("QPs", k.table.used, 0)
			k.equal("packets to unknown QPs", k.Counters().DropNoQP, uint64(3))
			if _, err := k.q.PostSend([]SendWR{k.wr(9, OpWrite, 8)}); !errors.Is(err, ErrQPState) {
				t.Errorf("PostSend: %v", err)
			}
			if err := k.modify(Init); !errors.Is(err, ErrQPState) {
				t.Errorf("Modify: %v", err)
			}
		})
	}
}

// The QPN can be used again at once, and the old QP's doorbell does not affect the new one.
func TestDestroyThenSameQPN(t *testing.T) {
	k := newTalk(t, RC)
	old := k.q
	k.post(k.wr(1, OpWrite, 8))
	k.DestroyQP(old)
	k.renew(RC, func(a *InitAttr, _ *Attr) { a.QPN = old.qpn })
	k.equal("QPN", k.q.QPN(), old.QPN())
	k.post(k.wr(2, OpWrite, 8))
	k.hears("RDMA WRITE Only +0 dma=8 ask 8B")
	k.say(ack(0))
	k.completes("2 success RDMA_WRITE 8B")
}

// When one of several QPs is destroyed, the lists still contain the others.
func TestDestroyOneOfMany(t *testing.T) {
	w := newWorld(t, 1)
	var as []*QP
	for range 5 {
		a, _ := w.pair(RC)
		as = append(as, a)
	}
	e, peer := w.ends[0], w.ends[1]
	va, key := peer.remote(0)
	for i, a := range as {
		w.post(a, SendWR{ID: uint64(i), Op: OpWrite, Flags: Signaled,
			SGEs: []SGE{e.sge(0, 100_000)}, RemoteAddr: va, RKey: key})
	}
	w.idle(20_000) // everything is in progress
	e.DestroyQP(as[0])
	e.DestroyQP(as[2])
	e.DestroyQP(as[4])
	w.run(second, func() bool { return len(e.wcs) == 2 })
	if e.wcs[0].Status != Success || e.wcs[1].Status != Success {
		t.Errorf("%+v", e.wcs)
	}
}

// QPs that are created and destroyed leave nothing behind, even if they are destroyed while they
// are in the run queue. The run queue does not grow, and has space for all QPs.
func TestDestroyQueuedQP(t *testing.T) {
	w := newWorld(t, 1)
	e := w.ends[0]
	va, key := w.ends[1].remote(0)
	var buf [8192]byte
	stay, _ := w.pair(RC)
	for range 20 * minRunq {
		a, b := w.pair(RC)
		for _, q := range []*QP{stay, a} {
			if _, err := q.PostSend([]SendWR{{Op: OpWrite, SGEs: []SGE{e.sge(0, 8)}, RemoteAddr: va,
				RKey: key}}); err != nil && !errors.Is(err, ErrSQFull) {
				t.Fatal(err)
			}
		}
		e.HandleDoorbells(w.now)
		e.DestroyQP(a)
		w.ends[1].DestroyQP(b)
		for e.PollTransmit(w.now, buf[:]) != nil {
		}
	}
	if e.runqSlots != 1 || e.table.used != 1 || e.runq.Cap() != minRunq {
		t.Errorf("%d run queue slots, %d QPs in the table, a queue of %d", e.runqSlots,
			e.table.used, e.runq.Cap())
	}
}

// An idle QP costs nothing per step: no timer, no list entry, no packet. Its size is known.
func TestIdleQPs(t *testing.T) {
	w := newWorld(t, 1)
	e := w.ends[0]
	const n = 2000
	for range n {
		q, err := e.CreateQP(InitAttr{PD: e.pd, SendCQ: e.cq, RecvCQ: e.cq, SQDepth: 1, RQDepth: 1})
		must(t, err)
		w.connect(q, connectAttr(), 0, 5)
	}
	w.pump(0)
	if e.HasTransmit(w.now) || e.DoorbellPending() || e.nextAck() != Never {
		t.Error("idle QPs are on a list")
	}
	if at, ok := e.NextTimeout(); ok {
		t.Errorf("idle QPs keep a timer, at %d", at)
	}
	// A QP that becomes idle again leaves every list once its timer has expired.
	a, _ := w.pair(RC)
	va, key := w.ends[1].remote(0)
	w.post(a, SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{e.sge(0, 8)}, RemoteAddr: va,
		RKey: key})
	w.wc(0)
	w.idle(second)
	if _, ok := e.NextTimeout(); ok || e.HasTransmit(w.now) || e.Counters().Timers != 0 {
		t.Error("an idle QP still has something to do")
	}
}

// The event ring is bounded. Events that do not fit are lost and counted.
func TestEventLimit(t *testing.T) {
	e := newWorld(t, 1).ends[0]
	for range eventRing + 5 {
		e.event(Event{Kind: EventCommEst})
	}
	n := 0
	for _, ok := e.PollEvent(); ok; _, ok = e.PollEvent() {
		n++
	}
	if n != eventRing || e.Counters().EventsLost != 5 {
		t.Errorf("%d events, %d lost", n, e.Counters().EventsLost)
	}
}

// QPs take turns of quantum bytes: none waits for a long message of another. With Runs they
// are longer, but not if many QPs take turns.
func TestQuantum(t *testing.T) {
	for _, c := range []struct {
		long bool
		qps  int
		turn int
	}{{false, 2, quantum}, {false, 40, quantum}, {true, 2, longTurn}, {true, 8, longTurn},
		{true, 16, longRound / 16}, {true, 40, quantum}} {
		w := newWorld(t, 1, func(cfg *Config) { cfg.Runs = c.long })
		e := w.ends[0]
		va, key := w.ends[1].remote(0)
		for range c.qps {
			q, _ := w.pair(RC, func(_ *InitAttr, at *Attr) { at.PathMTU = 4096 })
			w.post(q, SendWR{Op: OpWrite, SGEs: []SGE{e.sge(0, 200_000)}, RemoteAddr: va, RKey: key})
		}
		e.HandleDoorbells(0)
		var buf [8192]byte
		run, last, turns := 0, bth.QPN(0), []int{}
		for len(turns) <= c.qps {
			tx := e.PollTransmit(0, buf[:])
			if dest := bth.BTH(buf[tx.NetLen:tx.Len]).DestQP(); dest != last {
				turns, run, last = append(turns, run), 0, dest
			}
			run += tx.Len
		}
		// The first QP began when it was alone.
		for _, n := range turns[2:] {
			if n < c.turn || n > c.turn+2*4096 {
				t.Errorf("%+v: a QP sent %d bytes in a row", c, n)
			}
		}
	}
}
