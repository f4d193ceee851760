package rsocket

import "time"

// Large WRITEs cost less than small ones: the first packet and the last one have other lengths than
// the rest, so the operating system cannot send them together. But the device should have something
// to send while more is copied. So the size of WRITEs grows with what is in flight.
const (
	// minChunk is the number of bytes that are copied before they are posted, if little is in
	// flight.
	minChunk = 64 << 10
	// collectFrom is the number of bytes in flight from which on Write may leave its data to the
	// next call, which sends both in one WRITE.
	collectFrom = 128 << 10
	// collectTime is half of the time that data waits for the next call at most.
	collectTime = time.Millisecond
)

// collector makes sure that data that waits for the next call is sent without it, too.
type collector struct {
	timer *time.Timer
	armed bool
	sends uint64 // WRITEs with data
	since uint64 // sends when the timer was armed
}

// inFlight returns how many bytes the peer has not acknowledged.
func (c *Conn) inFlight() int { return c.stream.InFlight(c.qp.Outstanding()) }

// chunk returns how many bytes a WRITE should have.
func (c *Conn) chunk() int { return max(minChunk, min(c.inFlight()/2, c.send.Len()/4)) }

// sendStaged posts the data that waits, and reports whether there was any. The caller holds mu.
func (c *Conn) sendStaged() bool {
	if c.stream.Staged() == 0 || c.err != nil || c.stream.PeerDisconnected() {
		return false
	}
	c.collect.sends++
	w := c.stream.Send()
	c.post(&w)
	return true
}

// collectLater starts the timer unless it runs: starting it for each call would cost too much. The
// caller holds mu.
func (c *Conn) collectLater() {
	k := &c.collect
	switch {
	case k.armed:
		return
	case k.timer == nil:
		k.timer = time.AfterFunc(collectTime, c.overdue)
	default:
		k.timer.Reset(collectTime)
	}
	k.armed, k.since = true, k.sends
}

// overdue posts data that waits since the timer was armed.
func (c *Conn) overdue() {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := &c.collect
	k.armed = false
	switch {
	case c.closed || c.stream.Staged() == 0:
	case k.sends != k.since: // the program goes on writing
		c.collectLater()
	default:
		c.sendStaged()
	}
}
