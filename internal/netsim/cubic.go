package netsim

import (
	"math"
	"time"
)

// Constants of CUBIC (RFC 9438).
const (
	cubicC      = 0.4 // segments per s^3
	cubicBeta   = 0.7 // a loss reduces the window to this share
	cubicAlpha  = 3 * (1 - cubicBeta) / (1 + cubicBeta)
	startWindow = 10.0 // segments (RFC 6928)
	leastWindow = 2.0  // after a loss
)

// cubic is the congestion window of a TCP flow (RFC 9438), in segments. The zero value is not
// valid.
type cubic struct {
	window    float64
	threshold float64 // of slow start

	epoch  int64   // start of the current congestion avoidance, ns; 0 = none
	peak   float64 // W_max: where the plateau of the curve is
	k      float64 // seconds from epoch to the plateau
	reno   float64 // W_est: the window of a Reno flow since epoch
	before float64 // cwnd_prior: the window before the last reduction
	cuts   int     // number of reductions
}

func newCubic() cubic { return cubic{window: startWindow, threshold: math.Inf(1)} }

// acked grows the window after n segments were acknowledged.
func (c *cubic) acked(now int64, rtt time.Duration, n int) {
	if c.window < c.threshold {
		c.window += float64(n)
		return
	}
	if c.epoch == 0 {
		c.begin(now)
	}
	t := time.Duration(now - c.epoch).Seconds()
	alpha := cubicAlpha
	if c.reno >= c.before {
		alpha = 1
	}
	c.reno += alpha * float64(n) / c.window
	if c.curve(t) < c.reno { // the Reno-friendly region
		c.window = max(c.window, c.reno)
		return
	}
	target := min(max(c.curve(t+rtt.Seconds()), c.window), 1.5*c.window)
	c.window += (target - c.window) / c.window * float64(n)
}

// begin starts congestion avoidance.
func (c *cubic) begin(now int64) {
	c.epoch, c.reno = now, c.window
	c.peak = max(c.peak, c.window)
	c.k = math.Cbrt((c.peak - c.window) / cubicC)
}

// curve returns W_cubic(t).
func (c *cubic) curve(t float64) float64 { return cubicC*math.Pow(t-c.k, 3) + c.peak }

// lost reduces the window after a loss, at most once per window of data.
func (c *cubic) lost() {
	c.before = c.window
	if c.window < c.peak { // fast convergence: release bandwidth for new flows
		c.peak = c.window * (1 + cubicBeta) / 2
	} else {
		c.peak = c.window
	}
	c.window = max(c.window*cubicBeta, leastWindow)
	c.threshold = c.window
	c.epoch = 0
	c.cuts++
}

// timedOut reduces the window after a retransmission timeout.
func (c *cubic) timedOut() {
	c.lost()
	c.window = 1
}
