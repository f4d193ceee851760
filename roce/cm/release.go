package cm

import "fmt"

// inState returns the user's connection if it is in one of the states.
func (m *CM) inState(id CommID, states ...State) (*conn, error) {
	c := m.byID[id]
	if c == nil || !c.user {
		return nil, ErrUnknownID
	}
	for _, s := range states {
		if c.state == s {
			return c, nil
		}
	}
	return nil, fmt.Errorf("%w: it is in %v", ErrState, c.state)
}

// Disconnect ends an established connection, or answers an EventDisconnected that the peer caused.
// In the second case the user may first finish its work, but the CM answers by itself soon. private
// has at most DREQPrivateLen bytes. EventDisconnected follows if this side started, and EventClosed
// in any case.
//
// Errors: ErrUnknownID, ErrState, ErrPrivateData.
func (m *CM) Disconnect(now Time, id CommID, private []byte) error {
	c, err := m.inState(id, StateEstablished, StateDREQRcvd)
	if err != nil {
		return err
	}
	if err := checkPrivate(private, DREQPrivateLen, "DREQ"); err != nil {
		return err
	}
	if c.state == StateDREQRcvd {
		m.sendDREP(c, c.releaseTID, private)
		m.enterTimeWait(now, c)
		return nil
	}
	m.startDREQ(now, c, private)
	return nil
}

// Abort ends a connection in any state. It sends a REJ or DREQ if the state requires one. The only
// further event is EventClosed.
//
// Errors: ErrUnknownID.
func (m *CM) Abort(now Time, id CommID) error {
	c := m.byID[id]
	if c == nil || !c.user {
		return ErrUnknownID
	}
	m.silence(c)
	c.ended = true
	switch c.state {
	case StateREQSent, StateMRAREQRcvd:
		m.refuse(now, c, m.timeoutREJ())
	case StateREQRcvd, StateMRAREQSent:
		m.refuse(now, c, REJ{Message: AnswersREQ, Reason: ReasonConsumer})
	case StateREPRcvd, StateMRAREPSent:
		m.refuse(now, c, REJ{Message: AnswersREP, Reason: ReasonConsumer})
	case StateREPSent, StateMRAREPRcvd: // the application has accepted the peer
		m.refuse(now, c, m.timeoutREJ())
	case StateEstablished:
		m.startDREQ(now, c, nil)
	case StateDREQRcvd:
		m.answerDREQ(now, c)
	case StateSIDRREQSent:
		m.closed(now, c)
	case StateSIDRREQRcvd:
		m.replySIDR(now, c, &SIDRReply{Status: SIDRRejected})
	}
	return nil
}

// Ignore discards a request without an answer: EventConnectRequest or EventSIDRRequest. Its sender
// will repeat it, which is a new request. EventClosed follows.
//
// Errors: ErrUnknownID, ErrState.
func (m *CM) Ignore(now Time, id CommID) error {
	c, err := m.inState(id, StateREQRcvd, StateMRAREQSent, StateSIDRREQRcvd)
	if err != nil {
		return err
	}
	m.silence(c)
	m.closed(now, c)
	return nil
}

// Releasing returns the number of connections that wait for a DREP.
func (m *CM) Releasing() int { return m.ages[ageRelease].n }

// RetransmitDREQs retransmits each DREQ that waits for its answer, without counting it as a retry.
// It is for a user that cannot wait for the peers' timeouts, which are seconds long. A peer that
// has received the first DREQ drops the second.
func (m *CM) RetransmitDREQs() {
	for c := m.ages[ageRelease].head; c != nil; c = c.links[linkAge].next {
		m.retransmit(c)
	}
}

// SetEstablishedHook sets a function that is called when a connection becomes established, and when
// it is no longer. The function must not call methods of the CM.
func (m *CM) SetEstablishedHook(f func(id CommID, established bool)) { m.establishedHook = f }

// Farewell writes a DREQ of an established connection to mad, without ending the connection. If the
// program dies, somebody else can send the DREQ to tell the peer. It returns the peer's address.
//
// Errors: ErrUnknownID, ErrState.
func (m *CM) Farewell(id CommID, mad *MAD) (Addr, error) {
	c, err := m.inState(id, StateEstablished)
	if err != nil {
		return Addr{}, err
	}
	d := DREQ{LocalID: c.id, RemoteID: c.remoteID, RemoteQPN: c.qp.qpn}
	d.Encode(mad, m.rand())
	return c.addr, nil
}

// startDREQ asks the peer to release the connection (Established -> DREQ Sent).
func (m *CM) startDREQ(now Time, c *conn, private []byte) {
	d := DREQ{LocalID: c.id, RemoteID: c.remoteID, RemoteQPN: c.qp.qpn}
	copy(d.Private[:], private)
	c.releaseTID = m.rand()
	d.Encode(c.message(), c.releaseTID)
	m.await(now, c, StateDREQSent)
}

func (m *CM) sendDREP(c *conn, tid uint64, private []byte) {
	d := DREP{LocalID: c.id, RemoteID: c.remoteID}
	copy(d.Private[:], private)
	d.Encode(c.message(), tid)
	m.send(c)
}

// answerDREQ sends the DREP (DREQ Rcvd -> TIME-WAIT).
func (m *CM) answerDREQ(now Time, c *conn) {
	m.sendDREP(c, c.releaseTID, nil)
	m.enterTimeWait(now, c)
}

// takeDREQ decodes a DREQ into m.dreq and stores its transaction. It returns false if the DREQ does
// not name the local QP.
func (m *CM) takeDREQ(c *conn, p *packet) bool {
	m.dreq.Decode(p.m)
	if m.dreq.RemoteQPN != c.localQPN {
		m.c.Malformed++
		return false
	}
	c.releaseTID = p.m.TID()
	return true
}

// concludeDREQ queues the event of the DREQ in m.dreq.
func (m *CM) concludeDREQ(c *conn) {
	m.conclude(c, Event{Kind: EventDisconnected,
		PrivateData: append([]byte(nil), m.dreq.Private[:]...)})
}

// handleDREQ handles a DREQ. It gives the user time before the DREP is sent (Established -> DREQ
// Rcvd).
func (m *CM) handleDREQ(now Time, c *conn, p *packet) {
	if !m.takeDREQ(c, p) {
		return
	}
	if c.state != StateEstablished {
		// Only an established peer sends a DREQ, so the RTU was lost or is late.
		m.established(now, c, nil)
	}
	m.concludeDREQ(c)
	m.setState(now, c, StateDREQRcvd)
	m.arm(c, now+min(c.interval/2, drepGrace))
}

// answerDREQNow answers a peer that releases before this side was ready (REP Rcvd -> TIME-WAIT) or
// at the same time as this side (DREQ Sent -> TIME-WAIT). In the second case it does not wait for
// the DREP to its own DREQ.
func (m *CM) answerDREQNow(now Time, c *conn, p *packet) {
	if m.takeDREQ(c, p) {
		m.concludeDREQ(c)
		m.answerDREQ(now, c)
	}
}

// duplicateDREQ answers a retransmitted DREQ, because the user has not called Disconnect yet.
func (m *CM) duplicateDREQ(now Time, c *conn, p *packet) {
	if m.takeDREQ(c, p) {
		m.c.Duplicate[p.attr.Index()]++
		m.answerDREQ(now, c)
	}
}

// handleDREP handles the end of the release (DREQ Sent -> TIME-WAIT).
func (m *CM) handleDREP(now Time, c *conn, p *packet) {
	var d DREP
	d.Decode(p.m)
	m.conclude(c, Event{Kind: EventDisconnected, PrivateData: append([]byte(nil), d.Private[:]...)})
	m.unsend(c)
	m.enterTimeWait(now, c)
}

// resendDREP answers a DREQ in TIME-WAIT: the DREP was lost, or both sides sent a DREQ.
func (m *CM) resendDREP(_ Time, c *conn, p *packet) {
	if m.takeDREQ(c, p) {
		m.c.Duplicate[p.attr.Index()]++
		m.sendDREP(c, c.releaseTID, nil)
	}
}

// answerDREQOnly answers the DREQ of a peer that has not received this side's REJ yet.
func (m *CM) answerDREQOnly(_ Time, c *conn, p *packet) {
	m.answer(answer{to: p.from, attr: AttrDREP, tid: p.m.TID(), local: c.id, remote: p.m.LocalID()})
}

// handleLateREJ handles a REJ for a connection that is established or being released here.
func (m *CM) handleLateREJ(now Time, c *conn, _ *packet) {
	m.conclude(c, m.rej.event(EventDisconnected))
	m.enterTimeWait(now, c)
}

// refuseLAP answers a LAP: RoCE has no alternate paths.
func (m *CM) refuseLAP(_ Time, c *conn, p *packet) {
	m.answer(answer{
		to: p.from, attr: AttrAPR, tid: p.m.TID(), local: c.id, remote: c.remoteID,
		status: aprUnsupported,
	})
}
