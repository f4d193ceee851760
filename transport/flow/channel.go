package flow

import (
	"fmt"
	"math/bits"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/flow/core"
)

// Channel is a buffer of messages in registered memory. Its writer is the program (Reserve, Push),
// or the peer if it belongs to a Receiver. Any number of readers, each with its own rate, share the
// messages without copies. Its methods are safe for concurrent use.
type Channel struct {
	cfg   ChannelConfig
	layer *Layer
	mr    *roce.MR
	recv  *Receiver // the writer; nil: the program

	// Guarded by Layer.mu.
	slots   []slot
	free    uint64 // slots that the writer may fill
	each    uint64 // readers that read each message
	latest  bool   // some reader reads the newest message
	readers []*Reader
	newest  int    // slot, -1: none
	seq     uint64 // messages so far
	closed  bool

	sched  *Scheduler // nil: none; fixed when that starts
	source core.SourceID
}

// slot is one message of a channel.
type slot struct {
	Message
	order  uint64 // of arrival
	unread uint64 // readers that have not read it
	refs   int    // holders
	filled bool
}

// Message is a message in a channel.
type Message struct {
	// Data is the message, in the memory of the channel. It must not be used after Release.
	Data []byte
	// Seq is the number of the message in its first channel, from 1 on.
	Seq uint64
	// Time is when the message was pushed, in nanoseconds of the writer's clock.
	Time int64

	ch   *Channel
	slot uint8
}

// NewChannel creates a channel that the program writes. Its memory lives as long as the Layer.
func (l *Layer) NewChannel(c ChannelConfig) (*Channel, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	mr, err := l.pd.AllocMR(c.memory(), roce.LocalWrite)
	if err != nil {
		return nil, fmt.Errorf("allocate %d bytes of channel %q: %w", c.memory(), c.Name, err)
	}
	ch := newChannel(l, c, mr)
	ch.free = 1<<c.Slots - 1
	l.mu.Lock()
	defer l.mu.Unlock()
	l.channels = append(l.channels, ch)
	return ch, nil
}

func newChannel(l *Layer, c ChannelConfig, mr *roce.MR) *Channel {
	ch := &Channel{cfg: c, layer: l, mr: mr, slots: make([]slot, c.Slots), newest: -1}
	for i := range ch.slots {
		ch.slots[i].ch, ch.slots[i].slot = ch, uint8(i)
	}
	return ch
}

// Name returns the name of the channel.
func (c *Channel) Name() string { return c.cfg.Name }

// Size returns the length of the longest message in bytes.
func (c *Channel) Size() int { return c.cfg.Size }

// memory returns the data of a slot.
func (c *Channel) memory(i int) []byte {
	at := c.offset(i)
	return c.mr.Bytes()[at : at+c.cfg.Size : at+c.cfg.Size]
}

// offset is where the data of a slot begins in the region.
func (c *Channel) offset(i int) int { return i*stride(c.cfg.Size) + dataOffset }

// Reserve returns a message whose Data has Size bytes, for the program to fill and Push. It returns
// ErrFull if all slots are in use.
func (c *Channel) Reserve() (*Message, error) {
	c.layer.mu.Lock()
	defer c.layer.mu.Unlock()
	switch {
	case c.closed:
		return nil, ErrClosed
	case c.recv != nil: // and Push finds no reserved message
		return nil, fmt.Errorf("%w: the peer writes channel %q", ErrConfig, c.cfg.Name)
	}
	if c.free == 0 {
		c.dropOldest()
	}
	if c.free == 0 {
		return nil, fmt.Errorf("%w: %q has %d: choose more, or release messages earlier", ErrFull,
			c.cfg.Name, c.cfg.Slots)
	}
	i := bits.TrailingZeros64(c.free)
	c.free &^= 1 << i
	m := &c.slots[i].Message
	m.Data = c.memory(i)
	return m, nil
}

// Push makes the first n bytes of a reserved message available to the readers, and activates the
// tasks that wait for it.
func (c *Channel) Push(m *Message, n int) error {
	if n < 0 || n > c.cfg.Size {
		return fmt.Errorf("%w: %d bytes, channel %q takes %d", ErrTooLong, n, c.cfg.Name,
			c.cfg.Size)
	}
	s := c.lock()
	err := c.push(m, n)
	c.unlock(s, err == nil)
	return err
}

// Write copies data into a message and pushes it.
func (c *Channel) Write(data []byte) error {
	if len(data) > c.cfg.Size {
		return fmt.Errorf("%w: %d bytes, channel %q takes %d", ErrTooLong, len(data), c.cfg.Name,
			c.cfg.Size)
	}
	m, err := c.Reserve()
	if err != nil {
		return err
	}
	copy(m.Data, data)
	return c.Push(m, len(data))
}

// lock locks the scheduler of the channel, if there is one, and the layer.
func (c *Channel) lock() *Scheduler {
	s := c.layer.lockScheduler()
	c.layer.mu.Lock()
	return s
}

// unlock undoes lock. It reports a message to the scheduler if there is one.
func (c *Channel) unlock(s *Scheduler, pushed bool) {
	c.layer.mu.Unlock()
	if s == nil {
		return
	}
	if pushed {
		s.pushed(c)
	}
	s.unlock()
}

// push makes a reserved message the newest one. The caller holds Layer.mu.
func (c *Channel) push(m *Message, n int) error {
	switch {
	case c.closed:
		return ErrClosed
	case m == nil || m.ch != c || c.free>>m.slot&1 != 0 || c.slots[m.slot].filled:
		return fmt.Errorf("%w: Push of a message that Reserve of channel %q did not return, or twice",
			ErrConfig, c.cfg.Name)
	}
	c.fill(int(m.slot), header{seq: c.seq + 1, time: c.layer.now(), n: n})
	return nil
}

// fill stores a message in a slot as the newest one.
func (c *Channel) fill(i int, h header) {
	old := c.newest
	s := &c.slots[i]
	c.seq++
	s.Seq, s.Time, s.Data = h.seq, h.time, c.memory(i)[:h.n]
	s.order = c.seq
	s.filled, s.unread, s.refs = true, c.each, 0
	c.newest = i
	if old >= 0 {
		c.settle(old)
	}
	c.settle(i)
	if c.recv != nil && c.cfg.Overflow == DropOldest && c.filled() == len(c.slots) {
		c.dropOldest() // the sender needs a slot
	}
}

func (c *Channel) filled() (n int) {
	for i := range c.slots {
		if c.slots[i].filled {
			n++
		}
	}
	return n
}

// unread returns the number of messages that some reader has not read.
func (c *Channel) unread() (n int) {
	c.layer.mu.Lock()
	defer c.layer.mu.Unlock()
	for i := range c.slots {
		if c.slots[i].filled && c.slots[i].unread != 0 {
			n++
		}
	}
	return n
}

// settle frees a slot that is not needed.
func (c *Channel) settle(i int) {
	s := &c.slots[i]
	if !s.filled || s.refs > 0 || s.unread != 0 || (i == c.newest && c.latest) {
		return
	}
	s.filled = false
	if i == c.newest {
		c.newest = -1
	}
	if c.recv != nil {
		c.recv.credit(i)
		return
	}
	c.free |= 1 << i
}

// dropOldest frees the oldest message that no reader holds, except the newest one, if the channel
// may.
func (c *Channel) dropOldest() {
	if c.cfg.Overflow != DropOldest {
		return
	}
	oldest := -1
	for i := range c.slots {
		s := &c.slots[i]
		if s.filled && s.refs == 0 && i != c.newest &&
			(oldest < 0 || s.order < c.slots[oldest].order) {
			oldest = i
		}
	}
	if oldest < 0 {
		return
	}
	s := &c.slots[oldest]
	for left := s.unread; left != 0; left &= left - 1 {
		c.readers[bits.TrailingZeros64(left)].missed++
	}
	s.unread = 0
	c.settle(oldest)
}

// Release tells the channel that a reader no longer uses the message. It is called once for each
// message that Reader.Next or Receiver.Receive has returned. Run.Next needs none.
func (m *Message) Release() {
	l := m.ch.layer
	l.mu.Lock()
	m.ch.release(int(m.slot))
	l.mu.Unlock()
}

func (c *Channel) release(i int) {
	if s := &c.slots[i]; s.refs > 0 {
		s.refs--
		c.settle(i)
	}
}
