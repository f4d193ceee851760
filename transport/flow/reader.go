package flow

import (
	"fmt"
	"slices"
)

// Mode is which messages of a channel a reader gets.
type Mode uint8

const (
	// Each reads every message once, in order.
	Each Mode = iota
	// Latest reads the newest message, which may be the same several times. So a reader with a
	// higher rate than the writer always has data.
	Latest
)

// Reader reads the messages of a channel at its own pace. Its methods are safe for concurrent use.
type Reader struct {
	ch     *Channel
	mode   Mode
	index  int
	missed uint64 // guarded by Layer.mu
}

// NewReader adds a reader, which gets the messages that another one has not read yet, and all later
// ones. A channel needs two slots for a Latest reader: one that it keeps, and one for the writer.
// If the channel belongs to a Receiver, Receiver.Receive can no longer be used.
func (c *Channel) NewReader(m Mode) (*Reader, error) {
	c.layer.mu.Lock()
	defer c.layer.mu.Unlock()
	switch {
	case m > Latest:
		return nil, fmt.Errorf("%w: a reader of channel %q: unknown mode %d", ErrConfig, c.cfg.Name,
			m)
	case m == Latest && len(c.slots) < 2:
		return nil, fmt.Errorf("%w: channel %q has 1 slot: a reader of the latest message needs 2",
			ErrConfig, c.cfg.Name)
	}
	index := slices.Index(c.readers, nil)
	if index < 0 && len(c.readers) == MaxReaders {
		return nil, fmt.Errorf("%w: channel %q has more than %d readers", ErrConfig, c.cfg.Name,
			MaxReaders)
	}
	if index < 0 {
		index = len(c.readers)
		c.readers = append(c.readers, nil)
	}
	r := &Reader{ch: c, mode: m, index: index}
	c.readers[index] = r
	if m == Latest {
		c.latest = true
	} else {
		c.each |= 1 << r.index
		for i := range c.slots {
			if c.slots[i].unread != 0 {
				c.slots[i].unread |= 1 << r.index
			}
		}
	}
	if c.recv != nil && c.recv.direct != nil {
		c.recv.direct.end()
		c.recv.direct = nil
	}
	return r, nil
}

// Next returns the next message, or nil if there is none. The caller releases it.
func (r *Reader) Next() *Message {
	r.ch.layer.mu.Lock()
	defer r.ch.layer.mu.Unlock()
	return r.next()
}

func (r *Reader) next() *Message {
	c := r.ch
	at := -1
	if c.closed || c.readers[r.index] != r {
		return nil
	}
	if r.mode == Latest {
		at = c.newest
	} else {
		for i := range c.slots {
			s := &c.slots[i]
			if s.filled && s.unread>>r.index&1 != 0 && (at < 0 || s.order < c.slots[at].order) {
				at = i
			}
		}
	}
	if at < 0 {
		return nil
	}
	s := &c.slots[at]
	s.unread &^= 1 << r.index
	s.refs++
	return &s.Message
}

// Missed returns the number of messages that the channel gave up before this reader had read them.
func (r *Reader) Missed() uint64 {
	r.ch.layer.mu.Lock()
	defer r.ch.layer.mu.Unlock()
	return r.missed
}

// Close ends the use of the reader: the channel keeps no messages for it. Closing twice is
// harmless.
func (r *Reader) Close() {
	r.ch.layer.mu.Lock()
	defer r.ch.layer.mu.Unlock()
	r.end()
}

// end makes the channel forget a reader. The caller holds Layer.mu.
func (r *Reader) end() {
	c := r.ch
	if c.readers[r.index] != r {
		return
	}
	c.readers[r.index] = nil
	c.each &^= 1 << r.index
	c.latest = slices.ContainsFunc(c.readers,
		func(r *Reader) bool { return r != nil && r.mode == Latest })
	for i := range c.slots {
		c.slots[i].unread &^= 1 << r.index
		c.settle(i)
	}
}
