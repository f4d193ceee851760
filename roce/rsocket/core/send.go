package core

import "fmt"

// sender is the state of the local direction.
type sender struct {
	sent, limit uint16 // data messages; both wrap around
	depth       int    // free work requests for data
	controls    int    // free work requests for other messages

	// Target buffers in the peer's memory, in the order in which they are filled.
	targets [listEntries]Buffer
	filled  int // number of targets
	next    int // entry of the list that the peer writes next

	// The send buffer holds the bytes from done to head, modulo its length, and behind them staged
	// bytes, which no WRITE sends yet.
	head, done uint64
	staged     int

	// Posted work requests, oldest first. Those from first to last have not completed.
	posted      []posted
	first, last uint64
	failed      bool // a work request has failed

	// Work requests and bytes since the last one that is signaled.
	quiet, quietBytes int
}

// posted is a work request of which the completion is not known.
type posted struct {
	bytes   int    // of the send buffer
	from    uint64 // the position of the first one
	control bool
}

func (t *sender) init(c *Config) {
	t.depth, t.controls = c.SendDepth, ControlDepth
	t.posted = make([]posted, c.SendDepth+ControlDepth)
	t.next = 1
}

// post records a work request and returns its ID.
func (t *sender) post(p posted) uint64 {
	id := t.last
	p.from = t.head
	t.posted[id%uint64(len(t.posted))] = p
	t.last++
	return id
}

// Completed reports that the signaled work request of that ID, and with it all before it, have
// completed.
func (s *Stream) Completed(id uint64) {
	t := &s.send
	for t.first <= id && t.first < t.last {
		p := &t.posted[t.first%uint64(len(t.posted))]
		if p.control {
			t.controls++
		} else {
			t.depth++
			t.done += uint64(p.bytes)
		}
		t.first++
	}
}

// Failed reports that the work request of that ID has failed. Those before the first one that fails
// have succeeded.
func (s *Stream) Failed(id uint64) {
	t := &s.send
	if !t.failed && id > t.first {
		s.Completed(id - 1)
	}
	t.failed = true
}

// Lost reports whether the peer has not acknowledged all data of a connection that has failed. All
// completions must have been reported.
func (s *Stream) Lost() bool {
	t := &s.send
	return t.staged > 0 || t.failed && t.head != t.done
}

// Idle reports whether all work requests have completed.
func (s *Stream) Idle() bool { return s.send.first == s.send.last }

// receiveGrant takes a grant of the peer: n bytes tell whether it has written an entry of the list.
func (s *Stream) receiveGrant(limit uint16, n int) error {
	t := &s.send
	switch n {
	case 0:
	case entryLen:
		if t.filled == len(t.targets) {
			return fmt.Errorf("%w: it grants a third receive buffer", ErrProtocol)
		}
		var b [entryLen]byte
		load(b[:], s.mem, t.next*entryLen)
		to := parseBuffer(b[:], littleEndian)
		if to.Len == 0 {
			return fmt.Errorf("%w: it grants an empty receive buffer", ErrProtocol)
		}
		t.targets[t.filled] = to
		t.filled++
		t.next = (t.next + 1) % listEntries
	default:
		return fmt.Errorf("%w: a grant of %d bytes", ErrProtocol, n)
	}
	t.limit = limit
	return nil
}

// window returns how many bytes the peer accepts in one message now.
func (s *Stream) window() int {
	t := &s.send
	if t.sent == t.limit || t.depth == 0 || t.filled == 0 || s.shutdown || s.disconnect ||
		s.peerDisconnect {
		return 0
	}
	return int(min(t.targets[0].Len, valueMask))
}

// Space returns where the next data belongs in the send buffer, and how many bytes Stage accepts
// now: 0 if what is staged must be sent first, or if it must wait for completions or messages of
// the peer.
func (s *Stream) Space() (off, n int) {
	off, n = s.Free()
	return off, min(n, max(0, s.window()-s.send.staged))
}

// Free returns the next free bytes of the send buffer: as many as follow each other and what is
// staged.
func (s *Stream) Free() (off, n int) {
	t := &s.send
	size := uint64(s.cfg.SendLen)
	at := t.head%size + uint64(t.staged)
	return int(at % size), int(min(size-(t.head-t.done)-uint64(t.staged), size-at))
}

// Stage adds the next n bytes of the send buffer to the data that Send sends. n must be at most
// what Space returns. Send must follow before Shutdown, Disconnect, Control and MapSpace.
func (s *Stream) Stage(n int) { s.send.staged += n }

// Staged returns the number of bytes that Send sends.
func (s *Stream) Staged() int { return s.send.staged }

// InFlight returns how many bytes the latest n work requests send.
func (s *Stream) InFlight(n int) int {
	t := &s.send
	n = min(n, int(t.last-t.first))
	if n == 0 {
		return 0
	}
	return int(t.head - t.posted[(t.last-uint64(n))%uint64(len(t.posted))].from)
}

// Send returns the WRITE of what is staged, which must be at least one byte.
func (s *Stream) Send() Write {
	t := &s.send
	n := t.staged
	t.staged = 0
	w := s.data(n)
	w.Off = int(t.head % uint64(s.cfg.SendLen))
	w.ID = t.post(posted{bytes: n})
	t.head += uint64(n)
	t.quiet++
	t.quietBytes += n
	if t.quiet >= max(1, s.cfg.SendDepth/4) || t.quietBytes >= s.cfg.SendLen/5 {
		w.Signaled = true
		t.quiet, t.quietBytes = 0, 0
	}
	return w
}

// data uses n bytes of the first target buffer and one credit.
func (s *Stream) data(n int) Write {
	t := &s.send
	to := &t.targets[0]
	w := Write{HasImm: true, Imm: message(kindData, uint32(n)), Addr: to.Addr, Key: to.Key, Len: n}
	t.sent++
	t.depth--
	to.Addr += uint64(n)
	to.Len -= uint32(n)
	if to.Len == 0 {
		t.targets[0] = t.targets[1]
		t.filled--
	}
	return w
}
