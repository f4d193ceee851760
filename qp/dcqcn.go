package qp

import (
	"cmp"
	"fmt"
	"math"
)

// DCQCN holds the parameters of CongestionDCQCN (Zhu et al., SIGCOMM 2015, section 5). A zero field
// means the default.
type DCQCN struct {
	Gain         float64 // g, weight of a CNP in alpha, above 0 to 1; default 1/256
	AlphaTimer   Time    // interval in which alpha decays without CNPs, ns; default 55,000
	RateTimer    Time    // interval of rate increases, ns; default 55,000
	ByteCounter  uint64  // bytes between rate increases; default 10,000,000
	FastRecovery int     // F, increases that return to the rate before the CNP; default 5
	Additive     float64 // R_AI, step of additive increase, bits per second; default 40e6
	Hyper        float64 // step of hyper increase, bits per second; default 400e6
	MinRate      float64 // bits per second; default 10e6
}

// Limits of the parameters.
const (
	minDCQCNTimer  Time = 1_000
	minByteCounter      = 1 << 10
	minDCQCNRate        = 1e6 // bits per second
)

// fill replaces zeros with the defaults and checks the ranges.
func (d *DCQCN) fill() error {
	def := DCQCN{Gain: 1.0 / 256, AlphaTimer: 55_000, RateTimer: 55_000, ByteCounter: 10_000_000,
		FastRecovery: 5, Additive: 40e6, Hyper: 400e6, MinRate: 10e6}
	d.Gain = cmp.Or(d.Gain, def.Gain)
	d.AlphaTimer = cmp.Or(d.AlphaTimer, def.AlphaTimer)
	d.RateTimer = cmp.Or(d.RateTimer, def.RateTimer)
	d.ByteCounter = cmp.Or(d.ByteCounter, def.ByteCounter)
	d.FastRecovery = cmp.Or(d.FastRecovery, def.FastRecovery)
	d.Additive = cmp.Or(d.Additive, def.Additive)
	d.Hyper = cmp.Or(d.Hyper, def.Hyper)
	d.MinRate = cmp.Or(d.MinRate, def.MinRate)
	switch {
	case !(d.Gain > 0 && d.Gain <= 1):
		return fmt.Errorf("qp: DCQCN.Gain is %v, want more than 0 to 1", d.Gain)
	case d.AlphaTimer < minDCQCNTimer, d.RateTimer < minDCQCNTimer:
		return fmt.Errorf("qp: DCQCN.AlphaTimer and RateTimer are %d and %d, want at least %d ns",
			d.AlphaTimer, d.RateTimer, minDCQCNTimer)
	case d.ByteCounter < minByteCounter:
		return fmt.Errorf("qp: DCQCN.ByteCounter is %d, want at least %d", d.ByteCounter,
			minByteCounter)
	case d.FastRecovery < 1:
		return fmt.Errorf("qp: DCQCN.FastRecovery is %d, want at least 1", d.FastRecovery)
	case !(d.MinRate >= minDCQCNRate), !(d.Additive > 0), !(d.Hyper > 0):
		return fmt.Errorf("qp: DCQCN rates are %g, %g and %g, want positive rates and a MinRate "+
			"of at least %g", d.Additive, d.Hyper, d.MinRate, minDCQCNRate)
	}
	return nil
}

// rateControl is the state of the reaction point of DCQCN. Rates are in bytes per ns. The timers
// are evaluated when the QP sends.
type rateControl struct {
	current, target float64
	most            float64 // the rate is not limited any more when it reaches this
	alpha           float64
	alphaAt         Time    // when alpha decays
	timerAt         Time    // when the rate timer expires
	bytes           float64 // bytes until the byte counter expires
	timers          int     // expirations of the rate timer since the last CNP
	counters        int     // expirations of the byte counter since the last CNP
	limits          bool
}

// maxSteps bounds the rate increases for the time since the last packet.
const maxSteps = 1 << 10

const bitsPerNs = 1.0 / 8e9 // bytes per ns of 1 bit per second

// cnp reduces the rate. rate is the one that the QP has if it is not limited yet, 0 if that is not
// known.
func (r *rateControl) cnp(now Time, p *DCQCN, rate float64) {
	if !r.limits {
		if rate <= 0 {
			return
		}
		r.current, r.most, r.alpha, r.limits = rate, 2*rate, 1, true
	} else {
		r.advance(now, p)
	}
	r.target = r.current
	r.current = max(r.current*(1-r.alpha/2), p.MinRate*bitsPerNs)
	r.alpha = (1-p.Gain)*r.alpha + p.Gain
	r.alphaAt, r.timerAt = now+p.AlphaTimer, now+p.RateTimer
	r.bytes, r.timers, r.counters = float64(p.ByteCounter), 0, 0
}

// advance handles the timers that have expired.
func (r *rateControl) advance(now Time, p *DCQCN) {
	if r.alphaAt <= now {
		n := (now-r.alphaAt)/p.AlphaTimer + 1
		r.alpha *= math.Pow(1-p.Gain, float64(n))
		r.alphaAt += n * p.AlphaTimer
	}
	for n := 0; r.limits && r.timerAt <= now; n++ {
		if n == maxSteps {
			r.timerAt = now + p.RateTimer
			return
		}
		r.timerAt += p.RateTimer
		r.timers++
		r.increase(p)
	}
}

// sent accounts for n bytes.
func (r *rateControl) sent(n float64, p *DCQCN) {
	for r.bytes -= n; r.limits && r.bytes <= 0; r.bytes += float64(p.ByteCounter) {
		r.counters++
		r.increase(p)
	}
}

// increase raises the rate after an expiration: fast recovery, then additive increase, then hyper
// increase when both the timer and the byte counter have passed fast recovery.
func (r *rateControl) increase(p *DCQCN) {
	switch least, most := min(r.timers, r.counters), max(r.timers, r.counters); {
	case most < p.FastRecovery:
	case least > p.FastRecovery:
		r.target += float64(least-p.FastRecovery) * p.Hyper * bitsPerNs
	default:
		r.target += p.Additive * bitsPerNs
	}
	r.current = (r.target + r.current) / 2
	r.limits = r.current < r.most
}
