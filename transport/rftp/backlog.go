package rftp

import "github.com/gorxe/gorxe/roce"

// A source need not queue more blocks than the data QPs can have in flight, and a few more. On a
// short path, these few blocks stay in the cache of the processor from the time when the program
// fills them until the NIC reads them, on both sides: the source uses the block and the credit next
// that it got last. On a long path, the windows of the QPs are large, and so is the backlog.
const (
	firstBacklog = 4 << 20 // bytes, before the windows are known
	minBacklog   = 4       // blocks
	spareBlocks  = 2       // of each QP, beyond its window
)

// setBacklog limits the queue of the source to the given bytes, and spare blocks.
func (c *Conn) setBacklog(bytes int) {
	n := max(minBacklog, (bytes+c.agreed.size-1)/c.agreed.size+spareBlocks*len(c.data))
	c.nextMeasure = c.m.Counters.BytesSent + uint64(n*c.agreed.size/2)
	c.m.SetBacklog(n)
}

// backlogDue reports whether so much has been sent that the windows may have changed. In virtual
// time, programs take no time and caches do not matter. The caller holds mu.
func (c *Conn) backlogDue() bool {
	return c.cfg.Clock == nil && c.cfg.Wait == nil && c.m.Err() == nil &&
		c.m.Counters.BytesSent >= c.nextMeasure
}

// measureBacklog adapts the backlog to the windows of the data QPs. The caller does not hold mu,
// because it waits for the thread of the device.
func (c *Conn) measureBacklog() {
	packets := 0
	for _, q := range c.data {
		if s, err := q.Stats(); err == nil { // otherwise it has failed
			packets += int(s.Window)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m.Err() == nil {
		c.setBacklog(packets * int(roce.MTU(4096)) * 3 / 2)
		c.changes()
	}
}
