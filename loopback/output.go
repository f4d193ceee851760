package loopback

import (
	"fmt"
	"math/bits"
	"time"
)

// output sends one frame after the other with a constant bandwidth.
type output struct {
	bandwidth int64 // bits per second, counting whole frames; 0: unlimited
	busy      int64 // when everything has been sent
}

// bitTime is the number of nanosecond-bits per byte and second: n bytes take n*bitTime/bandwidth
// nanoseconds.
const bitTime = 8 * int64(time.Second)

// send adds a frame of n bytes at time now and returns when its last bit has been sent.
func (o *output) send(now int64, n int) int64 {
	o.busy = max(o.busy, now) + o.duration(n)
	return o.busy
}

// duration returns how long a frame of n bytes is sent, ns.
func (o *output) duration(n int) int64 { return int64(n) * bitTime / o.bandwidth }

// backlog returns the number of bytes that have not been sent at time now, rounded up.
func (o *output) backlog(now int64) int {
	left := o.busy - now
	if left <= 0 || o.bandwidth == 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(left), uint64(o.bandwidth))
	n, rest := bits.Div64(hi%uint64(bitTime), lo, uint64(bitTime))
	if rest > 0 {
		n++
	}
	return int(n)
}

// SetBandwidth limits the frames that a Port sends, to all other Ports together, to a number of
// bits per second, counting whole frames; 0 means unlimited. The Plan of its direction applies to a
// frame after its last bit has been sent. Call SetBandwidth before the Port sends frames.
func (l *Link) SetBandwidth(from int, bandwidth int64) error {
	if bandwidth < 0 {
		return fmt.Errorf("%w: the bandwidth is %d bits per second, want at least 0", ErrConfig,
			bandwidth)
	}
	l.ports[from].output.bandwidth = bandwidth
	return nil
}

// Backlog implements driver.Backlogger. It counts what waits for the Port's bandwidth (see
// Link.SetBandwidth). If that is unlimited, every direction whose Plan has a Bandwidth is an output
// of its own, and Backlog reports the one that will be busy longest. It does not count frames that
// are delayed for other reasons or wait in a Bottleneck: they have left the Port.
func (p *Port) Backlog() (bytes int, rate int64) {
	o := &p.output
	if o.bandwidth == 0 {
		o = p.busiest()
		if o.bandwidth == 0 {
			return 0, 0
		}
	}
	return o.backlog(p.link.clock()), o.bandwidth
}

// busiest returns the output of the direction that will be busy longest.
func (p *Port) busiest() *output {
	best := &p.output
	for _, d := range p.out {
		if d != nil && d.dice.output.bandwidth > 0 &&
			(best.bandwidth == 0 || d.dice.output.busy > best.busy) {
			best = &d.dice.output
		}
	}
	return best
}

// departure returns when the Port has sent a frame of n bytes; 0: at once.
func (p *Port) departure(n int) int64 {
	if p.output.bandwidth == 0 {
		return 0
	}
	return p.output.send(p.link.clock(), n)
}
