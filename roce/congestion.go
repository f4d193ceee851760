package roce

import "github.com/gorxe/gorxe/qp"

// CongestionControl is an algorithm that limits how much an RC QP sends, so that it shares the
// network with other connections. See docs/congestion.md. It concerns only what this side sends;
// peers choose their own.
type CongestionControl = qp.Congestion

// The algorithms of congestion control.
const (
	// CongestionAdaptive reacts to loss, delay and ECN marks. It is the default.
	CongestionAdaptive = qp.CongestionAdaptive
	// CongestionDCQCN is the algorithm of RDMA NICs: only CNPs, which the peer sends for packets
	// with ECN marks, reduce the rate.
	CongestionDCQCN = qp.CongestionDCQCN
	// CongestionNone sends as fast as the window permits (Expert.MaxWindow), for networks without
	// loss. Packets are not ECN-capable.
	CongestionNone = qp.CongestionNone
)

// ParseCongestionControl returns the algorithm with the name "adaptive", "dcqcn" or "none".
//
// Errors: ErrInvalidAttr.
func ParseCongestionControl(name string) (CongestionControl, error) {
	return qp.ParseCongestion(name)
}

// WithCongestionControl selects the algorithm for the RC QPs of the Device. QPConfig.Congestion
// selects another one for one QP.
func WithCongestionControl(c CongestionControl) Option {
	return func(cfg *config) { cfg.congestion = c }
}
