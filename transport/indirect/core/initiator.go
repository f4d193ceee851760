package core

// outState is the state of a transfer at its initiator.
type outState uint8

const (
	outIdle   outState = iota
	outAsking          // requests are sent; no valid answer, no data
	outDirect          // WRITE: the valid answer is known, data goes to the destination
	// WRITE: data goes, or has gone, to a slot; the valid answer may be known or not
	outIndirect
	outReading   // READ: confirmed, the responder sends
	outReleasing // all data is there; the responder is asked for the release
	// abandoned; the responder is asked for the release once nothing is in flight
	outAborting
	outDone // ended; the user has not been told
)

// outgoing is an entry of the initiator's table.
type outgoing struct {
	tid    TID
	state  outState
	op     Op
	len    uint32
	slot   uint16
	todo   todo
	status Status

	answered bool // the valid answer has arrived
	refused  bool // an invalid answer has arrived
	told     bool // it answered the last request: the running timer is not one of silence
	acked    bool // the user has been told that the request was taken
	wishing  bool // waits for a slot to send indirectly
	sentAll  bool // the transport has acknowledged every byte
	queued   bool // in dirty

	timeouts int // of requests, then of releases
	due      Time
	began    Time   // when the request, a confirmed READ's last sign of life, or the release began
	addr     uint64 // of the destination, from the valid answer
	rkey     uint32

	stream stream
}

// The work that an outgoing entry may have.
const (
	tellAcked todo = 1 << iota
	tellSent
	sendRequest
	sendConfirm
	sendRelease
	tellDone
)

func (m *Machine) wantOut(i uint16, t todo) {
	o := &m.out[i]
	o.todo |= t
	if !o.queued {
		o.queued = true
		m.dirty.push(i)
	}
}

func (m *Machine) armOut(o *outgoing, at Time) {
	o.due = at
	m.next = min(m.next, at)
}

// Post starts a transfer. Errors: ErrFull, ErrLength, ErrTooLarge, or why the connection has ended.
func (m *Machine) Post(now Time, op *Op) (TID, error) {
	switch {
	case m.err != nil:
		return 0, m.err
	case op.Len < 1 || op.Len > MaxLength:
		return 0, ErrLength
	case op.Kind == Write && m.cfg.Dynamic && m.cfg.PeerSlots > 0 && op.Len > m.cfg.PeerSlot:
		return 0, ErrTooLarge
	case len(m.idle) == 0:
		return 0, ErrFull
	}
	i := m.idle[len(m.idle)-1]
	m.idle = m.idle[:len(m.idle)-1]
	o := &m.out[i]
	*o = outgoing{
		tid: o.tid + m.mask + 1, state: outAsking, op: *op, len: op.Len, slot: NoSlot, began: now,
		due:  Never,
		todo: o.todo, queued: o.queued, stream: stream{queued: o.stream.queued},
	}
	m.request(now, i)
	m.guard(now)
	return o.tid, nil
}

// request sends a request, for the first time or again.
func (m *Machine) request(now Time, i uint16) {
	m.wantOut(i, sendRequest)
	m.out[i].told = false
	m.armOut(&m.out[i], now+m.cfg.Timeout)
}

// expireOut handles a timer that expired. It is late if the driver was held up; that time does not
// count against the peer.
func (m *Machine) expireOut(now, late Time, i uint16) {
	o := &m.out[i]
	if late > min(m.cfg.Patience, m.cfg.Silence)/keepalives {
		o.began += late
	}
	switch o.state {
	case outAsking:
		if !o.told {
			m.Counters.Timeouts++
			o.timeouts++
		}
		if m.lostPatience(now, i) {
			return
		}
		if o.timeouts >= indirectAfter {
			m.tryIndirect(i)
		}
		m.request(now, i)
	case outIndirect:
		switch {
		case o.answered:
			m.keepAlive(now, i)
		case !m.lostPatience(now, i):
			m.request(now, i)
		}
	case outDirect:
		m.keepAlive(now, i)
	case outReading:
		// The responder may send for as long as it takes. It answers as long as it lives.
		if now-o.began >= m.cfg.Silence {
			m.giveUp(now, i, StatusNoAnswer)
			return
		}
		m.keepAlive(now, i)
	case outReleasing, outAborting:
		if now-o.began >= m.cfg.Silence && m.watch.talks > keepalives {
			// the peer has answered other messages, but none of the repeated requests for this
			// release
			m.violate()
			return
		}
		m.askRelease(now, i)
	}
}

// keepAlive sends a sign of life: data travels one-sided or waits, and the responder would consider
// this side dead.
func (m *Machine) keepAlive(now Time, i uint16) {
	m.wantOut(i, sendRequest)
	m.armOut(&m.out[i], now+m.pulse())
}

// lostPatience abandons a transfer that has waited too long.
func (m *Machine) lostPatience(now Time, i uint16) bool {
	o := &m.out[i]
	if now-o.began < m.cfg.Patience {
		return false
	}
	s := StatusNoAnswer
	if o.refused {
		s = StatusRefused
	}
	m.giveUp(now, i, s)
	return true
}

// giveUp ends a transfer as soon as nothing of it is in flight and the responder has released it.
func (m *Machine) giveUp(now Time, i uint16, s Status) {
	o := &m.out[i]
	m.unwish(o)
	o.todo &= tellAcked | tellSent
	o.state, o.status, o.timeouts = outAborting, s, 0
	if o.stream.flying == 0 {
		o.began = now
		m.askRelease(now, i)
	}
}

// tryIndirect starts to send into the indirect buffer if this WRITE may and a slot is free.
func (m *Machine) tryIndirect(i uint16) {
	o := &m.out[i]
	if o.op.Kind != Write || !m.cfg.Dynamic || m.cfg.PeerSlots == 0 {
		return
	}
	if len(m.slots) == 0 {
		if !o.wishing {
			m.Counters.BufferFull++
			o.wishing = true
			m.wish++
		}
		return
	}
	m.unwish(o)
	o.slot = m.slots[len(m.slots)-1]
	m.slots = m.slots[:len(m.slots)-1]
	o.state = outIndirect
	m.Counters.Indirect++
	m.Counters.Simulated++
	m.acked(i)
	m.enqueue(i, &o.stream)
}

func (m *Machine) unwish(o *outgoing) {
	if o.wishing {
		o.wishing = false
		m.wish--
	}
}

// freeSlot returns a slot and gives it to the oldest transfer that waits for one.
func (m *Machine) freeSlot(slot uint16) {
	m.slots = append(m.slots, slot)
	if m.wish == 0 {
		return
	}
	oldest := -1
	for i := range m.out {
		if o := &m.out[i]; o.wishing && (oldest < 0 || o.began < m.out[oldest].began) {
			oldest = i
		}
	}
	m.tryIndirect(uint16(oldest))
}

func (m *Machine) acked(i uint16) {
	if o := &m.out[i]; !o.acked {
		o.acked = true
		m.wantOut(i, tellAcked)
	}
}

// find returns the entry of an unfinished transfer.
func (m *Machine) find(tid TID) (uint16, *outgoing) {
	i := uint16(tid & m.mask)
	o := &m.out[i]
	if o.tid != tid || o.state == outIdle || o.state == outDone {
		m.Counters.Stale++
		return 0, nil
	}
	return i, o
}

func (m *Machine) handleAnswer(now Time, g *message) {
	i, o := m.find(g.tid)
	if o == nil {
		return
	}
	if !g.has(flagValid) {
		m.refusal(now, i, o)
		return
	}
	switch o.state {
	case outAsking:
		o.answered, o.addr, o.rkey = true, g.dba, g.rkey
		m.unwish(o)
		m.acked(i)
		if o.op.Kind == Read {
			o.state = outReading
			o.began = now
			m.wantOut(i, sendConfirm)
			m.armOut(o, now+m.pulse())
			return
		}
		o.state = outDirect
		m.Counters.Direct++
		m.enqueue(i, &o.stream)
		m.armOut(o, now+m.pulse())
	case outIndirect:
		if o.answered {
			m.Counters.Stale++
			return
		}
		// Record it only: the user has been told, and the data is being sent.
		o.answered = true
		m.Counters.LateAnswers++
		if o.sentAll {
			m.release(now, i)
			return
		}
		m.armOut(o, now+m.pulse())
	case outReading:
		o.began = now
		m.wantOut(i, sendConfirm) // the responder repeats its answer: the confirmation was lost
	default:
		m.Counters.Stale++
	}
}

// refusal handles an invalid answer: the memory is not ready.
func (m *Machine) refusal(now Time, i uint16, o *outgoing) {
	if o.answered || (o.state != outAsking && o.state != outIndirect) {
		m.Counters.Stale++
		return
	}
	m.Counters.InvalidAnswers++
	o.refused, o.told = true, true
	m.armOut(o, now+m.cfg.Timeout) // ask again then
	if o.state != outAsking {
		return
	}
	o.timeouts = 0
	m.tryIndirect(i)
}

// sentOut handles the completion of a WRITE of the transfer.
func (m *Machine) sentOut(now Time, i uint16, whole bool) {
	o := &m.out[i]
	switch o.state {
	case outAborting:
		if o.stream.flying == 0 {
			o.began = now
			m.askRelease(now, i)
		}
	case outDirect, outIndirect:
		if o.sentAll = whole; !whole {
			return
		}
		m.wantOut(i, tellSent)
		if o.answered {
			m.release(now, i)
		}
	}
}

// handleReadData handles the arrival of a READ's last byte.
func (m *Machine) handleReadData(now Time, low TID) {
	i, o := m.find(low | m.out[low&m.mask].tid&immRead)
	if o == nil || o.op.Kind != Read {
		return
	}
	switch o.state {
	case outAsking:
		// The valid answer was lost or is late. The data replaces it.
		m.Counters.Simulated++
		m.acked(i)
	case outReading:
	default: // abandoned meanwhile: the release says so
		return
	}
	o.answered = true
	m.release(now, i)
}

func (m *Machine) release(now Time, i uint16) {
	o := &m.out[i]
	o.todo &= tellAcked | tellSent
	o.state, o.timeouts, o.began = outReleasing, 0, now
	m.askRelease(now, i)
}

// askRelease asks the responder for the release until it answers or the connection ends (see
// watch). The interval grows, because releasing much memory on a busy processor takes time.
func (m *Machine) askRelease(now Time, i uint16) {
	o := &m.out[i]
	m.wantOut(i, sendRelease)
	o.timeouts++
	wait, most := m.cfg.Timeout, max(m.cfg.Timeout, m.pulse())
	for n := releasesAtOnce; n < min(o.timeouts, releasesAtOnce+slowest) && wait < most; n++ {
		wait *= 2
	}
	m.armOut(o, now+min(wait, most))
}

func (m *Machine) handleReleased(now Time, g *message) {
	i, o := m.find(g.tid)
	if o == nil {
		return
	}
	switch o.state {
	case outReleasing:
		m.finish(i, StatusOK)
	case outAborting:
		if o.stream.flying > 0 {
			return // not an answer to our release
		}
		m.finish(i, o.status)
	default:
		m.Counters.Stale++
	}
}

// finish ends a transfer and frees its slot.
func (m *Machine) finish(i uint16, s Status) {
	o := &m.out[i]
	m.unwish(o)
	o.state, o.status, o.due = outDone, s, Never
	o.todo &= tellAcked | tellSent
	m.wantOut(i, tellDone)
	switch {
	case s != StatusOK:
		m.Counters.Failed++
	case o.op.Kind == Read:
		m.Counters.Reads++
	}
	if slot := o.slot; slot != NoSlot {
		o.slot = NoSlot
		if m.err == nil {
			m.freeSlot(slot)
		}
	}
}

// pollOut performs one piece of an entry's work.
func (m *Machine) pollOut(now Time, i uint16, a *Action) (ok, more bool) {
	o := &m.out[i]
	if o.todo == 0 {
		o.queued = false
		return false, false
	}
	what := o.todo.take()
	*a = Action{TID: o.tid, Type: o.op.Kind, Len: o.len, Cookie: o.op.Cookie, Status: o.status}
	g := message{tid: o.tid, slot: o.slot, len: o.len}
	if o.op.Kind == Read {
		g.flags |= flagRead
	}
	if o.slot != NoSlot {
		g.flags |= flagIndirect
	}
	switch what {
	case tellAcked:
		a.Kind = DoAcked
	case tellSent:
		a.Kind = DoSent
	case sendRequest:
		m.Counters.Requests++
		g.typ, g.sba, g.dba, g.rkey = msgRequest, o.op.Local.Addr, o.op.DBA, o.op.RKey
	case sendConfirm:
		g.typ = msgConfirm
	case sendRelease:
		g.typ = msgRelease
		if o.state == outAborting {
			g.flags |= flagAbort
		}
	case tellDone:
		a.Kind = DoDone
		o.state = outIdle
		m.idle = append(m.idle, i)
	}
	if g.typ != 0 {
		a.Kind = DoControl
		g.put(&a.Msg, m.cfg.PeerToken)
	}
	if o.todo == 0 {
		o.queued = false
	}
	return true, o.todo != 0
}

// fillWrite describes the next segment, which begins at stream.sent.
func (o *outgoing) fillWrite(a *Action, m *Machine) {
	off := uint64(o.stream.sent)
	a.TID = o.tid
	a.Local = Local{Addr: o.op.Local.Addr + off, LKey: o.op.Local.LKey}
	if o.state == outDirect {
		a.RemoteAddr, a.RKey = o.addr+off, o.rkey
		return
	}
	a.RemoteAddr = m.cfg.PeerBase + uint64(o.slot)*uint64(m.cfg.PeerSlot) + off
	a.RKey, a.WithImm = m.cfg.PeerKey, true
	a.Imm = slotImm(o.tid, o.slot, o.stream.sent/m.cfg.Segment)
}
