package cm

import "encoding/binary"

// newConn creates a connection in StateIdle with a random communication ID, so that a host that
// does not see the packets cannot end it. It returns nil if the table is full and nothing can be
// evicted (see makeSpace), or if it finds no free ID.
func (m *CM) newConn(now Time, a Addr) *conn {
	if len(m.byID) >= m.maxConns && !m.makeSpace(now) {
		return nil
	}
	for range commIDTries {
		id := m.ids.draw(m.rand())
		if id == 0 || m.byID[id] != nil {
			continue
		}
		c := &conn{id: id, addr: a, user: true, verified: true}
		m.byID[id] = c
		return c
	}
	return nil
}

// makeSpace evicts one connection: a refusal that is kept, the oldest TIME-WAIT, or the connection
// that has waited longest for its DREP. Otherwise peers that do not answer, and choose long
// timeouts, could fill the table with connections that have ended.
func (m *CM) makeSpace(now Time) bool {
	if m.evict(now, ageLinger, &m.c.EvictedLinger) ||
		m.evict(now, ageTimeWait, &m.c.EvictedTimeWait) {
		return true
	}
	c := m.ages[ageRelease].head
	if c == nil || now-c.since < answerGrace {
		return false
	}
	m.conclude(c, Event{Kind: EventDisconnected})
	return m.evict(now, ageRelease, &m.c.EvictedRelease)
}

// evict removes the oldest connection of a list and counts it.
func (m *CM) evict(now Time, age int, count *uint64) bool {
	c := m.ages[age].head
	if c == nil {
		return false
	}
	*count++
	m.closed(now, c)
	return true
}

// permits reports whether a peer may send requests to a listener; l may be nil.
func (m *CM) permits(p *packet, l *listener) bool {
	a := p.from.Remote.Addr()
	if m.peers.Permits(a) && (l == nil || l.peers.Permits(a)) {
		return true
	}
	m.c.DropPeer++
	return false
}

// setState changes the state of a connection, and the lists and tables that it is in because of its
// state. Nothing else changes them.
func (m *CM) setState(now Time, c *conn, s State) {
	was, is := memberships[c.state], memberships[s]
	if m.establishedHook != nil && (c.state == StateEstablished) != (s == StateEstablished) {
		m.establishedHook(c.id, s == StateEstablished)
	}
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

// emit queues an event, unless the user has released the connection.
func (m *CM) emit(c *conn, e Event) {
	if !c.user {
		return
	}
	e.ID = c.id
	m.responded = true
	c.events = append(c.events, e)
	m.eventful.push(c)
}

// conclude queues the event that ends the connection, once. If the user has not polled its first
// event yet, it discards the connection silently instead.
func (m *CM) conclude(c *conn, e Event) {
	if c.ended {
		return
	}
	c.ended = true
	if len(c.events) > 0 &&
		(c.events[0].Kind == EventConnectRequest || c.events[0].Kind == EventSIDRRequest) {
		m.silence(c)
		c.user = false
		return
	}
	m.emit(c, e)
}

// silence discards queued events.
func (m *CM) silence(c *conn) {
	c.events = nil
	c.leave(linkEvent)
}

// release tells the user that the connection is closed. The CM may keep it longer.
func (m *CM) release(c *conn) {
	m.emit(c, Event{Kind: EventClosed})
	c.user = false
}

// closed removes a connection. Its queued events can still be polled.
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

// message returns the buffer for the next message to send. If an RTU is still in it, waiting to be
// sent, it is saved and sent first.
func (c *conn) message() *MAD {
	if c.links[linkTransmit].in != nil && c.sent.Attribute() == AttrRTU {
		rtu := c.sent
		c.before = &rtu
	}
	return &c.sent
}

// send queues the connection's message for transmission. It drops the message if the peer's address
// may be forged and the budget for it is used up.
func (m *CM) send(c *conn) {
	if !c.verified {
		if c.budget == 0 {
			m.c.DropUnverified++
			return
		}
		c.budget--
	}
	m.responded = true
	m.transmit.push(c)
}

// grant adds what a request from an unverified address permits to send to it.
func (c *conn) grant() { c.budget = uint8(min(int(c.budget)+amplification, maxBudget)) }

// verify records that the peer has sent our communication ID, which is random, or data. So it
// receives what this side sends.
func (c *conn) verify(now Time) {
	if !c.verified {
		c.verified = true
		c.lastCall = now + maxHalfOpen
	}
}

// await sends the connection's message and enters state s, which waits for the answer.
func (m *CM) await(now Time, c *conn, s State) {
	c.retries, c.mras = 0, 0
	m.setState(now, c, s)
	m.arm(c, c.bound(now+c.interval))
	m.send(c)
}

// bound limits a deadline of a half-open connection.
func (c *conn) bound(t Time) Time {
	if memberships[c.state].halfOpen {
		return min(t, c.lastCall)
	}
	return t
}

// unsend removes messages that have not been sent yet.
func (m *CM) unsend(c *conn) {
	c.leave(linkTransmit)
	c.before = nil
}

// retransmit sends the connection's message again.
func (m *CM) retransmit(c *conn) {
	m.c.Retransmitted[c.sent.Attribute().Index()]++
	m.send(c)
}

// answerDuplicate answers a duplicate with the message that answered the original.
func (m *CM) answerDuplicate(_ Time, c *conn, p *packet) {
	m.c.Duplicate[p.attr.Index()]++
	m.retransmit(c)
}

// retry handles the timeout of an answer.
func (m *CM) retry(now Time, c *conn) {
	m.c.Timeouts++
	if c.retries < c.maxRetries && c.bound(now+1) > now {
		c.retries++
		// The last MAD for an unverified address is the REJ of giveUp.
		if c.verified || c.budget > 1 {
			m.retransmit(c)
		}
		m.arm(c, c.bound(now+c.interval))
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

// giveUp ends the setup of a connection whose peer does not answer, and sends it a REJ.
func (m *CM) giveUp(now Time, c *conn) {
	m.conclude(c, Event{Kind: EventUnreachable})
	m.refuse(now, c, m.timeoutREJ())
}

// timeoutREJ returns the REJ of a side that stops waiting. The GUID in it lets the peer find the
// request even if this side has not received the peer's communication ID.
func (m *CM) timeoutREJ() REJ {
	j := REJ{Message: AnswersOther, Reason: ReasonTimeout, InfoLen: 8}
	binary.BigEndian.PutUint64(j.Info[:], uint64(m.guid))
	return j
}

// guid returns the GUID in a peer's timeoutREJ.
func (j *REJ) guid() GUID { return GUID(binary.BigEndian.Uint64(j.Info[:])) }

// refuse sends a REJ and keeps it for a while to answer duplicates. It releases the connection for
// the user.
func (m *CM) refuse(now Time, c *conn, j REJ) {
	j.LocalID, j.RemoteID = c.id, c.remoteID
	j.Encode(c.message(), c.tid)
	m.release(c)
	m.linger(now, c, StateRefused)
}

// linger keeps an ended connection long enough that a retransmitted request finds it.
func (m *CM) linger(now Time, c *conn, s State) {
	m.setState(now, c, s)
	m.arm(c, now+min(2*c.interval, maxLingerTime))
	m.send(c)
	if m.ages[ageLinger].n > maxLinger {
		m.evict(now, ageLinger, &m.c.EvictedLinger)
	}
}

// enterTimeWait keeps the connection until its packets have left the network.
func (m *CM) enterTimeWait(now Time, c *conn) {
	m.setState(now, c, StateTimeWait)
	m.arm(c, now+c.timeWait)
}

// mraExpired handles the end of the time that an MRA asked for. It retransmits, because the answer
// may have been lost.
func (m *CM) mraExpired(now Time, c *conn) {
	if c.state == StateMRAREQRcvd {
		m.setState(now, c, StateREQSent)
	} else {
		m.setState(now, c, StateREPSent)
	}
	m.retry(now, c)
}

// handleMRA handles an MRA.
func (m *CM) handleMRA(now Time, c *conn, p *packet, about Answered, s State) {
	var r MRA
	r.Decode(p.m)
	if r.Message != about || c.mras == maxMRA {
		m.c.Late[p.attr.Index()]++
		return
	}
	c.mras++
	m.unsend(c)
	m.setState(now, c, s)
	m.arm(c, c.bound(now+exponentTime(min(r.ServiceTimeout, maxMRAExponent))+c.interval))
}

// sendMRA asks the peer to wait for 4.096 us x 2^t.
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

// extend sends an MRA to a peer that retransmits a message because the user has not answered yet. A
// message that comes right after the original is a duplicate made by the network. An MRA for it
// would only delay the peer's next retransmission, which is needed if our answer gets lost.
func (m *CM) extend(now Time, c *conn, p *packet) {
	m.c.Duplicate[p.attr.Index()]++
	if now >= c.again {
		m.sendMRA(now, c, mraExponent)
	}
}

// handleREJ ends the setup of a connection that the peer refuses.
func (m *CM) handleREJ(now Time, c *conn, _ *packet) {
	m.conclude(c, m.rej.event(EventRejected))
	if m.rej.Reason == ReasonStaleConnection {
		// The peer took our QP for one of an old connection, whose packets may still arrive.
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

// suspect handles a message by which the peer seems to have forgotten the connection. The message
// may be forged, so nothing ends: the user of an established connection is told, and other states
// have deadlines.
func (m *CM) suspect(now Time, c *conn) {
	m.c.Stale++
	if c.state != StateEstablished || c.ended || now < c.suspectAt {
		return
	}
	c.suspectAt = now + suspectInterval
	m.emit(c, Event{Kind: EventSuspect})
}
