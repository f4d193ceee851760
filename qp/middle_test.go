package qp

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// sentBy is what an engine sends in one step, and what it remembers of it.
type sentBy struct {
	packets  [][]byte
	nexts    int // packets of PollNext
	counters Counters
	states   []string // after each packet
}

// sends returns what end i sends now. With next it uses PollNext where it may.
func (w *world) sends(i int, q *QP, next bool) (s sentBy) {
	e := w.ends[i]
	e.HandleDoorbells(w.now)
	var tx *Transmit
	for e.HasTransmit(w.now) {
		buf := make([]byte, 8192)
		if next && tx != nil && tx.Next > 0 {
			s.nexts++
			tx = e.PollNext(w.now, buf)
		} else {
			tx = e.PollTransmit(w.now, buf)
		}
		if tx == nil {
			break
		}
		copy(buf[tx.PayloadAt:tx.Len], tx.Payload)
		e.Copied()
		s.packets = append(s.packets, buf[:tx.Len])
		traffic, _ := q.Traffic()
		state := fmt.Sprint(q.una, q.nxt, q.max, q.lastAsked, q.sq.cur, q.sq.curPkt,
			q.history, traffic.Sent, e.serving == q, e.quantumLeft)
		if q.win.modeled {
			state += fmt.Sprint(q.cc.pacer)
		}
		for _, a := range q.answers.list {
			state += fmt.Sprint(a.psn, a.sent, a.top)
		}
		s.states = append(s.states, state)
	}
	s.counters = *e.Counters()
	return s
}

// PollNext writes the packets that PollTransmit would have written, and leaves the same state.
func TestPollNext(t *testing.T) {
	for _, c := range []struct {
		name   string
		op     Op
		window int
		runs   bool
		sges   func(e *end) []SGE
		nexts  bool // PollNext is used
		pace   pacer
	}{
		{name: "WRITE", op: OpWrite, window: 256, runs: true, nexts: true,
			sges: func(e *end) []SGE { return []SGE{e.sge(3, 40<<10+1)} }},
		{name: "SEND", op: OpSend, window: 256, runs: true, nexts: true,
			sges: func(e *end) []SGE { return []SGE{e.sge(64, 40<<10)} }},
		{name: "SEND with immediate", op: OpSendImm, window: 256, nexts: true,
			sges: func(e *end) []SGE { return []SGE{e.sge(64, 20<<10)} }},
		{name: "READ", op: OpRead, window: 256, runs: true, nexts: true,
			sges: func(e *end) []SGE { return []SGE{e.sge(1, 50<<10+1)} }},
		{name: "a turn is shorter than the message", op: OpWrite, window: 256, nexts: true,
			sges: func(e *end) []SGE { return []SGE{e.sge(0, 60<<10)} }},
		{name: "a window of 20 packets", op: OpWrite, window: 20, runs: true, nexts: true,
			sges: func(e *end) []SGE { return []SGE{e.sge(0, 60<<10)} }},
		{name: "a window of 2 packets", op: OpWrite, window: 2, runs: true,
			sges: func(e *end) []SGE { return []SGE{e.sge(0, 60<<10)} }},
		{name: "pieces of several packets", op: OpWrite, window: 256, runs: true, nexts: true,
			sges: func(e *end) []SGE {
				return []SGE{e.sge(0, 5000), {}, e.sge(9000, 9000), e.sge(1, 8192)}
			}},
		{name: "pieces of less than a packet", op: OpWrite, window: 256, runs: true,
			sges: func(e *end) []SGE {
				return []SGE{e.sge(0, 1000), e.sge(900, 1000), e.sge(1, 1000), e.sge(7, 1000)}
			}},
		{name: "pacing permits 10 packets", op: OpWrite, window: 256, runs: true, nexts: true,
			pace: pacer{at: 500, burst: 10_400, perKB: 1000},
			sges: func(e *end) []SGE { return []SGE{e.sge(0, 60<<10)} }},
		{name: "pacing permits one packet", op: OpWrite, window: 256, runs: true,
			pace: pacer{at: 9_900, burst: 10_000, perKB: 1000},
			sges: func(e *end) []SGE { return []SGE{e.sge(0, 60<<10)} }},
		{name: "two packets", op: OpWrite, window: 256, runs: true,
			sges: func(e *end) []SGE { return []SGE{e.sge(0, 2048)} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got [2]sentBy
			for i := range got {
				w := newWorld(t, 3, func(cfg *Config) {
					cfg.MaxWindow, cfg.Congestion, cfg.Runs = c.window, CongestionNone, c.runs
				})
				q, _ := w.pair(RC, func(_ *InitAttr, a *Attr) { a.PathMTU = 1024 })
				if c.pace.perKB != 0 {
					q.model().pacer = c.pace
				}
				_, _ = rand.NewChaCha8([32]byte{1}).Read(w.ends[0].mem)
				_, _ = rand.NewChaCha8([32]byte{1}).Read(w.ends[1].mem)
				va, key := w.ends[1].remote(0)
				for range 3 {
					w.post(q, SendWR{Op: c.op, SGEs: c.sges(w.ends[0]), RemoteAddr: va, RKey: key})
				}
				from := 0
				if c.op == OpRead {
					w.handle(w.ends[1], w.sent(0)...)
					from, q = 1, w.ends[1].qp
					q.history = new(history)
				}
				got[i] = w.sends(from, q, i == 1)
				for k, b := range got[i].packets { // keys, QPNs and addresses of memory differ
					p := &bth.Packet{}
					must(t, p.Parse(b[bth.MaxNetHeader-4:]))
					got[i].packets[k] = fmt.Appendf(nil, "%v %v %v %x", p.Info.Name, p.BTH.PSN(),
						p.BTH.AckReq(), p.Payload)
				}
			}
			want, got1 := got[0], got[1]
			if (got1.nexts > 0) != c.nexts {
				t.Errorf("PollNext was used %d times, want it used: %v", got1.nexts, c.nexts)
			}
			if len(got1.packets) != len(want.packets) {
				t.Fatalf("%d packets, want %d", len(got1.packets), len(want.packets))
			}
			for k := range want.packets {
				if !bytes.Equal(got1.packets[k], want.packets[k]) {
					t.Fatalf("packet %d is %.60s, want %.60s", k, got1.packets[k], want.packets[k])
				}
				if got1.states[k] != want.states[k] {
					t.Fatalf("after packet %d: state %s, want %s", k, got1.states[k], want.states[k])
				}
			}
			if got1.counters != want.counters {
				t.Errorf("counters %+v, want %+v", got1.counters, want.counters)
			}
		})
	}
}

// PollNext returns nothing if it must not be called, or if the packet does not fit.
func TestPollNextRefuses(t *testing.T) {
	w := newWorld(t, 3, func(cfg *Config) { cfg.Runs = true })
	q, _ := w.pair(RC)
	va, key := w.ends[1].remote(0)
	e := w.ends[0]
	if tx := e.PollNext(0, make([]byte, 8192)); tx != nil {
		t.Errorf("PollNext() before PollTransmit = %+v, want nil", tx)
	}
	w.post(q, SendWR{Op: OpWrite, SGEs: []SGE{e.sge(0, 4096)}, RemoteAddr: va, RKey: key})
	e.HandleDoorbells(0)
	if tx := e.PollTransmit(0, make([]byte, 8192)); tx.Next != 2 {
		t.Fatalf("Next = %d after the first of 4 packets, want 2", tx.Next)
	}
	if tx := e.PollNext(0, make([]byte, 1024)); tx != nil {
		t.Errorf("PollNext() with a short buffer = %+v, want nil", tx)
	}
	for i := range 2 {
		if tx := e.PollNext(0, make([]byte, 8192)); tx == nil || tx.Next != 1-i {
			t.Errorf("PollNext() %d = %+v, want a packet", i, tx)
		}
	}
	if tx := e.PollNext(0, make([]byte, 8192)); tx != nil {
		t.Errorf("PollNext() after the last one = %+v, want nil", tx)
	}
}

// In these states each packet needs all checks.
func TestNoPollNext(t *testing.T) {
	for _, c := range []struct {
		name string
		// prepare prepares the QP, which has sent a packet of a WRITE of 20 packets if started.
		started bool
		prepare func(w *world, q *QP)
		inline  int // bytes of a WRITE; 0: 20 packets
	}{
		{"a scoreboard is open", false, func(_ *world, q *QP) { q.openScoreboard() }, 0},
		{"a retransmission", true, func(w *world, q *QP) {
			w.sends(0, q, false)
			q.nxt = q.una
			q.rewindCursor()
			q.eng.schedule(q)
		}, 0},
		{"inline data", false, func(*world, *QP) {}, 1000},
		{"an ACK that the request may precede", false, func(w *world, q *QP) {
			va, key := w.ends[0].remote(0)
			w.post(w.ends[1].qp, SendWR{Op: OpWrite, Flags: Signaled, RemoteAddr: va, RKey: key,
				SGEs: []SGE{w.ends[1].sge(0, 8)}})
			w.handle(w.ends[0], w.sent(1)...)
			w.now += ackSoon
		}, 0},
	} {
		w := newWorld(t, 3, func(cfg *Config) { cfg.Runs = true })
		q, _ := w.pair(RC, func(ia *InitAttr, a *Attr) { ia.MaxInline, a.PathMTU = 1024, 256 })
		va, key := w.ends[1].remote(0)
		e := w.ends[0]
		wr := SendWR{Op: OpWrite, SGEs: []SGE{e.sge(0, 20*256)}, RemoteAddr: va, RKey: key}
		if c.inline > 0 {
			wr.SGEs, wr.Inline = nil, make([]byte, c.inline)
		}
		if c.started {
			w.post(q, wr)
			e.HandleDoorbells(w.now)
		}
		c.prepare(w, q)
		if !c.started {
			w.post(q, wr)
			e.HandleDoorbells(w.now)
		}
		tx := e.PollTransmit(w.now, make([]byte, 8192))
		if tx == nil || tx.Next != 0 {
			t.Errorf("%s: PollTransmit() = %+v, want Next 0", c.name, tx)
		}
	}
}

// The repetition of a READ response is limited packet by packet.
func TestNoPollNextForRepeatedRead(t *testing.T) {
	k := newTalk(t, RC)
	for i, want := range []int{2, 0} { // of 4 packets, as the first and the last are different
		k.say(k.read(0, 0, 1000))
		k.HandleDoorbells(k.now)
		tx := k.PollTransmit(k.now, make([]byte, 8192))
		if tx == nil || tx.Next != want {
			t.Errorf("READ %d: PollTransmit() = %+v, want Next %d", i, tx, want)
		}
		k.listen()
	}
}
