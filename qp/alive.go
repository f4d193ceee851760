package qp

import "github.com/gorxe/gorxe/bth"

// PutKeepAlive writes a packet that any responder answers: an RDMA WRITE of zero bytes, which names
// no memory (IBA C9-88), with the PSN before the oldest unacknowledged packet. The responder takes
// it for a duplicate, does not execute it and sends an ACK (IBA 9.7.5.1.3). So it needs no slot of
// the send queue, no PSN and no access right of the peer's QP. b holds the packet up to the ICRC,
// at least MinBuffer bytes.
//
// It returns 0 if the QP cannot send it: it is not an RC QP in RTS, or has packets outstanding, so
// that its own retries detect a dead peer. Only the owner may call it.
func (q *QP) PutKeepAlive(b []byte) (n, netLen int) {
	if q.typ != RC || q.State() != RTS || q.una != q.max || q.ambiguousAck() {
		return 0, 0
	}
	rest, netLen := q.header(b, bth.RCWriteOnly, q.una-1, true, 0)
	info := bth.RCWriteOnly.Info()
	bth.PutRETH(rest[info.RETH:], 0, 0, 0)
	q.eng.c.SentPkts++
	q.eng.classes[q.Class()].SentPkts++
	return netLen + int(info.HeaderLen), netLen
}

// ambiguousAck reports whether the answer to PutKeepAlive might be mistaken for the ACK of a packet
// that is sent meanwhile. Before it has executed its first request, the kernel's rxe acknowledges
// PSN 0xffffff instead of the PSN before the first one.
func (q *QP) ambiguousAck() bool {
	first := q.attr.SQPSN
	return q.una == countBase+uint64(first) && first > maxKeepAlivePSN
}

// maxKeepAlivePSN is the largest starting PSN of a QP that can send keepalives before its first
// request has been acknowledged. The distance to 0xffffff is more than a QP can have outstanding
// until then, see firstWindow.
const maxKeepAlivePSN bth.PSN = psnMask - 1<<15

// StartPSN makes a starting PSN of a random number. A QP that starts with it can send keepalives at
// any time.
func StartPSN(random uint64) bth.PSN { return bth.PSN(random % uint64(maxKeepAlivePSN+1)) }

// Contact returns numbers that change when the peer's packets arrive: requests that were executed
// and packets that were acknowledged. answered reports whether anything else arrived from the peer
// since the previous call, such as the answer to a keepalive. Only the owner may call it.
func (q *QP) Contact() (requests, acks uint64, answered bool) {
	answered, q.contact = q.contact, false
	return q.epsn, q.una, answered
}

// Abandon moves an RC QP to ERR because its peer does not answer keepalives. Outstanding work
// requests are flushed. Only the owner may call it.
func (q *QP) Abandon() {
	if st := q.State(); q.typ != RC || st == Err || st == Reset {
		return
	}
	q.cause = RetryExcErr
	q.eng.c.RetryExceeded++
	q.eng.event(Event{Kind: EventQPFatal, QP: q})
	q.toErr()
}

// Cause returns the first status other than Success and WRFlushErr with which a work request of the
// QP completed since RESET, or RetryExcErr after Abandon; otherwise Success. Only the owner may
// call it.
func (q *QP) Cause() Status { return q.cause }
