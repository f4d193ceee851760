package core

import (
	"encoding/binary"
	"errors"
	"testing"
)

// script runs a machine with arbitrary calls of its peer and its program.
type script struct {
	t     testing.TB
	m     *Machine
	now   Time
	data  []byte
	acked uint32
	outs  []*Outgoing
	held  []int // blocks that the program has taken
	free  []int // loading blocks
	wait  []int // blocks whose WRITEs were posted
	down  map[int]bool
}

func (s *script) byte() int {
	if len(s.data) == 0 {
		return 0
	}
	b := s.data[0]
	s.data = s.data[1:]
	return int(b)
}

// small returns a number that is often near a limit.
func (s *script) small() uint32 {
	b := uint32(s.byte())
	if b >= 0xf0 {
		return b<<24 | uint32(s.byte())
	}
	return b
}

// body returns the body of a message: small numbers, and some bytes.
func (s *script) body() (b []byte) {
	n := s.byte()
	for range n % 8 {
		b = binary.BigEndian.AppendUint32(b, s.small())
	}
	for range n >> 3 % 4 {
		b = append(b, byte(s.byte()))
	}
	return b
}

// FuzzMachine checks that nothing that a peer sends, at any time, causes a panic, breaks the
// invariants of the pools, or makes a table grow without bound.
func FuzzMachine(f *testing.F) {
	for mode := range byte(numModes) {
		f.Add([]byte{mode, 0, 1, 4, 0xf0, 0, 3, 2, 3, 0, 2, 9, 1, 1, 3, 4, 1, 10, 5, 6, 7, 8, 9})
		f.Add([]byte{mode, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14,
			15})
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 4096 {
			return
		}
		s := &script{t: t, data: data, now: 1, down: map[int]bool{}}
		var err error
		s.m, err = New(1, Config{Mode: Mode(s.byte()) % numModes, BlockSize: 1000, QPs: 2,
			SourceBlocks: 3, Sessions: 3, Silence: 1000})
		if err != nil {
			t.Fatal(err)
		}
		for len(s.data) > 0 {
			s.step()
			s.check()
		}
		if err := s.m.Err(); err != nil && s.m.Poll(s.now, new(Action)) {
			t.Errorf("Poll() = true after %v and its Bye", err)
		}
	})
}

func (s *script) step() {
	m := s.m
	switch op := s.byte(); op % 18 {
	case 0, 1, 2, 3:
		var w builder
		w.begin(Type(s.byte()%int(endTypes+1)), s.acked, m.ctl.outTaken)
		b := append(w.b[:controlHeader:controlHeader], s.body()...)
		binary.BigEndian.PutUint32(b[4:], uint32(len(b)-controlHeader))
		m.HandleControl(s.now, b)
	case 4: // anything at all
		n := min(len(s.data), 40)
		m.HandleControl(s.now, s.data[:n])
		s.data = s.data[n:]
	case 5:
		id := uint32(s.byte()%6) | uint32(s.byte())<<16
		h := Header{Session: s.small(), Seq: s.small(), Len: s.small()}
		m.Arrived(s.now, id, HeaderLen+h.Len+uint32(op/128), &h)
	case 6:
		_ = m.Accept(Pool{Addr: 1, Stride: 2000, Key: 2, Blocks: 4})
	case 7:
		if o, err := m.Open(nil); err == nil {
			s.outs = append(s.outs, o)
		}
	case 8, 9:
		if i, ok := m.GetFree(nil); ok {
			s.free = append(s.free, i)
		}
		if len(s.outs) > 0 && len(s.free) > 0 {
			i := s.free[0]
			if _, err := m.Send(s.outs[s.byte()%len(s.outs)], i, s.small()); err == nil {
				s.free = s.free[1:]
			}
		}
	case 10:
		if len(s.outs) > 0 {
			m.End(s.outs[s.byte()%len(s.outs)])
		}
	case 11:
		if len(s.outs) > 0 {
			m.AbortSession(s.outs[s.byte()%len(s.outs)], errors.New("x"), "x")
		}
	case 12:
		var it Item
		for m.GetReady(&it) {
			if it.Kind == Data {
				s.held = append(s.held, it.Block)
			}
		}
		m.NextMessage()
	case 13:
		if len(s.held) > 0 {
			if err := m.PutReady(s.held[0]); err != nil {
				s.t.Errorf("PutReady() = %v", err)
			}
			s.held = s.held[1:]
		}
	case 14:
		_ = m.RefuseSession(s.small(), "no")
		_ = m.SendMessage([]byte("m"))
	case 15:
		s.now += Time(s.byte())
		m.HandleTimeout(s.now)
	case 16:
		if len(s.wait) > 0 {
			m.WriteDone(s.wait[0])
			s.wait = s.wait[1:]
		}
	case 17:
		qp := s.byte() % 2
		m.QPFailed(qp, nil)
		s.down[qp] = true
	}
	s.poll()
}

// poll does what the machine wants.
func (s *script) poll() {
	var a Action
	for n := 0; s.m.Poll(s.now, &a); n++ {
		if n > 1000 {
			s.t.Fatal("Poll() does not end")
		}
		switch a.Kind {
		case DoControl:
			var c control
			if err := c.parse(a.Msg); err != nil {
				s.t.Fatalf("a message that is not valid: %v", err)
			}
			s.acked++
			s.m.ControlDone()
		case DoWrite:
			if s.down[a.QP] {
				s.t.Fatalf("a WRITE on data QP %d, which has failed", a.QP)
			}
			s.m.Posted(a.Block, true)
			s.wait = append(s.wait, a.Block)
		case DoRead:
			h := Header{Session: s.small(), Seq: s.small(), Len: s.small()}
			s.m.Arrived(s.now, a.Imm, 0, &h)
		case DoCloseQP:
			s.m.QPFailed(a.QP, nil)
			s.m.QPClosed(a.QP)
			s.down[a.QP] = true
		}
	}
}

// check checks the invariants, as far as a peer can affect them.
func (s *script) check() {
	k, o := &s.m.snk, &s.m.src
	n := map[State]int{}
	for i := range k.blocks {
		n[k.blocks[i].state]++
	}
	if n[Free] != k.free.len() || n[Granted] != k.granted || n[Ready] != k.complete ||
		k.free.len()+k.granted+k.complete != len(k.blocks) || k.allowed > k.free.len() {
		s.t.Fatalf("%v, but %d free, %d allowed, %d granted, %d ready", n, k.free.len(), k.allowed,
			k.granted, k.complete)
	}
	const sessions, blocks = 3, 4
	if len(k.sessions) > 2*sessions || k.ready.len() > blocks+4*sessions ||
		k.reads.len() > blocks ||
		k.dirty.len() > 2*sessions || s.m.ctl.in.len() > MessageWindow ||
		o.credits.len() > o.peerBlocks || o.onWire > sessions || len(o.sessions) > sessions {
		s.t.Fatalf("%d sessions, %d ready, %d reads, %d messages, %d credits", len(k.sessions),
			k.ready.len(), k.reads.len(), s.m.ctl.in.len(), o.credits.len())
	}
}
