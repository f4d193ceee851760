package session

import (
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/roce"
)

// Network describes how the local queue pairs of a session use the network. The counts are those
// since the session started.
type Network struct {
	SelectiveRepeat bool                   `json:"selective_repeat"`
	Congestion      roce.CongestionControl `json:"congestion"`
	Class           uint8                  `json:"class"` // traffic class

	RTT    float64 `json:"rtt_us"`         // mean of the queue pairs; 0: not measured
	MinRTT float64 `json:"min_rtt_us"`     // the shortest; 0: not measured
	Window uint64  `json:"window_packets"` // sum of the queue pairs
	Rate   float64 `json:"rate_gbps"`      // sum of the measured delivery rates, Gb/s of payload

	Retransmits uint64 `json:"retransmits"`
	Spurious    uint64 `json:"spurious_retransmits"`
	Marked      uint64 `json:"rcvd_ecn_marked"`
	CNPsSent    uint64 `json:"sent_cnps"`
	CNPsRcvd    uint64 `json:"rcvd_cnps"`
}

// Network returns statistics of the session's queue pairs, or nil if one of them is closed.
func (s *Session) Network() *Network {
	n := new(Network)
	var rtt, minRTT time.Duration
	measured := 0
	for i, q := range s.QPs {
		t, err := q.Stats()
		if err != nil {
			return nil
		}
		n.SelectiveRepeat = t.SelectiveRepeat && (i == 0 || n.SelectiveRepeat)
		n.Congestion, n.Class = t.Congestion, t.Class
		n.Window += uint64(t.Window)
		n.Rate += t.DeliveryRate * 8 / 1e9
		n.Retransmits += t.Retransmits
		n.Spurious += t.Spurious
		n.Marked += t.Marked
		n.CNPsSent += t.CNPsSent
		n.CNPsRcvd += t.CNPsRcvd
		if t.RTT > 0 {
			rtt += t.RTT
			measured++
		}
		if t.MinRTT > 0 && (minRTT == 0 || t.MinRTT < minRTT) {
			minRTT = t.MinRTT
		}
	}
	if measured > 0 {
		n.RTT = cli.Micros(rtt / time.Duration(measured))
	}
	n.MinRTT = cli.Micros(minRTT)
	n.Rate = cli.Round(n.Rate, 3)
	return n
}
