package roce

import (
	"time"

	"github.com/gorxe/gorxe/qp"
)

// CongestionControl is an algorithm that limits how much an RC QP sends, so that it shares the
// network with other connections. See docs/congestion.md. It concerns only what this side sends;
// peers choose their own.
type CongestionControl uint8

// The algorithms of congestion control.
const (
	// CongestionAdaptive reacts to loss, delay and ECN marks. It is the default.
	CongestionAdaptive CongestionControl = iota
	// CongestionDCQCN is the algorithm of RDMA NICs: only CNPs, which the peer sends for packets
	// with ECN marks, reduce the rate.
	CongestionDCQCN
	// CongestionNone sends as fast as the window permits (Expert.MaxWindow), for networks without
	// loss. Packets are not ECN-capable.
	CongestionNone
)

// String returns "adaptive", "dcqcn" or "none".
func (c CongestionControl) String() string { return qp.Congestion(c).String() }

// MarshalText returns the name of the algorithm. JSON uses it.
func (c CongestionControl) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText parses the name of an algorithm.
func (c *CongestionControl) UnmarshalText(b []byte) (err error) {
	*c, err = ParseCongestionControl(string(b))
	return err
}

// ParseCongestionControl returns the algorithm with the name "adaptive", "dcqcn" or "none".
//
// Errors: ErrInvalidAttr.
func ParseCongestionControl(name string) (CongestionControl, error) {
	c, err := qp.ParseCongestion(name)
	return CongestionControl(c), err
}

// WithCongestionControl selects the algorithm for the RC QPs of the Device. QPConfig.Congestion
// selects another one for one QP.
func WithCongestionControl(c CongestionControl) Option {
	return func(cfg *config) { cfg.congestion = c }
}

// DCQCN holds the parameters of CongestionDCQCN, for Expert. They have the names and, as their
// defaults, the values of the paper (Zhu et al., SIGCOMM 2015, section 5). A zero field means the
// default. Rates are in bits per second.
type DCQCN struct {
	Gain         float64       // g, weight of a CNP in alpha, above 0 to 1; default 1/256
	AlphaTimer   time.Duration // interval in which alpha decays without CNPs; default 55 us
	RateTimer    time.Duration // interval of rate increases; default 55 us
	ByteCounter  uint64        // bytes between rate increases; default 10,000,000
	FastRecovery int           // F, increases that return to the rate before the CNP; default 5
	Additive     float64       // R_AI, step of additive increase; default 40e6
	Hyper        float64       // step of hyper increase; default 400e6
	MinRate      float64       // default 10e6
}

func (d *DCQCN) engine() qp.DCQCN {
	return qp.DCQCN{
		Gain: d.Gain, AlphaTimer: qp.Time(d.AlphaTimer), RateTimer: qp.Time(d.RateTimer),
		ByteCounter: d.ByteCounter, FastRecovery: d.FastRecovery,
		Additive: d.Additive, Hyper: d.Hyper, MinRate: d.MinRate,
	}
}
