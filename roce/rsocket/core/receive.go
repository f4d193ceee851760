package core

import "fmt"

// receiver is the state of the peer's direction. Positions count bytes of the stream.
type receiver struct {
	lengths []int // of data messages that the program has not read completely
	first   int   // the oldest one
	count   int

	arrived  uint64 // bytes that the peer has written
	consumed uint64 // bytes that the program has read
	granted  uint64 // bytes that the peer was allowed to write

	messages  uint16 // data messages that the program has read completely; wraps around
	nextGrant uint16 // messages at which the credits are granted again

	peerEntry int // of the peer's list, for the next grant
}

func (r *receiver) init(c *Config) {
	r.lengths = make([]int, c.Credits+1)
	r.granted = uint64(c.RingLen / 2)
	r.nextGrant = uint16(c.Credits / 2)
}

// receiveData takes a data message of n bytes.
func (s *Stream) receiveData(value, n int) error {
	r := &s.receive
	switch {
	case value != n:
		return fmt.Errorf("%w: it wrote %d bytes and reports %d", ErrProtocol, n, value)
	case s.peerShutdown:
		return fmt.Errorf("%w: it sends data after the end of its stream", ErrProtocol)
	case r.count == len(r.lengths):
		return fmt.Errorf("%w: it sent more messages than it was granted", ErrProtocol)
	case r.arrived+uint64(n) > r.granted:
		return fmt.Errorf("%w: it sent more bytes than it was granted", ErrProtocol)
	case n == 0:
		r.messages++
		return nil
	}
	r.lengths[(r.first+r.count)%len(r.lengths)] = n
	r.count++
	r.arrived += uint64(n)
	return nil
}

// Readable returns the next bytes for the program: as many as follow each other in the receive
// buffer.
func (s *Stream) Readable() (off, n int) {
	r := &s.receive
	size := uint64(s.cfg.RingLen)
	at := r.consumed % size
	return int(at), int(min(r.arrived-r.consumed, size-at))
}

// Buffered returns the number of bytes that the program can read.
func (s *Stream) Buffered() int { return int(s.receive.arrived - s.receive.consumed) }

// Consume reports that the program has read n bytes, at most what Readable returns. Control then
// grants their space to the peer.
func (s *Stream) Consume(n int) {
	r := &s.receive
	r.consumed += uint64(n)
	for n > 0 && r.count > 0 {
		left := &r.lengths[r.first]
		k := min(n, *left)
		n, *left = n-k, *left-k
		if *left == 0 {
			r.first = (r.first + 1) % len(r.lengths)
			r.count--
			r.messages++
		}
	}
}

// freeHalf reports whether the half of the receive buffer that is granted next is free.
func (r *receiver) freeHalf(c *Config) bool {
	return r.granted-r.consumed <= uint64(c.RingLen/2)
}

// due reports whether the peer should get a grant.
func (r *receiver) due(c *Config) bool {
	return r.freeHalf(c) || int16(r.messages-r.nextGrant) >= 0
}

// grant returns the WRITE that grants half of the receive buffer, if it is free, and credits.
func (s *Stream) grant() Write {
	r := &s.receive
	r.nextGrant = r.messages + uint16(s.cfg.Credits/2)
	w := Write{Imm: message(kindGrant, uint32(r.messages+uint16(s.cfg.Credits)))}
	if !r.freeHalf(&s.cfg) {
		return w
	}
	half := uint64(s.cfg.RingLen / 2)
	free := Buffer{Addr: s.cfg.Ring.Addr + r.granted%uint64(s.cfg.RingLen), Key: s.cfg.Ring.Key,
		Len: uint32(half)}
	free.appendTo(w.Inline[:0], order(s.peer.BigEndian))
	w.IsInline, w.Len = true, entryLen
	w.Addr = s.peer.List.Addr + uint64(r.peerEntry)*entryLen
	w.Key = s.peer.List.Key
	r.granted += half
	r.peerEntry = (r.peerEntry + 1) % int(s.peer.List.Len)
	return w
}
