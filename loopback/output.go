package loopback

import (
	"fmt"

	"github.com/gorxe/gorxe/internal/wire"
)

// SetBandwidth limits the frames that a Port sends, to all other Ports together, to a number of
// bits per second, counting whole frames; 0 means unlimited. The Plan of its direction applies to a
// frame after its last bit has been sent. Call SetBandwidth before the Port sends frames.
func (l *Link) SetBandwidth(from int, bandwidth int64) error {
	if bandwidth < 0 {
		return fmt.Errorf("%w: the bandwidth is %d bits per second, want at least 0", ErrConfig,
			bandwidth)
	}
	l.ports[from].output.Rate = bandwidth
	return nil
}

// Backlog implements driver.Backlogger. It counts what waits for the Port's bandwidth (see
// Link.SetBandwidth). If that is unlimited, every direction whose Plan has a Bandwidth is an output
// of its own, and Backlog reports the one that will be busy longest. It does not count frames that
// are delayed for other reasons or wait in a Bottleneck: they have left the Port.
func (p *Port) Backlog() (bytes int, rate int64) {
	o := &p.output
	if o.Rate == 0 {
		o = p.busiest()
		if o.Rate == 0 {
			return 0, 0
		}
	}
	return o.Backlog(p.link.clock()), o.Rate
}

// busiest returns the output of the direction that will be busy longest.
func (p *Port) busiest() *wire.Output {
	best := &p.output
	for _, d := range p.out {
		if d != nil && d.dice.output.Rate > 0 && (best.Rate == 0 || d.dice.output.Busy > best.Busy) {
			best = &d.dice.output
		}
	}
	return best
}

// departure returns when the Port has sent a frame of n bytes; 0: at once.
func (p *Port) departure(n int) int64 {
	if p.output.Rate == 0 {
		return 0
	}
	return p.output.Send(p.link.clock(), n)
}
