package qp

import "github.com/gorxe/gorxe/bth"

// Explicit congestion notification (RFC 3168; RoCEv2: IBA annex A17.9). The packets of an RC QP are
// ECN-capable, so a congested switch marks them instead of dropping them. The QP that receives
// marked data answers with congestion notification packets (CNPs), and the QP that receives a CNP
// slows down. All packets of a QP share prepared headers, so its ACKs and CNPs are ECN-capable too,
// which RoCEv2 allows. A mark on them has no effect.

// The two ECN bits of the IPv4 TOS and the IPv6 traffic class.
const (
	ecnMask = 3
	ecnCE   = 3 // congestion experienced
)

// cnpInterval is the shortest time between two CNPs of a QP, in ns. It is that of hardware NICs (N
// in the DCQCN paper).
const cnpInterval Time = 50_000

// cnpTime is a time in units of cnpInterval/8, modulo 2^32, plus 1; 0 means never. It is short
// because every QP has one.
type cnpTime uint32

const cnpUnit = cnpInterval / 8

func cnpTimeOf(t Time) cnpTime { return max(cnpTime(t/cnpUnit)+1, 1) }

// recent reports whether less than cnpInterval has passed from c to now.
func (c cnpTime) recent(now Time) bool {
	return c != 0 && cnpTimeOf(now)-c <= cnpTime(cnpInterval/cnpUnit)
}

// ecnCapable reports whether the packets of the QP are sent as ECN-capable.
func (q *QP) ecnCapable() bool { return q.typ == RC && q.attr.Congestion != CongestionNone }

// changeECT adapts a path that was set before the congestion control changed.
func (q *QP) changeECT() {
	if !q.path.Valid() {
		return
	}
	p := q.fullPath()
	if !q.ecnCapable() {
		p.ClearECT()
	}
	q.setPath(p)
}

// handleMarked handles the mark of a packet that experienced congestion. Marked data leads to a
// CNP. The window of the requester limits the READ responses that the peer sends, so a marked
// response also slows down this QP.
func (q *QP) handleMarked(now Time, p *bth.Packet) {
	q.eng.c.MarkedPkts++
	st := q.State()
	if !p.Info.HasPayload || st < RTR || st == Err {
		return
	}
	q.model().marked++
	if q.cnpOwed || q.lastCNP.recent(now) {
		return
	}
	q.cnpOwed, q.owes = true, true
	q.eng.schedule(q)
	if p.Info.Response && st != RTR {
		q.cnpReceived(now)
	}
}

// sendCNP writes a CNP. It goes before all other packets of the QP.
func (q *QP) sendCNP(now Time, b []byte) (n, netLen int) {
	q.cnpOwed, q.lastCNP = false, cnpTimeOf(now)
	if q.ackOwed && now >= q.ackDue() { // back in its list, the ACK would be behind newer ones
		q.ackNow = true
	}
	q.eng.c.SentCNPs++
	q.model().sentCNPs++
	netLen = q.path.PutFrom(b, q.srcPort)
	bth.PutCNP(b[netLen:], q.pkey, q.destQP)
	return netLen + bth.CNPLen, netLen
}

// handleCNP handles a CNP from the QP's peer.
func (q *QP) handleCNP(now Time) {
	q.eng.c.RcvdCNPs++
	if st := q.State(); st == RTS || st == SQD {
		q.cnpReceived(now)
	}
}
