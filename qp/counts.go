package qp

// QPCounts counts rare events of one QP since it was created or reset.
type QPCounts struct {
	DuplicateRequests uint32 // responder: requests received again, keepalives included
	OutOfSeqRequests  uint32 // responder: requests after a gap
	SentRNR, RcvdRNR  uint32 // RNR NAKs
	SentSeqNAK        uint32 // NAKs for a gap
	RcvdSeqNAK        uint32
	Timeouts          uint32 // Local ACK Timeouts
	Errors            uint32 // completions with a status other than Success and WRFlushErr
	Flushed           uint32 // completions with WRFlushErr
}

// counted returns the counts of the QP. They are allocated for the first event, because most QPs
// never have one.
func (q *QP) counted() *QPCounts {
	if q.rec.counts == nil {
		q.rec.counts = new(QPCounts)
	}
	return q.rec.counts
}

// Counts returns the counts of the QP. Only the owner may call it.
func (q *QP) Counts() QPCounts {
	if q.rec.counts == nil {
		return QPCounts{}
	}
	return *q.rec.counts
}

// Progress returns the number of PSNs that the requester has used and that the peer has
// acknowledged, and the number of PSNs of the peer's requests that were accepted. A READ uses one
// PSN for each packet of its response. They start with the connection. Only the owner may call it.
func (q *QP) Progress() (used, acked, accepted uint64) {
	if first := countBase + uint64(q.attr.SQPSN); q.max >= first {
		used, acked = q.max-first, q.una-first
	}
	if first := countBase + uint64(q.attr.RQPSN); q.epsn >= first {
		accepted = q.epsn - first
	}
	return used, acked, accepted
}
