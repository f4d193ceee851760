package qp

import (
	"github.com/gorxe/gorxe/bth"
)

// sendUnreliable writes the next packet of a UC or UD QP. Nothing is acknowledged: a work request
// completes when its last packet has been sent.
func (q *QP) sendUnreliable(b []byte) (n, netLen int) {
	s := &q.sq
	if s.cur == s.head.Load() {
		return 0, 0
	}
	w := q.nextWQE()
	if w == nil {
		return 0, 0
	}
	mtu := q.mtu.Load()
	off := s.curPkt * mtu
	length := min(mtu, w.length-off)
	n, netLen, st := q.putData(b, q.sq.cur, q.nxt, off, length, false)
	if st != Success {
		s.curPkt = 0
		q.fail(st)
		return 0, 0
	}
	q.nxt++
	q.una, q.max = q.nxt, q.nxt
	q.countSent(length)
	if s.curPkt++; s.curPkt == w.npkts {
		s.cur, s.curPkt = s.cur+1, 0
		if e := q.eng; e.tx.Payload != nil {
			e.uncopied = q
		} else {
			q.retireSent()
		}
	}
	return n, netLen
}

// retireSent completes the work request whose last packet was sent.
func (q *QP) retireSent() {
	q.retire(Success)
	q.checkDrained()
}

// handleUC processes a packet of an unreliable connection. Any error silently drops the message
// (IBA 9.8.2.2).
func (q *QP) handleUC(now Time, p *bth.Packet) {
	if st := q.State(); st < RTR || st == Err {
		q.eng.c.DropNoQP++
		return
	}
	psn := extend(q.epsn, p.BTH.PSN())
	if psn != q.epsn && q.msg != msgNone {
		q.msg = msgNone // the rest of that message was lost; the next message uses its receive
		q.eng.c.DropSequence++
	}
	q.epsn = psn + 1
	if p.Info.Start {
		q.msg = msgNone
	} else if q.msg == msgNone {
		q.eng.c.DropSequence++
		return
	}
	if why := q.executeUC(p); why != nil {
		q.msg = msgNone
		*why++
	}
}

// executeUC executes a packet like the RC responder. It returns the counter of what went wrong, or
// nil.
func (q *QP) executeUC(p *bth.Packet) *uint64 {
	c := &q.eng.c
	// A message that is too long for its receive is dropped and the receive kept, while RC fails
	// both. On UC, an attacker with a forged address could otherwise use up the receives.
	if p.Info.Op == bth.OpSend {
		if !q.recv.held && !q.takeRecv() {
			return &c.DropNoRecv
		}
		if p.Info.Start {
			q.off = 0
		}
		if uint32(len(p.Payload)) > q.recv.length-q.off {
			return &c.DropLength
		}
	}
	switch q.execute(p) {
	case accept:
		return nil
	case refuseRNR:
		return &c.DropNoRecv
	case refuseAccess:
		c.BadRKey++
		return &c.DropAccess
	case refuseOperation: // an invalid receive, which is a local error (IBA 9.9.3 class A)
		q.toErr()
		return nil
	default:
		return &c.DropLength
	}
}

// handleUD processes a datagram. It checks the Q_Key and takes a receive for 40 bytes of network
// header and the payload (IBA 9.6.1.4, 9.8.3). A datagram that does not fit is dropped and affects
// nothing else.
func (q *QP) handleUD(p *bth.Packet) {
	c := &q.eng.c
	switch st := q.State(); {
	case st < RTR || st == Err:
		c.DropNoQP++
	case p.DETH().QKey() != q.qkey:
		c.DropQKey++
	case !q.recv.held && !q.takeRecv():
		c.DropNoRecv++
	case uint32(len(p.Payload))+GRHLen > q.recv.length:
		c.DropLength++
	default:
		q.deliverUD(p)
	}
}

// deliverUD scatters header and payload. An IPv4 header fills the last 20 of the 40 bytes (RoCEv2
// annex A17.4.5.2).
func (q *QP) deliverUD(p *bth.Packet) {
	grh := q.eng.grh[:]
	clear(grh)
	copy(grh[GRHLen-len(p.NetHeader):], p.NetHeader)
	st := q.scatterRecv(0, grh)
	if st == Success {
		st = q.scatterRecv(GRHLen, p.Payload)
	}
	if st != Success {
		q.failRecv(st)
		q.toErr() // IBA 9.9.3 class A
		return
	}
	q.received(p, WCRecv, uint32(len(p.Payload))+GRHLen)
}
