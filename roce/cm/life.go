package cm

import "encoding/binary"

// newConn makes a connection in StateIdle and gives it a communication ID, which is random, so that
// nobody who does not see the packets can end it. It returns nil if there is no room, or no free ID
// after some draws. Room is made of what has ended, or should have: see makeRoom.
func (m *CM) newConn(now Time, a Addr) *conn {
	if len(m.byID) >= m.maxConns && !m.makeRoom(now) {
		return nil
	}
	for range commIDTries {
		id := CommID(m.rand())
		if id == 0 || m.byID[id] != nil {
			continue
		}
		c := &conn{id: id, addr: a, user: true, heap: -1}
		m.byID[id] = c
		return c
	}
	return nil
}

// makeRoom ends a kept refusal, the oldest TIME-WAIT, or the release that waits longest for its DREP: a peer that does
// not answer, and chose the time-outs, could else fill all places with connections that nobody wants any more.
func (m *CM) makeRoom(now Time) bool {
	if m.evict(now, ageLinger, &m.c.EvictedLinger) || m.evict(now, ageTimeWait, &m.c.EvictedTimeWait) {
		return true
	}
	c := m.ages[ageRelease].head
	if c == nil || now-c.since < answerGrace {
		return false
	}
	m.conclude(c, Event{Kind: EventDisconnected})
	return m.evict(now, ageRelease, &m.c.EvictedRelease)
}

// evict ends the oldest connection of a list of ended ones.
func (m *CM) evict(now Time, age int, count *uint64) bool {
	c := m.ages[age].head
	if c == nil {
		return false
	}
	*count++
	m.closed(now, c)
	return true
}

// setState is the one place where a connection enters and leaves what its state makes it a member of.
func (m *CM) setState(now Time, c *conn, s State) {
	was, is := memberships[c.state], memberships[s]
	c.state = s
	if was.pending != is.pending {
		if is.pending {
			c.listener.pending.add(c.addr.Remote)
			m.pending++
		} else {
			c.listener.pending.remove(c.addr.Remote)
			m.pending--
			c.listener = nil
		}
	}
	if was.halfOpen != is.halfOpen {
		if is.halfOpen {
			m.halfOpen.add(c.addr.Remote)
		} else {
			m.halfOpen.remove(c.addr.Remote)
		}
	}
	if is.holdsQP && !c.inQPs {
		m.byQP[c.qp] = c
		c.inQPs = true
	} else if !is.holdsQP && c.inQPs {
		delete(m.byQP, c.qp)
		c.inQPs = false
	}
	if was.age != is.age {
		c.leave(linkAge)
		if is.age != ageNone {
			m.ages[is.age].push(c)
			c.since = now
		}
	}
}

// emit tells the user something, unless he has let go of the connection.
func (m *CM) emit(c *conn, e Event) {
	if !c.user {
		return
	}
	e.ID = c.id
	c.events = append(c.events, e)
	m.eventful.push(c)
}

// conclude tells the user that the connection ends, once. If he has not heard of it yet, he never
// will.
func (m *CM) conclude(c *conn, e Event) {
	if c.ended {
		return
	}
	c.ended = true
	if len(c.events) > 0 && (c.events[0].Kind == EventConnectRequest || c.events[0].Kind == EventSIDRRequest) {
		m.silence(c)
		c.user = false
		return
	}
	m.emit(c, e)
}

// silence drops events that wait to be polled.
func (m *CM) silence(c *conn) {
	c.events = nil
	c.leave(linkEvent)
}

// release tells the user that the connection is no more; the CM may keep it a while for itself.
func (m *CM) release(c *conn) {
	m.emit(c, Event{Kind: EventClosed})
	c.user = false
}

// closed ends a connection for good. Events that wait stay to be polled.
func (m *CM) closed(now Time, c *conn) {
	m.release(c)
	m.setState(now, c, StateIdle)
	m.disarm(c)
	m.unsend(c)
	delete(m.byID, c.id)
	if c.inRemote {
		delete(m.byRemote, c.remote)
		c.inRemote = false
	}
}

// message makes room for the message to send next. An RTU that has not left yet still will.
func (c *conn) message() *MAD {
	if c.links[linkTransmit].in != nil && c.sent.Attribute() == AttrRTU {
		rtu := c.sent
		c.before = &rtu
	}
	return &c.sent
}

// send puts the connection's message in line.
func (m *CM) send(c *conn) { m.transmit.push(c) }

// await sends the connection's message and waits for an answer in state s.
func (m *CM) await(now Time, c *conn, s State) {
	c.retries, c.mras = 0, 0
	m.setState(now, c, s)
	m.arm(c, now+c.interval)
	m.send(c)
}

// unsend takes back what has not left yet.
func (m *CM) unsend(c *conn) {
	c.leave(linkTransmit)
	c.before = nil
}

// repeat sends the connection's message again.
func (m *CM) repeat(c *conn) {
	m.c.Repeated[c.sent.Attribute().Index()]++
	m.send(c)
}

// repeatFor answers a duplicate as the first was answered.
func (m *CM) repeatFor(_ Time, c *conn, p *packet) {
	m.c.Duplicate[p.attr.Index()]++
	m.repeat(c)
}

// retry is for an answer that did not come in time.
func (m *CM) retry(now Time, c *conn) {
	m.c.Timeouts++
	if c.retries < c.maxRetries {
		c.retries++
		m.repeat(c)
		m.arm(c, now+c.interval)
		return
	}
	m.c.GaveUp++
	switch c.state {
	case StateDREQSent:
		m.conclude(c, Event{Kind: EventDisconnected})
		m.enterTimeWait(now, c)
	case StateSIDRREQSent:
		m.conclude(c, Event{Kind: EventUnreachable})
		m.closed(now, c)
	default:
		m.giveUp(now, c)
	}
}

// giveUp ends a set-up whose peer does not answer, and tells that one.
func (m *CM) giveUp(now Time, c *conn) {
	m.conclude(c, Event{Kind: EventUnreachable})
	m.refuse(now, c, m.timeoutREJ())
}

// timeoutREJ is the REJ of an end that waits no longer: by the GUID the peer finds the request even
// if it never told its own communication ID.
func (m *CM) timeoutREJ() REJ {
	j := REJ{Message: AnswersOther, Reason: ReasonTimeout, InfoLen: 8}
	binary.BigEndian.PutUint64(j.Info[:], uint64(m.guid))
	return j
}

// guid is what a peer's timeoutREJ has in its information.
func (j *REJ) guid() GUID { return GUID(binary.BigEndian.Uint64(j.Info[:])) }

// refuse sends a REJ and keeps it a while to be repeated for duplicates. The user is done.
func (m *CM) refuse(now Time, c *conn, j REJ) {
	j.LocalID, j.RemoteID = c.id, c.remoteID
	j.Encode(c.message(), c.tid)
	m.release(c)
	m.linger(now, c, StateRefused)
}

// linger keeps an ended connection so long that a repeated request finds it.
func (m *CM) linger(now Time, c *conn, s State) {
	m.setState(now, c, s)
	m.arm(c, now+min(2*c.interval, maxLingerTime))
	m.send(c)
	if m.ages[ageLinger].n > maxLinger {
		m.evict(now, ageLinger, &m.c.EvictedLinger)
	}
}

// enterTimeWait lets packets of the connection die out before its end.
func (m *CM) enterTimeWait(now Time, c *conn) {
	m.setState(now, c, StateTimeWait)
	m.arm(c, now+c.timeWait)
}

// patienceOver is when the time that an MRA asked for has passed: the message is repeated as if no
// MRA had come, so that a lost answer is not the end.
func (m *CM) patienceOver(now Time, c *conn) {
	if c.state == StateMRAREQRcvd {
		m.setState(now, c, StateREQSent)
	} else {
		m.setState(now, c, StateREPSent)
	}
	m.retry(now, c)
}

// mraFor takes in an MRA.
func (m *CM) mraFor(now Time, c *conn, p *packet, about Answered, s State) {
	var r MRA
	r.Decode(p.m)
	if r.Message != about || c.mras == maxMRA {
		m.c.Late[p.attr.Index()]++
		return
	}
	c.mras++
	m.unsend(c)
	m.setState(now, c, s)
	m.arm(c, now+exponentTime(min(r.ServiceTimeout, maxMRAExponent))+c.interval)
}

// sendMRA asks the peer for patience: 4.096 us x 2^t.
func (m *CM) sendMRA(now Time, c *conn, t uint8) {
	r := MRA{LocalID: c.id, RemoteID: c.remoteID, ServiceTimeout: t}
	s := StateMRAREQSent
	if c.active {
		r.Message, s = AnswersREP, StateMRAREPSent
	}
	r.Encode(c.message(), c.tid)
	m.setState(now, c, s)
	if !c.active {
		m.arm(c, min(max(c.deadline, now+exponentTime(t)+c.interval), c.lastCall))
	}
	m.send(c)
}

// patience asks a peer that repeats its message for patience, because the user takes his time. What comes right behind
// the first is the network's duplicate: an MRA would put the peer off for long, and if this end's answer is lost then,
// the peer asks for it so much later.
func (m *CM) patience(now Time, c *conn, p *packet) {
	m.c.Duplicate[p.attr.Index()]++
	if now >= c.again {
		m.sendMRA(now, c, mraExponent)
	}
}

// rejected ends a set-up that the peer refuses or breaks off.
func (m *CM) rejected(now Time, c *conn, _ *packet) {
	m.conclude(c, m.rej.event(EventRejected))
	if m.rej.Reason == ReasonStaleConnection {
		// The peer took this end's QP for one of an old connection: packets of that may come yet.
		m.enterTimeWait(now, c)
		return
	}
	m.closed(now, c)
}

func (j *REJ) event(k EventKind) Event {
	e := Event{Kind: k, Reason: j.Reason, PrivateData: append([]byte(nil), j.Private[:]...)}
	if n := min(int(j.InfoLen), InfoLen); n > 0 {
		e.Info = append([]byte(nil), j.Info[:n]...)
	}
	return e
}

// stale ends a connection whose peer has forgotten it, as a request or reply with the same QP shows
// (IBA 12.4.1, 12.9.8.3.1).
func (m *CM) stale(now Time, c *conn) {
	m.c.Stale++
	e := Event{Kind: EventRejected, Local: true, Reason: ReasonStaleConnection}
	switch c.state {
	case StateREQRcvd, StateMRAREQSent:
		m.conclude(c, e)
		m.closed(now, c)
	case StateREPRcvd, StateMRAREPSent:
		m.conclude(c, e)
		m.refuse(now, c, REJ{Message: AnswersREP, Reason: ReasonStaleConnection})
	case StateREPSent, StateMRAREPRcvd, StateEstablished:
		e.Kind = EventDisconnected
		m.conclude(c, e)
		m.startDREQ(now, c, nil)
	}
}
