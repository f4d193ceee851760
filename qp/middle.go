package qp

import (
	"encoding/binary"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

// Middle packets of a message or READ response differ only in PSN and payload. For one of them,
// PollTransmit makes all checks and says in Transmit.Next for how many of the following ones they
// hold: nothing ends there, waits, or asks for an ACK. PollRun prepares these together.

// middle describes the packets that PollRun may prepare for the QP that is being served.
type middle struct {
	rest   []byte  // their payloads; if the memory is of another process, what was loaded of it
	size   uint32  // of one payload: the path MTU
	answer *answer // to a READ; nil: they are requests
	op     bth.Opcode
}

// Run describes packets that differ only in PSN and payload. Put writes them.
type Run struct {
	Packets int
	Len     int     // of each, bytes
	NetLen  int     // of them, the network headers before the BTH
	QPN     bth.QPN // of the QP that sends them
	Ended   int     // like Transmit.Ended
	// Header has the headers of the first packet. The caller may complete the network headers.
	Header []byte

	psn      uint64 // of the first packet
	payloads []byte
	header   [bth.MaxNetHeader + bth.HeaderLen]byte
}

// PollRun is PollTransmit for up to most packets that follow the last one, if its Transmit.Next is
// not 0. The caller writes all of them with Put before it makes another call to the engine. space
// is the length of its buffers. The result is valid until the next call. It is nil if most is not
// positive, or if space is too short.
func (e *Engine) PollRun(now Time, most, space int) *Run {
	r, m, q := &e.run, &e.middle, e.serving
	n := min(e.tx.Next, most)
	if n <= 0 || space < q.maxPacketLen() {
		return nil
	}
	e.tx.Next -= n
	r.psn, r.Ended = q.nxt, 0
	if a := m.answer; a != nil {
		r.psn = a.psn + uint64(a.sent)
		for range n {
			q.mayResend(now, a) // it counts what is sent for the first time
			a.advance()
		}
		r.Ended = q.ended(a)
	} else {
		q.sq.curPkt += uint32(n)
		q.sent(now, uint64(n), false)
	}
	_, r.NetLen = q.header(r.header[:], m.op, r.psn, false, 0)
	r.Header = r.header[:r.NetLen+bth.HeaderLen]
	r.Packets, r.Len, r.QPN = n, len(r.Header)+int(m.size), q.qpn
	bytes := uint32(n) * m.size
	r.payloads, m.rest = m.rest[:bytes], m.rest[bytes:]
	q.countSent(bytes)
	e.quantumLeft -= uint32(n * r.Len)
	e.c.SentPkts += uint64(n)
	return r
}

// TransmitEnd ends a batch of packets of PollTransmit and PollRun. Like HandleEnd, it forgets
// registered memory.
func (e *Engine) TransmitEnd() {
	e.undefer()
	e.middle, e.run.payloads, e.tx.Next = middle{}, nil, 0
}

// Put writes packet i to b, but for most of its payload. The caller copies the result, which is
// registered memory, to the payload's start. Packets may be written in any order.
func (r *Run) Put(b []byte, i int) (payload []byte) {
	n := copy(b, r.Header)
	binary.BigEndian.PutUint32(b[n-4:], uint32(wirePSN(r.psn+uint64(i))))
	size := r.Len - n
	payload = r.payloads[i*size:][:size]
	return payload[:mr.CopyOutLast(b[n:r.Len], payload)]
}

// following prepares for PollRun after a packet that does not end its message or READ response. It
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
	q.eng.tx.Ended = q.ended(a)
	n, off := a.npkts-a.sent-1, a.sent*mtu // without the last one
	mem, owner := q.remoteBytes(a.key, a.va+uint64(off), n*mtu, mr.RemoteRead)
	if owner != nil {
		mem = mem[:min(len(mem), int(max(a.loaded, off)-off))]
	}
	return q.eng.follow(middle{rest: mem, size: mtu, answer: a, op: bth.RCReadResponseMiddle})
}

// ended returns Transmit.Ended after a packet of a READ response.
func (q *QP) ended(a *answer) int {
	if q.eng.runs && a.sent+1 == a.npkts && q.answers.waiting() > 1 {
		return int(a.npkts)
	}
	return 0
}

// follow prepares for m. It returns the number of packets that the turn of the QP permits.
func (e *Engine) follow(m middle) int {
	e.middle = m
	turn := (e.quantumLeft - 1) / (bth.MaxNetHeader + bth.HeaderLen + m.size)
	return min(len(m.rest)/int(m.size), int(turn))
}
