package qp

// PathStats describes how an RC QP uses its path. Counts start when the QP was created.
type PathStats struct {
	Selective  bool // selective repeat
	Congestion Congestion

	Window   uint32 // packets that may be in flight
	InFlight uint32 // packets sent and not acknowledged

	RTT, RTTVar Time // smoothed round trip time and its variation, ns; 0: not measured
	MinRTT      Time // of the last seconds; 0: not measured

	// DeliveryRate is the largest rate of the last round trips at which packets arrived, and
	// PacingRate the limit of what the QP sends, in bytes of payload per second. 0 means not
	// measured, or no limit.
	DeliveryRate, PacingRate float64

	Retransmits uint64 // packets sent again
	Spurious    uint64 // of them, packets that were not lost
	Marked      uint64 // data packets received with the ECN mark "congestion experienced"
	SentCNPs    uint64 // congestion notification packets sent
	RcvdCNPs    uint64 // received, unless Congestion is CongestionNone
}

// PathStats returns statistics of the QP.
func (q *QP) PathStats() PathStats {
	s := PathStats{
		Selective: q.attr.Selective, Congestion: q.attr.Congestion,
		Window: q.win.size(), InFlight: uint32(q.max - q.una),
		RTT: q.rec.srtt, RTTVar: q.rec.rttvar,
	}
	if !q.win.modeled {
		return s
	}
	c := q.cc
	s.MinRTT = c.minRTT
	perSecond := 1e9 * float64(q.mtu.Load())
	s.DeliveryRate = max(c.rate[0], c.rate[1]) * perSecond
	if c.perKB > 0 {
		s.PacingRate = 1024 * 1e9 / float64(c.perKB)
	}
	s.Retransmits, s.Spurious = c.retransmits, c.spurious
	s.Marked, s.SentCNPs, s.RcvdCNPs = c.marked, c.sentCNPs, c.rcvdCNPs
	return s
}

// PathRTT returns the shortest round trip time of the last seconds, or the smoothed one if that is
// not known, in ns; 0: not measured.
func (q *QP) PathRTT() Time {
	switch {
	case q.win.modeled && q.cc.minRTT > 0:
		return q.cc.minRTT
	case q.rec.unmeasured():
		return 0
	}
	return q.rec.srtt
}
