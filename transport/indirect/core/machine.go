package core

import "math/bits"

// Machine is the state of one side of a connection: the transfers that it started (out) and those
// that its peer started (in). It is not safe for concurrent use.
type Machine struct {
	cfg  Config
	mask TID
	err  error

	out   []outgoing
	idle  []uint16 // free entries of out, a stack
	slots []uint16 // free slots of the peer, a stack
	wish  int      // transfers in out that wait for a slot

	in       []incoming
	ownSlots []slotState // slots of this side

	dirty ring // entries with work: index, or index|roleIn
	send  sender
	next  Time // no timer is due before this time
	watch watch

	Counters Counters
}

// roleIn marks an entry of the table in.
const roleIn = 1 << 15

// New creates a machine.
func New(c Config) (*Machine, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	m := &Machine{
		cfg: c, mask: TID(c.Entries - 1),
		out: make([]outgoing, c.Entries), idle: make([]uint16, 0, c.Entries),
		slots: make([]uint16, 0, c.PeerSlots),
		in:    make([]incoming, c.Entries), ownSlots: make([]slotState, c.Slots),
		dirty: newRing(2 * c.Entries),
	}
	m.send.queue = newRing(2 * c.Entries)
	first := c.FirstTID &^ m.mask
	for i := c.Entries - 1; i >= 0; i-- {
		m.out[i] = outgoing{tid: first + TID(i) - TID(c.Entries), due: Never, slot: NoSlot}
		m.in[i] = incoming{due: Never, slot: NoSlot}
		m.idle = append(m.idle, uint16(i))
	}
	for i := c.PeerSlots - 1; i >= 0; i-- {
		m.slots = append(m.slots, uint16(i))
	}
	return m, nil
}

// Err returns why the connection is unusable: ErrProtocol, ErrSilent or ErrLost. The driver then
// closes it and calls Fail.
func (m *Machine) Err() error { return m.err }

// Busy returns the number of unfinished transfers of this side.
func (m *Machine) Busy() int { return len(m.out) - len(m.idle) }

// todo is a set of work items. The most urgent has the lowest bit.
type todo uint8

// take removes and returns the most urgent item.
func (t *todo) take() todo {
	first := todo(1) << bits.TrailingZeros8(uint8(*t))
	*t &^= first
	return first
}

// Poll stores the next action in a. It returns false if there is none until the next event.
func (m *Machine) Poll(now Time, a *Action) bool {
	for m.dirty.len() > 0 {
		ref := m.dirty.first()
		var more, ok bool
		if ref&roleIn != 0 {
			ok, more = m.pollIn(now, ref&^roleIn, a)
		} else {
			ok, more = m.pollOut(now, ref, a)
		}
		if !more {
			m.dirty.pop()
		}
		if ok {
			return true
		}
	}
	return m.pollSend(a)
}

// Timeout returns when HandleTimeout must be called: at once after New, Never if the connection has
// ended.
func (m *Machine) Timeout() Time { return m.next }

// HandleTimeout handles the timers that are due.
func (m *Machine) HandleTimeout(now Time) {
	if now < m.next {
		return
	}
	m.next = Never
	for i := range m.out {
		if late := now - m.out[i].due; late >= 0 {
			m.out[i].due = Never
			m.expireOut(now, late, uint16(i))
		}
		m.next = min(m.next, m.out[i].due)
	}
	for i := range m.in {
		if m.in[i].due <= now {
			m.in[i].due = Never
			m.expireIn(now, uint16(i))
		}
		m.next = min(m.next, m.in[i].due)
	}
	m.look(now)
	m.next = min(m.next, m.watch.due)
}

// HandleControl handles a control message of the peer.
func (m *Machine) HandleControl(now Time, b []byte) {
	var g message
	if !g.parse(b) {
		m.Counters.Malformed++
		return
	}
	if m.err != nil {
		return
	}
	m.watch.heard = true
	switch g.typ {
	case msgRequest:
		m.handleRequest(now, &g)
	case msgAnswer:
		m.handleAnswer(now, &g)
	case msgConfirm:
		m.handleConfirm(&g)
	case msgRelease:
		m.handleRelease(&g)
	case msgReleased:
		m.handleReleased(now, &g)
	}
}

// HandleData handles the completion of the peer's WRITE with immediate of n bytes.
func (m *Machine) HandleData(now Time, imm, n uint32) {
	m.watch.heard = true
	switch {
	case m.err != nil:
	case imm&immRead != 0:
		m.handleReadData(now, TID(imm&^immRead))
	default:
		m.handleSlotData(now, imm, n)
	}
}

// Kill makes the connection unusable. The first reason is kept.
func (m *Machine) Kill(why error) {
	if m.err == nil {
		m.err = why
	}
}

// Fail ends everything: the connection is closed and no more data can arrive.
func (m *Machine) Fail(now Time) {
	if m.err == nil {
		m.err = ErrLost
	}
	m.send.reset()
	for i := range m.out {
		if o := &m.out[i]; o.state != outIdle && o.state != outDone {
			m.finish(uint16(i), StatusLost)
		}
	}
	for i := range m.in {
		m.orphan(uint16(i))
	}
	for i := range m.ownSlots {
		m.Counters.ParkedBytes -= uint64(m.ownSlots[i].received - m.ownSlots[i].moved)
		if m.ownSlots[i].received > m.ownSlots[i].moved && !m.ownSlots[i].known {
			m.Counters.Orphaned++
		}
		m.ownSlots[i] = slotState{}
	}
	m.next, m.watch.due = Never, Never
}

func (m *Machine) violate() {
	m.Counters.Violations++
	if m.err == nil {
		m.err = ErrProtocol
	}
}

// ring is a bounded queue of entries. Each entry is in it at most once.
type ring struct {
	v          []uint16
	head, size int
}

func newRing(n int) ring { return ring{v: make([]uint16, n)} }

func (r *ring) len() int      { return r.size }
func (r *ring) first() uint16 { return r.v[r.head] }

func (r *ring) push(x uint16) {
	r.v[(r.head+r.size)%len(r.v)] = x
	r.size++
}

func (r *ring) pop() {
	r.head = (r.head + 1) % len(r.v)
	r.size--
}
