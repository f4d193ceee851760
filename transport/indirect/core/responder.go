package core

// inState is the state of a transfer at its responder.
type inState uint8

const (
	inFree    inState = iota
	inAsked           // requested; the memory is not registered yet
	inReady           // registered
	inSending         // READ: data is being sent
	inSent            // READ: the transport has acknowledged all data
	inOver            // released by the initiator; some work remains
)

// incoming is an entry of the responder's table, the paper's connection status block.
type incoming struct {
	tid   TID
	state inState
	seen  bool // the entry has been used; tid is the last transfer
	kind  Kind
	slot  uint16
	todo  todo

	asking    bool // the user has been asked to register and has not answered
	answered  bool // the valid answer has been sent
	leave     bool // the initiator has asked for the release
	abort     bool // the initiator has abandoned the transfer
	delivered bool
	queued    bool // in dirty

	dba, sba uint64
	len      uint32
	rkey     uint32 // READ: of the initiator's memory
	mem      Local  // the registered memory
	addr     uint64 // and its address for the peer
	key      uint32

	timeouts int
	due      Time // deadline of a READ's confirmation

	stream stream
}

// slotState is a slot of this side's indirect buffer.
type slotState struct {
	busy     bool
	known    bool   // an entry of the table owns it
	parked   bool   // data arrived before it could be moved
	tid      TID    // low bits
	segments uint32 // received, modulo 2^32
	received uint32
	moved    uint32
}

// The work that an incoming entry may have.
const (
	askRegister todo = 1 << iota
	sendAnswer
	moveData
	giveBack
	sendReleased
)

func (m *Machine) wantIn(i uint16, t todo) {
	e := &m.in[i]
	e.todo |= t
	if !e.queued {
		e.queued = true
		m.dirty.push(i | roleIn)
	}
}

func (m *Machine) armIn(e *incoming, at Time) {
	e.due = at
	m.next = min(m.next, at)
}

func (m *Machine) handleRequest(now Time, g *message) {
	i := uint16(g.tid & m.mask)
	e := &m.in[i]
	switch {
	case !m.sane(g):
		m.Counters.Malformed++
	case e.seen && g.tid == e.tid:
		m.repeated(i, g)
	case e.seen && !g.tid.newer(e.tid), e.state != inFree, e.todo != 0:
		m.Counters.Stale++
	default:
		*e = incoming{
			tid: g.tid, state: inAsked, seen: true, kind: g.kind(), slot: NoSlot, dba: g.dba,
			sba: g.sba, len: g.len, rkey: g.rkey,
			due: Never, queued: e.queued, stream: stream{queued: e.stream.queued},
		}
		m.attach(i, g)
		m.register(i)
		m.guard(now)
	}
}

// sane checks the fields against each other and against this side's buffer.
func (m *Machine) sane(g *message) bool {
	if !g.has(flagIndirect) {
		return true
	}
	return !g.has(flagRead) && int(g.slot) < len(m.ownSlots) &&
		(g.typ != msgRequest || g.len <= m.cfg.Slot)
}

func (g *message) kind() Kind {
	if g.has(flagRead) {
		return Read
	}
	return Write
}

// repeated handles a repeated request: the answer was lost or invalid, or the mode has changed.
func (m *Machine) repeated(i uint16, g *message) {
	e := &m.in[i]
	switch {
	case e.state == inFree || e.state == inOver:
		m.Counters.Stale++
	case g.len != e.len || g.dba != e.dba || g.kind() != e.kind:
		m.Counters.Malformed++
	default:
		m.attach(i, g)
		if e.state == inAsked {
			m.register(i)
			return
		}
		m.wantIn(i, sendAnswer)
	}
}

// register asks the user for the memory.
func (m *Machine) register(i uint16) {
	if e := &m.in[i]; !e.asking {
		e.asking = true
		m.wantIn(i, askRegister)
	}
}

// Registered is the user's answer to DoRegister: ok, the memory, and the address and key by which
// the peer may write it.
func (m *Machine) Registered(now Time, entry uint16, tid TID, ok bool, mem Local, addr uint64,
	key uint32) {
	e := &m.in[entry]
	if e.tid != tid || !e.asking {
		return
	}
	e.asking = false
	if !ok {
		m.Counters.Refused++
	} else {
		m.Counters.Registered++
		e.mem, e.addr, e.key = mem, addr, key
	}
	if e.state != inAsked { // abandoned meanwhile
		if ok {
			e.delivered = false
			m.wantIn(entry, giveBack)
		}
		m.wantIn(entry, sendReleased)
		return
	}
	if ok {
		e.state = inReady
	}
	m.wantIn(entry, sendAnswer)
}

// attach assigns a slot to its transfer.
func (m *Machine) attach(i uint16, g *message) {
	e := &m.in[i]
	if !g.has(flagIndirect) || e.slot != NoSlot || e.state == inOver || e.kind != Write {
		return
	}
	l := &m.ownSlots[g.slot]
	if l.busy && (l.known || l.tid != g.tid&immTIDMask) {
		m.violate()
		return
	}
	if l.received > e.len {
		m.violate()
		return
	}
	l.busy, l.known, l.tid = true, true, g.tid&immTIDMask
	e.slot = g.slot
	m.move(i)
}

// handleSlotData handles a segment that arrived in a slot.
func (m *Machine) handleSlotData(now Time, imm, n uint32) {
	slot, tid, segment := int(imm>>8&0xff), TID(imm>>16&immTIDMask), imm&0xff
	if slot >= len(m.ownSlots) {
		m.violate()
		return
	}
	l := &m.ownSlots[slot]
	if !l.busy {
		l.busy, l.tid = true, tid
	}
	if l.tid != tid || l.segments&0xff != segment || n == 0 || n > m.cfg.Segment ||
		uint64(l.received)+uint64(n) > uint64(m.cfg.Slot) {
		m.violate()
		return
	}
	m.guard(now)
	l.segments++
	l.received += n
	m.Counters.ParkedBytes += uint64(n)
	i := uint16(tid & m.mask)
	e := &m.in[i]
	if !l.known && e.kind == Write && e.slot == NoSlot &&
		(e.state == inAsked || e.state == inReady) && e.tid&immTIDMask == tid {
		l.known, e.slot = true, uint16(slot)
	}
	if !l.known {
		l.parked = true // the request will follow
		return
	}
	if int(e.slot) != slot {
		m.violate()
		return
	}
	if l.received > e.len {
		m.violate()
		return
	}
	l.parked = l.parked || !e.answered
	m.move(i)
}

// move schedules moving the bytes that may be moved.
func (m *Machine) move(i uint16) {
	e := &m.in[i]
	if e.answered && e.slot != NoSlot && m.ownSlots[e.slot].received > m.ownSlots[e.slot].moved {
		m.wantIn(i, moveData)
	}
}

func (m *Machine) handleConfirm(g *message) {
	i := uint16(g.tid & m.mask)
	e := &m.in[i]
	if !e.seen || e.tid != g.tid || e.state != inReady || e.kind != Read {
		m.Counters.Stale++
		return
	}
	m.Counters.ReadDirect++
	m.serve(i)
}

// serve sends the data of a READ.
func (m *Machine) serve(i uint16) {
	e := &m.in[i]
	e.state, e.due = inSending, Never
	m.enqueue(i|roleIn, &e.stream)
}

// sentIn handles the completion of a WRITE for a READ.
func (m *Machine) sentIn(i uint16, whole bool) {
	e := &m.in[i]
	if e.state != inSending {
		return
	}
	if whole {
		e.state = inSent
	}
	m.tryRelease(i)
}

// expireIn handles the only timer of a responder: a READ's valid answer has not been confirmed.
func (m *Machine) expireIn(now Time, i uint16) {
	e := &m.in[i]
	if e.state != inReady || e.kind != Read || !e.answered {
		return
	}
	if e.timeouts++; e.timeouts < indirectAfter || !m.cfg.Dynamic {
		m.wantIn(i, sendAnswer)
		m.armIn(e, now+m.cfg.Timeout)
		return
	}
	m.Counters.ReadIndirect++
	m.serve(i)
}

func (m *Machine) handleRelease(g *message) {
	i := uint16(g.tid & m.mask)
	e := &m.in[i]
	switch {
	case !m.sane(g):
		m.Counters.Malformed++
	case e.seen && e.tid == g.tid && e.state == inFree:
		m.wantIn(i, sendReleased) // the first one was lost
	case e.seen && e.tid == g.tid:
		m.attach(i, g)
		e.leave, e.abort = true, e.abort || g.has(flagAbort)
		m.tryRelease(i)
	case g.has(flagAbort) && e.state == inFree && e.todo == 0 && (!e.seen || g.tid.newer(e.tid)):
		// Abandoned before any request arrived. Data may have arrived.
		*e = incoming{
			tid: g.tid, seen: true, slot: NoSlot, len: MaxLength, due: Never, queued: e.queued,
			stream: stream{queued: e.stream.queued},
		}
		m.attach(i, g)
		m.drop(e, &m.Counters.Dropped)
		m.wantIn(i, sendReleased)
	default:
		m.Counters.Stale++
	}
}

// tryRelease ends a transfer whose initiator asked for it, as soon as that is safe: all data is in
// place or abandoned, and nothing is in flight.
func (m *Machine) tryRelease(i uint16) {
	e := &m.in[i]
	if !e.leave || e.state == inOver || e.state == inFree || e.stream.flying > 0 {
		return
	}
	if !e.abort && !m.complete(e) {
		return
	}
	registered := e.state != inAsked
	e.delivered = !e.abort
	if e.abort {
		m.drop(e, &m.Counters.Dropped)
	}
	m.vacate(e)
	e.state, e.due = inOver, Never
	e.forget()
	switch {
	case e.asking: // Registered will be called and sends the answer
		return
	case registered:
		m.wantIn(i, giveBack)
	}
	m.wantIn(i, sendReleased)
}

// forget drops the entry's work. If the user has not been asked for the memory yet, the request is
// dropped.
func (e *incoming) forget() {
	if e.todo&askRegister != 0 {
		e.asking = false
	}
	e.todo = 0
}

// complete reports whether all bytes of a transfer are at their destination.
func (m *Machine) complete(e *incoming) bool {
	switch {
	case e.kind == Read:
		return e.state == inSent
	case e.slot == NoSlot:
		return e.state == inReady // the transport acknowledged the data before the release was sent
	}
	return e.state == inReady && m.ownSlots[e.slot].moved == e.len
}

// vacate frees the slot of a transfer.
func (m *Machine) vacate(e *incoming) {
	if e.slot == NoSlot {
		return
	}
	l := &m.ownSlots[e.slot]
	if e.delivered {
		if l.parked {
			m.Counters.Parked++
		} else {
			m.Counters.Straight++
		}
	}
	*l = slotState{}
	e.slot = NoSlot
}

// drop discards what is parked for a transfer.
func (m *Machine) drop(e *incoming, count *uint64) {
	if e.slot == NoSlot {
		return
	}
	l := &m.ownSlots[e.slot]
	if l.received > 0 {
		*count++
	}
	m.Counters.ParkedBytes -= uint64(l.received - l.moved)
	*l = slotState{}
	e.slot = NoSlot
}

// orphan ends a transfer whose initiator is gone.
func (m *Machine) orphan(i uint16) {
	e := &m.in[i]
	e.due = Never
	if e.state == inFree || e.state == inOver {
		return
	}
	m.drop(e, &m.Counters.Orphaned)
	registered := e.state != inAsked
	e.state, e.delivered = inOver, false
	e.forget()
	if registered {
		m.wantIn(i, giveBack)
	} else if !e.asking {
		e.state = inFree
	}
}

// pollIn performs one piece of an entry's work.
func (m *Machine) pollIn(now Time, i uint16, a *Action) (ok, more bool) {
	e := &m.in[i]
	if e.todo == 0 {
		e.queued = false
		return false, false
	}
	what := e.todo.take()
	*a = Action{Entry: i, TID: e.tid, Type: e.kind, DBA: e.dba, Len: e.len}
	switch what {
	case askRegister:
		a.Kind = DoRegister
	case sendAnswer:
		m.answer(now, i, a)
	case moveData:
		l := &m.ownSlots[e.slot]
		a.Kind, a.Slot, a.Off, a.Len, a.Local = DoMove, e.slot, l.moved, l.received-l.moved, e.mem
		l.moved = l.received
		m.Counters.MovedBytes += uint64(a.Len)
		m.Counters.ParkedBytes -= uint64(a.Len)
		m.tryRelease(i)
	case giveBack:
		a.Kind, a.Delivered, a.Local = DoRelease, e.delivered, e.mem
		if e.delivered && e.kind == Write {
			m.Counters.Delivered++
		}
		if e.todo == 0 { // orphaned: the initiator is gone
			e.state = inFree
		}
	case sendReleased:
		a.Kind = DoControl
		(&message{typ: msgReleased, tid: e.tid, slot: NoSlot}).put(&a.Msg, m.cfg.PeerToken)
		if e.state == inOver {
			e.state = inFree
		}
	}
	if e.todo == 0 {
		e.queued = false
	}
	return true, e.todo != 0
}

// answer tells the initiator whether the memory is registered. From now on parked data may be
// moved.
func (m *Machine) answer(now Time, i uint16, a *Action) {
	e := &m.in[i]
	g := message{typ: msgAnswer, tid: e.tid, slot: NoSlot, len: e.len}
	if e.state != inAsked {
		g.flags, g.dba, g.rkey = flagValid, e.addr, e.key
	}
	a.Kind = DoControl
	g.put(&a.Msg, m.cfg.PeerToken)
	if !g.has(flagValid) {
		return
	}
	if e.kind == Read && !e.answered {
		m.armIn(e, now+m.cfg.Timeout) // for the confirmation
	}
	e.answered = true
	m.move(i)
}

// fillWrite describes the next segment of a READ's data, which begins at stream.sent.
func (e *incoming) fillWrite(a *Action, n uint32) {
	off := uint64(e.stream.sent)
	a.TID = e.tid
	a.Local = Local{Addr: e.mem.Addr + off, LKey: e.mem.LKey}
	a.RemoteAddr, a.RKey = e.sba+off, e.rkey
	if e.stream.sent+n == e.len {
		a.WithImm, a.Imm = true, readImm(e.tid)
	}
}
