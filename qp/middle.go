package qp

import (
	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

// Middle packets of a message or READ response differ only in PSN and payload. For one of them,
// PollTransmit makes all checks and says in Transmit.Next for how many of the following ones they
// hold: nothing ends there, waits, or asks for an ACK. PollNext writes these.

// middle describes the packets that PollNext writes for the QP that is being served.
type middle struct {
	rest   []byte  // their payloads; if the memory is of another process, what was loaded of it
	size   uint32  // of one payload: the path MTU
	answer *answer // to a READ; nil: they are requests
	op     bth.Opcode
}

// PollNext is PollTransmit for a packet that follows the last one, if its Transmit.Next is not 0.
// Between the two calls, the caller makes no other call to the engine except Copied. The result is
// nil if b is too short.
func (e *Engine) PollNext(now Time, b []byte) *Transmit {
	tx, m, q := &e.tx, &e.middle, e.serving
	if tx.Next <= 0 || len(b) < q.maxPacketLen() {
		return nil
	}
	tx.Next--
	psn := q.nxt
	if a := m.answer; a != nil {
		psn = a.psn + uint64(a.sent)
		q.mayResend(now, a) // it counts what is sent for the first time
		a.advance()
	} else {
		q.sq.curPkt++
		q.sent(now, 1, false)
	}
	_, netLen := q.header(b, m.op, psn, false, 0)
	at := netLen + bth.HeaderLen
	tx.Len = at + int(m.size)
	e.undefer()
	e.copyOut(b[at:tx.Len], at, m.rest[:m.size])
	m.rest = m.rest[m.size:]
	q.countSent(m.size)
	e.quantumLeft -= uint32(tx.Len)
	e.c.SentPkts++
	return tx
}

// following prepares for PollNext after a packet that does not end its message or READ response. It
// returns Transmit.Next.
func (q *QP) following(now Time) int {
	if q.owes && q.hasAnswer(now) {
		return q.followingAnswers()
	}
	s := &q.sq
	w, mtu := s.at(s.cur), q.mtu.Load()
	if q.win.repairing || q.nxt != q.max {
		return 0
	}
	// The packet that fills the window asks for an ACK.
	n := min(int(w.npkts-1-s.curPkt), q.space()-1, int(q.lastAsked+q.win.ackInterval()-q.nxt))
	if q.win.modeled && q.cc.perKB != 0 {
		n = min(n, q.paceable(now, mtu))
	}
	// Inline data has no SGEs.
	mem, _ := q.eng.contiguous(q.pd, s.sgesAt(s.cur), s.curPkt*mtu, uint32(max(n, 0))*mtu, 0)
	return q.eng.follow(middle{rest: mem, size: mtu, op: opcodes[RC][w.op][0]})
}

// followingAnswers does the same after a packet of the answer to a READ.
func (q *QP) followingAnswers() int {
	if q.answers.empty() {
		return 0
	}
	a, mtu := &q.answers.list[q.answers.first], q.mtu.Load()
	if a.again {
		return 0
	}
	n, off := a.npkts-a.sent-1, a.sent*mtu // without the last one
	mem, owner := q.remoteBytes(a.key, a.va+uint64(off), n*mtu, mr.RemoteRead)
	if owner != nil {
		mem = mem[:min(len(mem), int(max(a.loaded, off)-off))]
	}
	return q.eng.follow(middle{rest: mem, size: mtu, answer: a, op: bth.RCReadResponseMiddle})
}

// follow prepares for m. It returns the number of packets that the turn of the QP permits.
func (e *Engine) follow(m middle) int {
	e.middle = m
	turn := (e.quantumLeft - 1) / (bth.MaxNetHeader + bth.HeaderLen + m.size)
	return min(len(m.rest)/int(m.size), int(turn))
}
