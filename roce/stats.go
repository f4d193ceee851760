package roce

import (
	"slices"
	"time"

	"github.com/gorxe/gorxe/qp"
)

// QPStats describes how a QP uses the network. It marshals to JSON. The counts start when the QP is
// created or reset; Counters has those of all QPs. Of UC and UD QPs, which get no acknowledgments,
// it has the QPN, Remote, Class, Requested and Acked (both are the packets sent), the bytes, and
// the completions.
type QPStats struct {
	QPN    QPN `json:"qpn"`
	Remote GID `json:"remote"` // the peer; zero before the QP is connected, and of UD

	SelectiveRepeat bool              `json:"selective_repeat"` // both sides use it
	Congestion      CongestionControl `json:"congestion"`
	Class           uint8             `json:"class"` // traffic class

	Window   uint32 `json:"window_packets"`    // packets that may be in flight
	InFlight uint32 `json:"in_flight_packets"` // packets sent and not acknowledged

	RTT    time.Duration `json:"rtt_ns"`     // smoothed round trip time; 0: not measured
	RTTVar time.Duration `json:"rtt_var_ns"` // its mean variation
	MinRTT time.Duration `json:"min_rtt_ns"` // shortest of the last seconds; 0: not measured

	// Rates are in bytes of payload per second. DeliveryRate is the largest rate of the last round
	// trips at which packets arrived at the peer; 0 means not measured, as for a QP that needs only
	// a small window and loses nothing. PacingRate limits what the QP sends; 0 means no limit.
	DeliveryRate float64 `json:"delivery_rate"`
	PacingRate   float64 `json:"pacing_rate"`

	// PSNs since the connection was set up. Each request packet uses one, and a READ one for each
	// packet of its response.
	Requested uint64 `json:"requested_psns"` // of this side's requests, retransmissions excluded
	Acked     uint64 `json:"acked_psns"`     // of these, what the peer has acknowledged
	Accepted  uint64 `json:"accepted_psns"`  // of the peer's requests, accepted in order

	// Payload, also of packets that were sent or received again. Only the first MaxMeters QPs
	// of a Device count it; Metered is false for others.
	SentBytes uint64 `json:"sent_bytes"`
	RcvdBytes uint64 `json:"rcvd_bytes"`
	Metered   bool   `json:"metered"`

	Retransmits uint64 `json:"retransmits"`          // packets sent again
	Spurious    uint64 `json:"spurious_retransmits"` // of them, packets that were not lost
	Marked      uint64 `json:"rcvd_ecn_marked"`      // data packets received with an ECN mark
	CNPsSent    uint64 `json:"sent_cnps"`            // because of such marks
	CNPsRcvd    uint64 `json:"rcvd_cnps"`            // received and not ignored

	Duplicates uint64 `json:"duplicate_request"`   // requests received again, also keepalives
	OutOfSeq   uint64 `json:"out_of_seq_request"`  // requests received after a gap
	SentRNR    uint64 `json:"send_rnr_err"`        // RNR NAKs: no receive was posted
	RcvdRNR    uint64 `json:"rcvd_rnr_err"`        // the same of the peer
	SentSeqNAK uint64 `json:"send_seq_err"`        // NAKs for a gap
	RcvdSeqNAK uint64 `json:"rcvd_seq_err"`        //
	Timeouts   uint64 `json:"completer_retry_err"` // time-outs of the Local ACK Timeout

	// Completions that were not successful. The first error puts the QP into StateErr, and then the
	// other work requests are flushed, so one status describes them.
	Errors  uint64 `json:"completion_errors"` // with another status than WRFlushErr
	Flushed uint64 `json:"flushed"`           // with WRFlushErr
	Cause   Status `json:"cause"`             // of the first error; Success: none
}

// Stats returns statistics of the QP. It costs a round trip to the device's thread.
//
// Errors: ErrClosed.
func (q *QP) Stats() (QPStats, error) {
	if q.closed.Load() {
		return QPStats{}, ErrClosed
	}
	var s QPStats
	err := q.device().do(func(qp.Time) { s = q.stats() })
	return s, err
}

// stats returns the statistics of a QP. Owner only.
func (q *QP) stats() QPStats {
	a, n := q.qp.Query(), q.qp.Counts()
	used, acked, accepted := q.qp.Progress()
	t, metered := q.qp.Traffic()
	var remote GID
	if a.Path.Valid() {
		remote = a.Path.GIDs().Remote
	}
	if q.Type() != RC {
		return QPStats{QPN: q.QPN(), Remote: remote, Class: a.Class, Requested: used, Acked: acked,
			SentBytes: t.Sent, RcvdBytes: t.Rcvd, Metered: metered, Errors: uint64(n.Errors),
			Flushed: uint64(n.Flushed), Cause: Status(q.qp.Cause())}
	}
	s := q.qp.PathStats()
	return QPStats{
		QPN: q.QPN(), Remote: remote,
		SelectiveRepeat: s.Selective, Congestion: CongestionControl(s.Congestion), Class: a.Class,
		Window: s.Window, InFlight: s.InFlight,
		RTT: time.Duration(s.RTT), RTTVar: time.Duration(s.RTTVar), MinRTT: time.Duration(s.MinRTT),
		DeliveryRate: s.DeliveryRate, PacingRate: s.PacingRate,
		Retransmits: s.Retransmits, Spurious: s.Spurious,
		Marked: s.Marked, CNPsSent: s.SentCNPs, CNPsRcvd: s.RcvdCNPs,
		Requested: used, Acked: acked, Accepted: accepted,
		SentBytes: t.Sent, RcvdBytes: t.Rcvd, Metered: metered,
		Duplicates: uint64(n.DuplicateRequests), OutOfSeq: uint64(n.OutOfSeqRequests),
		SentRNR: uint64(n.SentRNR), RcvdRNR: uint64(n.RcvdRNR),
		SentSeqNAK: uint64(n.SentSeqNAK), RcvdSeqNAK: uint64(n.RcvdSeqNAK),
		Timeouts: uint64(n.Timeouts), Errors: uint64(n.Errors), Flushed: uint64(n.Flushed),
		Cause: Status(q.qp.Cause()),
	}
}

// statsBatch is how many QPs Device.QPStats reads in one step of the loop.
const statsBatch = 64

// QPStats returns the statistics of the QPs that can send, in the order of their numbers. It
// costs a round trip to the device's thread for each 64 QPs of the Device. After Close it returns
// nothing.
func (d *Device) QPStats() []QPStats {
	d.ctl.Lock()
	qps := d.sortedQPs()
	d.ctl.Unlock()
	var all []QPStats
	for batch := range slices.Chunk(qps, statsBatch) {
		err := d.do(func(qp.Time) {
			for _, q := range batch {
				if !q.closed.Load() && q.State() == StateRTS {
					all = append(all, q.stats())
				}
			}
		})
		if err != nil {
			return nil
		}
	}
	return all
}
