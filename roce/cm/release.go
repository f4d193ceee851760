package cm

import "fmt"

// inState finds the user's connection and checks that it is in one of the states.
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

// Disconnect ends an established connection, or answers EventDisconnected of a peer that wants to end
// it: at once if the user has nothing to finish; the CM does it by itself soon. private has at most
// DREQPrivateLen bytes. EventDisconnected follows if this end began, EventClosed in any case.
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

// Abort ends a connection in any state as decently as it can: a REJ or DREQ goes out, but the user
// hears of nothing more than EventClosed.
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
	case StateREPSent, StateMRAREPRcvd:
		m.refuse(now, c, REJ{Message: AnswersOther, Reason: ReasonConsumer})
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

// Releasing is how many connections wait for the DREP that answers their DREQ.
func (m *CM) Releasing() int { return m.ages[ageRelease].n }

// RepeatDREQs sends each DREQ again that waits for its answer, before its time: for a user who cannot stay until the
// peer's time-outs, which are seconds, have passed. It does not count as a retry. A peer that has the first one drops the second.
func (m *CM) RepeatDREQs() {
	for c := m.ages[ageRelease].head; c != nil; c = c.links[linkAge].next {
		m.repeat(c)
	}
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

// takeDREQ decodes a DREQ into m.dreq and notes its transaction. It must name this end's QP.
func (m *CM) takeDREQ(c *conn, p *packet) bool {
	m.dreq.Decode(p.m)
	if m.dreq.RemoteQPN != c.localQPN {
		m.c.Malformed++
		return false
	}
	c.releaseTID = p.m.TID()
	return true
}

// concludeDREQ tells the user of the DREQ in m.dreq.
func (m *CM) concludeDREQ(c *conn) {
	m.conclude(c, Event{Kind: EventDisconnected, PrivateData: append([]byte(nil), m.dreq.Private[:]...)})
}

// dreqArrives lets the user finish before the DREP goes out (Established -> DREQ Rcvd).
func (m *CM) dreqArrives(now Time, c *conn, p *packet) {
	if !m.takeDREQ(c, p) {
		return
	}
	if c.state != StateEstablished {
		// Only an established peer releases, so the RTU was lost, or comes behind.
		m.established(now, c, nil)
	}
	m.concludeDREQ(c)
	m.setState(now, c, StateDREQRcvd)
	m.arm(c, now+min(c.interval/2, drepGrace))
}

// dreqAtOnce answers a peer that releases before this end was ready (REP Rcvd -> TIME-WAIT), or at
// the same time as this end (DREQ Sent -> TIME-WAIT): it will answer this end's DREQ, too, but that
// need not be awaited.
func (m *CM) dreqAtOnce(now Time, c *conn, p *packet) {
	if m.takeDREQ(c, p) {
		m.concludeDREQ(c)
		m.answerDREQ(now, c)
	}
}

// dreqAgain is a peer that waits for the DREP: the user was too slow.
func (m *CM) dreqAgain(now Time, c *conn, p *packet) {
	if m.takeDREQ(c, p) {
		m.c.Duplicate[p.attr.Index()]++
		m.answerDREQ(now, c)
	}
}

// drepArrives ends the release (DREQ Sent -> TIME-WAIT).
func (m *CM) drepArrives(now Time, c *conn, p *packet) {
	var d DREP
	d.Decode(p.m)
	m.conclude(c, Event{Kind: EventDisconnected, PrivateData: append([]byte(nil), d.Private[:]...)})
	m.unsend(c)
	m.enterTimeWait(now, c)
}

// drepAgain answers a DREQ in TIME-WAIT: the DREP was lost, or the DREQs crossed.
func (m *CM) drepAgain(_ Time, c *conn, p *packet) {
	if m.takeDREQ(c, p) {
		m.c.Duplicate[p.attr.Index()]++
		m.sendDREP(c, c.releaseTID, nil)
	}
}

// drepOnly answers the DREQ of a peer that has not seen this end's REJ yet.
func (m *CM) drepOnly(_ Time, c *conn, p *packet) {
	m.answer(answer{to: p.from, attr: AttrDREP, tid: p.m.TID(), local: c.id, remote: p.m.LocalID()})
}

// brokenOff is a REJ for a connection that this end takes for established, or releases already.
func (m *CM) brokenOff(now Time, c *conn, _ *packet) {
	m.conclude(c, m.rej.event(EventDisconnected))
	m.enterTimeWait(now, c)
}

// lapUnsupported answers that RoCE has no alternate paths.
func (m *CM) lapUnsupported(_ Time, c *conn, p *packet) {
	m.answer(answer{to: p.from, attr: AttrAPR, tid: p.m.TID(), local: c.id, remote: c.remoteID, status: aprUnsupported})
}
