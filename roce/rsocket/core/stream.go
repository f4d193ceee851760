package core

import "fmt"

// Config describes the local side of a Stream.
type Config struct {
	Credits   int // data messages that the peer may have sent and the program has not read
	RingLen   int // bytes of the receive buffer, a multiple of 2
	SendLen   int // bytes of the send buffer
	SendDepth int // work requests for data
	Maps      int // entries of the map table, at most MaxMaps

	List Buffer // where the peer writes entries: only Addr and Key
	Ring Buffer // the receive buffer: only Addr and Key
}

// ControlDepth is the number of work requests for other messages than data.
const ControlDepth = 4

// Stream is one side of a connection.
type Stream struct {
	cfg  Config
	mem  Memory
	peer Hello

	send    sender
	receive receiver
	maps    maps

	shutdown, disconnect bool // the program wants it
	saidShutdown         bool // a message told the peer
	saidDisconnect       bool
	peerShutdown         bool // the peer sends no more data
	peerDisconnect       bool // the peer neither sends nor receives anymore
}

// New returns a Stream whose peer writes its entries into mem.
func New(c Config, mem Memory) *Stream {
	s := &Stream{cfg: c, mem: mem}
	s.send.init(&c)
	s.receive.init(&c)
	s.maps.remote = make([]Map, c.Maps)
	return s
}

// Hello returns what the peer must know.
func (s *Stream) Hello() Hello {
	h := Hello{Credits: uint16(s.cfg.Credits), Maps: s.cfg.Maps, List: s.cfg.List,
		Ring: s.cfg.Ring, Leaves: true}
	h.List.Len, h.Ring.Len = listEntries, uint32(s.cfg.RingLen/2)
	return h
}

// Open starts the stream with the peer's Hello.
func (s *Stream) Open(h Hello) {
	s.peer = h
	s.send.limit = h.Credits
	s.send.targets[0], s.send.filled = h.Ring, 1
	s.receive.peerEntry = 1 // the Hello is the first grant
}

// Received takes a message of the peer: the immediate of an RDMA WRITE of n bytes.
func (s *Stream) Received(imm uint32, n int) error {
	value := imm & valueMask
	switch imm >> kindShift {
	case kindData:
		return s.receiveData(int(value), n)
	case kindGrant:
		return s.receiveGrant(uint16(value), n)
	case kindMap:
		return s.receiveMap(int(value), n)
	case kindControl:
		switch value {
		case controlDisconnect:
			s.peerShutdown, s.peerDisconnect = true, true
		case controlShutdown:
			s.peerShutdown = true
		}
		return nil // a keepalive, or a message of a later version
	}
	return fmt.Errorf("%w: message %#x is not defined", ErrProtocol, imm)
}

// PeerShutdown reports whether the peer has ended its direction of the stream. What it sent before
// may still be Readable.
func (s *Stream) PeerShutdown() bool { return s.peerShutdown }

// PeerDisconnected reports whether the peer has ended both directions.
func (s *Stream) PeerDisconnected() bool { return s.peerDisconnect }

// PeerRepeats reports whether the peer has ended both directions and may repeat the message that
// says so until it is acknowledged. If both sides have sent it, a peer whose Hello has Leaves does
// not.
func (s *Stream) PeerRepeats() bool {
	return s.peerDisconnect && !(s.saidDisconnect && s.peer.Leaves)
}

// Shutdown ends the local direction of the stream. Control returns the message.
func (s *Stream) Shutdown() { s.shutdown = true }

// Disconnect ends both directions. Control returns the message.
func (s *Stream) Disconnect() { s.disconnect = true }

// Control returns the next message that is due besides data, if there is one and a work request is
// free.
func (s *Stream) Control() (Write, bool) {
	if s.send.controls == 0 || s.saidDisconnect || s.peerDisconnect {
		return Write{}, false
	}
	switch {
	case s.disconnect || s.shutdown && !s.saidShutdown && s.peerShutdown:
		s.saidShutdown, s.saidDisconnect = true, true
		return s.control(Write{Imm: message(kindControl, controlDisconnect)}), true
	case s.shutdown && !s.saidShutdown:
		s.saidShutdown = true
		return s.control(Write{Imm: message(kindControl, controlShutdown)}), true
	case s.receive.due(&s.cfg) && !s.peerShutdown:
		return s.control(s.grant()), true
	}
	return s.nextMap()
}

// control completes a Write that is no data.
func (s *Stream) control(w Write) Write {
	w.HasImm, w.Signaled = true, true
	s.send.controls--
	w.ID = s.send.post(posted{control: true})
	return w
}

// Ended reports whether the peer was told everything that Shutdown and Disconnect asked for.
func (s *Stream) Ended() bool {
	return s.saidDisconnect || s.peerDisconnect || !s.disconnect && (s.saidShutdown || !s.shutdown)
}

// Shut reports whether Shutdown or Disconnect was called.
func (s *Stream) Shut() bool { return s.shutdown || s.disconnect }
