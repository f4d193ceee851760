package roce

import (
	"fmt"

	"github.com/gorxe/gorxe/qp"
)

// Limits of WithLinkRate, in bits per second.
const (
	MinLinkRate = 1_000_000
	MaxLinkRate = 8 * qp.MaxRate
)

// NoBacklogLimit is the argument of WithBacklogLimit that turns the limit off.
const NoBacklogLimit = -1

// WithLinkRate tells the Device the rate of its Ethernet link in bits per second, from MinLinkRate
// to MaxLinkRate. It matters only while QPs of several traffic classes exist: the Device then
// limits the backlog, the bytes that it has passed to the Port and that have not left it, because
// an urgent packet waits for them. With a rate, the Device computes the backlog from the lengths of
// its frames and the 24 bytes that Ethernet adds to each. Otherwise it asks the Port
// (driver.Backlogger); if that does not know, there is no limit, and classes have no effect on
// packets that were passed to the Port.
//
// Choose a rate if the Port does not know its backlog, or reports it late, as NICs do that limit
// their rate of interrupts. The rate must not exceed that of the link, and should be lower if other
// programs send on it: what is sent in excess collects in the NIC unnoticed. See
// docs/traffic-classes.md.
func WithLinkRate(bitsPerSecond int64) Option {
	return func(c *config) { c.linkRate, c.hasLinkRate = bitsPerSecond, true }
}

// WithBacklogLimit sets the limit of the backlog in bytes; see WithLinkRate. 0, the default, is two
// frames of lower classes, for which an urgent packet may have to wait; one of them is being sent.
// If that does not keep the Port busy, a larger limit helps. A limit of less than one frame acts
// like one frame. Packets of the highest class that a QP has are limited to 4 frames, 64 if the
// Port does not know its rate, or to bytes if that is more. NoBacklogLimit turns all limits off.
func WithBacklogLimit(bytes int) Option { return func(c *config) { c.backlogLimit = bytes } }

// checkLinkRate returns an error if the link's rate is out of range.
func (c *config) checkLinkRate() error {
	if c.hasLinkRate && (c.linkRate < MinLinkRate || c.linkRate > MaxLinkRate) {
		return fmt.Errorf("%w: link rate of %d bits per second: choose %d to %d", ErrInvalid,
			c.linkRate, MinLinkRate, int64(MaxLinkRate))
	}
	return nil
}
