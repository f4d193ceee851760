package core

// sender sends the data messages of a connection. It has the entries that want to send, in order,
// and the messages in flight.
type sender struct {
	queue  ring
	flight [Window]flying // a queue: RC completes in order
	head   int
	flying int
	probe  bool // an empty WRITE is due to probe the peer's NIC
}

// noEntry is the flying.ref of an empty WRITE.
const noEntry = 0xffff

// flying is a WRITE that has been posted and has not completed.
type flying struct {
	ref uint16
	len uint32
}

func (s *sender) reset() {
	s.queue.head, s.queue.size, s.head, s.flying, s.probe = 0, 0, 0, 0, false
}

// stream is the progress of an entry's data: bytes posted and bytes completed.
type stream struct {
	sent, done uint32
	flying     uint8 // messages
	queued     bool
}

// enqueue starts to send an entry's data. The entry may still be queued for an abandoned transfer.
func (m *Machine) enqueue(ref uint16, s *stream) {
	*s = stream{queued: s.queued}
	if !s.queued {
		s.queued = true
		m.send.queue.push(ref)
	}
}

// pollSend posts the next segment if the window is open. An abandoned transfer sends no more.
func (m *Machine) pollSend(a *Action) bool {
	s := &m.send
	for s.flying < Window && s.queue.len() > 0 && m.err == nil {
		ref := s.queue.first()
		st, total := m.stream(ref)
		if m.stopped(ref) || st.sent == total {
			st.queued = false
			s.queue.pop()
			continue
		}
		n := min(m.cfg.Segment, total-st.sent)
		*a = Action{Kind: DoWrite, Len: n}
		if ref&roleIn != 0 {
			m.in[ref&^roleIn].fillWrite(a, n)
		} else {
			m.out[ref].fillWrite(a, m)
		}
		st.sent += n
		st.flying++
		s.fly(ref, n)
		return true
	}
	if s.probe && m.err == nil {
		if s.probe = false; s.flying > 0 {
			return false // data messages probe the NIC as well
		}
		*a = Action{Kind: DoWrite}
		s.fly(noEntry, 0)
		return true
	}
	return false
}

func (s *sender) fly(ref uint16, n uint32) {
	s.flight[(s.head+s.flying)%Window] = flying{ref, n}
	s.flying++
}

func (m *Machine) stream(ref uint16) (*stream, uint32) {
	if ref&roleIn != 0 {
		e := &m.in[ref&^roleIn]
		return &e.stream, e.len
	}
	return &m.out[ref].stream, m.out[ref].len
}

func (m *Machine) stopped(ref uint16) bool {
	if ref&roleIn != 0 {
		e := &m.in[ref&^roleIn]
		return e.state != inSending || e.abort
	}
	o := &m.out[ref]
	return o.state != outDirect && o.state != outIndirect
}

// DataDone reports that the oldest WRITE in flight completed successfully. A failed one ends the
// connection: see Fail.
func (m *Machine) DataDone(now Time) {
	s := &m.send
	if s.flying == 0 {
		return
	}
	f := s.flight[s.head]
	s.head = (s.head + 1) % Window
	s.flying--
	if f.ref == noEntry {
		return
	}
	st, total := m.stream(f.ref)
	st.done += f.len
	st.flying--
	whole := st.done == total
	if f.ref&roleIn != 0 {
		m.sentIn(f.ref&^roleIn, whole)
	} else {
		m.sentOut(now, f.ref, whole)
	}
}
