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
	inRuns   int // packets of PollRun
	counters Counters
	states   []string // after each packet; "": others were built with it
}

// packets writes all packets of a run, the last one first.
func (r *Run) packets() [][]byte {
	packets := make([][]byte, r.Packets)
	for i := r.Packets - 1; i >= 0; i-- {
		b := make([]byte, r.Len)
		copy(b[len(r.Header):], r.Put(b, i))
		packets[i] = b
	}
	return packets
}

// sends returns what end i sends now. It uses PollRun for up to run packets where it may.
func (w *world) sends(i int, q *QP, run int) (s sentBy) {
	e := w.ends[i]
	e.HandleDoorbells(w.now)
	for next := 0; e.HasTransmit(w.now); {
		if next > 0 && run > 0 {
			r := e.PollRun(w.now, run, 8192)
			s.inRuns += r.Packets
			s.packets = append(s.packets, r.packets()...)
			s.states = append(s.states, make([]string, r.Packets-1)...)
			next -= r.Packets
		} else {
			buf := make([]byte, 8192)
			tx := e.PollTransmit(w.now, buf)
			if tx == nil {
				break
			}
			copy(buf[tx.PayloadAt:tx.Len], tx.Payload)
			e.Copied()
			s.packets = append(s.packets, buf[:tx.Len])
			next = tx.Next
		}
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

// PollRun makes the packets that PollTransmit would have made, and leaves the same state.
func TestPollRun(t *testing.T) {
	for _, c := range []struct {
		name   string
		op     Op
		window int
		runs   bool
		sges   func(e *end) []SGE
		inRuns bool // PollRun is used
		pace   pacer
	}{
		{name: "WRITE", op: OpWrite, window: 256, runs: true, inRuns: true,
			sges: func(e *end) []SGE { return []SGE{e.sge(3, 40<<10+1)} }},
		{name: "SEND", op: OpSend, window: 256, runs: true, inRuns: true,
			sges: func(e *end) []SGE { return []SGE{e.sge(64, 40<<10)} }},
		{name: "SEND with immediate", op: OpSendImm, window: 256, inRuns: true,
			sges: func(e *end) []SGE { return []SGE{e.sge(64, 20<<10)} }},
		{name: "READ", op: OpRead, window: 256, runs: true, inRuns: true,
			sges: func(e *end) []SGE { return []SGE{e.sge(1, 50<<10+1)} }},
		{name: "a turn is shorter than the message", op: OpWrite, window: 256, inRuns: true,
			sges: func(e *end) []SGE { return []SGE{e.sge(0, 60<<10)} }},
		{name: "a window of 20 packets", op: OpWrite, window: 20, runs: true, inRuns: true,
			sges: func(e *end) []SGE { return []SGE{e.sge(0, 60<<10)} }},
		{name: "a window of 2 packets", op: OpWrite, window: 2, runs: true,
			sges: func(e *end) []SGE { return []SGE{e.sge(0, 60<<10)} }},
		{name: "pieces of several packets", op: OpWrite, window: 256, runs: true, inRuns: true,
			sges: func(e *end) []SGE {
				return []SGE{e.sge(0, 5000), {}, e.sge(9000, 9000), e.sge(1, 8192)}
			}},
		{name: "pieces of less than a packet", op: OpWrite, window: 256, runs: true,
			sges: func(e *end) []SGE {
				return []SGE{e.sge(0, 1000), e.sge(900, 1000), e.sge(1, 1000), e.sge(7, 1000)}
			}},
		{name: "pacing permits 10 packets", op: OpWrite, window: 256, runs: true, inRuns: true,
			pace: pacer{at: 500, burst: 10_400, perKB: 1000},
			sges: func(e *end) []SGE { return []SGE{e.sge(0, 60<<10)} }},
		{name: "pacing permits one packet", op: OpWrite, window: 256, runs: true,
			pace: pacer{at: 9_900, burst: 10_000, perKB: 1000},
			sges: func(e *end) []SGE { return []SGE{e.sge(0, 60<<10)} }},
		{name: "two packets", op: OpWrite, window: 256, runs: true,
			sges: func(e *end) []SGE { return []SGE{e.sge(0, 2048)} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got [3]sentBy
			for i, run := range []int{0, 1, 1000} {
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
				got[i] = w.sends(from, q, run)
				for k, b := range got[i].packets { // keys, QPNs and addresses of memory differ
					p := &bth.Packet{}
					must(t, p.Parse(b[bth.MaxNetHeader-4:]))
					got[i].packets[k] = fmt.Appendf(nil, "%v %v %v %x", p.Info.Name, p.BTH.PSN(),
						p.BTH.AckReq(), p.Payload)
				}
			}
			for i, g := range got[1:] {
				g.compare(t, got[0], i)
				if (g.inRuns > 0) != c.inRuns {
					t.Errorf("PollRun made %d packets, want any: %v", g.inRuns, c.inRuns)
				}
			}
		})
	}
}

// compare reports an error unless the packets and the known states are those of want.
func (s sentBy) compare(t *testing.T, want sentBy, i int) {
	t.Helper()
	if len(s.packets) != len(want.packets) {
		t.Fatalf("%d: %d packets, want %d", i, len(s.packets), len(want.packets))
	}
	for k := range want.packets {
		if !bytes.Equal(s.packets[k], want.packets[k]) {
			t.Fatalf("%d: packet %d is %.60s, want %.60s", i, k, s.packets[k], want.packets[k])
		}
		if s.states[k] != "" && s.states[k] != want.states[k] {
			t.Fatalf("%d: after packet %d: state %s, want %s", i, k, s.states[k], want.states[k])
		}
	}
	if s.counters != want.counters {
		t.Errorf("%d: counters %+v, want %+v", i, s.counters, want.counters)
	}
}

// PollRun returns nothing if it must not be called, or if the packets do not fit.
func TestPollRunRefuses(t *testing.T) {
	w := newWorld(t, 3, func(cfg *Config) { cfg.Runs = true })
	q, _ := w.pair(RC)
	va, key := w.ends[1].remote(0)
	e := w.ends[0]
	if r := e.PollRun(0, 9, 8192); r != nil {
		t.Errorf("PollRun() before PollTransmit = %+v, want nil", r)
	}
	w.post(q, SendWR{Op: OpWrite, SGEs: []SGE{e.sge(0, 5120)}, RemoteAddr: va, RKey: key})
	e.HandleDoorbells(0)
	if tx := e.PollTransmit(0, make([]byte, 8192)); tx.Next != 3 {
		t.Fatalf("Next = %d after the first of 5 packets, want 3", tx.Next)
	}
	if r := e.PollRun(0, 9, 1024); r != nil {
		t.Errorf("PollRun() with short buffers = %+v, want nil", r)
	}
	if r := e.PollRun(0, 0, 8192); r != nil {
		t.Errorf("PollRun() for no packet = %+v, want nil", r)
	}
	for _, c := range [][2]int{{2, 2}, {9, 1}} {
		if r := e.PollRun(0, c[0], 8192); r == nil || r.Packets != c[1] {
			t.Errorf("PollRun() for %d packets = %+v, want %d packets", c[0], r, c[1])
		}
	}
	if r := e.PollRun(0, 9, 8192); r != nil {
		t.Errorf("PollRun() after the last one = %+v, want nil", r)
	}
}

// In these states each packet needs all checks.
func TestNoPollRun(t *testing.T) {
	for _, c := range []struct {
		name string
		// prepare prepares the QP, which has sent a packet of a WRITE of 20 packets if started.
		started bool
		prepare func(w *world, q *QP)
		inline  int // bytes of a WRITE; 0: 20 packets
	}{
		{"a scoreboard is open", false, func(_ *world, q *QP) { q.openScoreboard() }, 0},
		{"a retransmission", true, func(w *world, q *QP) {
			w.sends(0, q, 0)
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
func TestNoPollRunForRepeatedRead(t *testing.T) {
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
