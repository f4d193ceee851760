package core

// space reports whether a control message can be sent. The last receive of the peer is reserved for
// messages that make the peer, or this side, process others.
func (m *Machine) space(last bool) bool {
	limit := uint32(ControlDepth - 1)
	if last {
		limit = ControlDepth
	}
	return m.ctl.sends < ControlDepth && m.ctl.sent-m.ctl.acked < limit
}

// begin begins a control message.
func (m *Machine) begin(t Type) *builder {
	c := &m.ctl
	c.w.begin(t, c.received, c.inTaken)
	c.reported, c.inTold = c.received, c.inTaken
	return &c.w
}

// emit sends the message that begin began.
func (m *Machine) emit(now Time, a *Action) bool {
	c := &m.ctl
	*a = Action{Kind: DoControl, Msg: c.w.message()}
	c.sent++
	c.sends++
	c.sentAt, c.keepalive = now, false
	m.Counters.ControlSent++
	return true
}

func (m *Machine) pollBye(now Time, a *Action) bool {
	if !m.space(true) {
		return false
	}
	m.byes = byeSent
	m.begin(TypeBye).text(m.bye)
	return m.emit(now, a)
}

// pollControl sends the most urgent control message.
func (m *Machine) pollControl(now Time, a *Action) bool {
	if m.space(false) && (m.buildRecovery() || m.buildSink() || m.buildSource() ||
		m.buildMessage() || m.buildFinish()) {
		return m.emit(now, a)
	}
	c := &m.ctl
	due := c.keepalive || c.received-c.reported >= ControlDepth/2 ||
		c.inTaken-c.inTold >= MessageWindow/2
	if !due || !m.space(true) {
		return false
	}
	m.begin(TypeAck)
	return m.emit(now, a)
}

func (m *Machine) buildMessage() bool {
	c := &m.ctl
	if c.out.len() == 0 {
		return false
	}
	c.outN++
	m.begin(TypeMessage).bytes(c.out.pop())
	return true
}

func (m *Machine) buildFinish() bool {
	if !m.fin.wanted || m.fin.sent || len(m.src.sessions) > 0 {
		return false
	}
	m.fin.sent, m.fin.at = true, m.ctl.sent+1
	m.begin(TypeFinish)
	return true
}

// buildSink builds the next message of the sink.
func (m *Machine) buildSink() bool {
	s := &m.snk
	switch {
	case s.acceptDue:
		m.buildAccept()
	case s.grantable(m.cfg.Mode) > 0:
		m.buildGrant()
	case s.refusals.len() > 0:
		r := s.refusals.pop()
		w := m.begin(TypeRefuse)
		w.u32(r.id)
		w.text(r.text)
	case s.done.len() > 0:
		w := m.begin(TypeDone)
		for s.done.len() > 0 && w.space() >= 4 {
			w.u32(s.done.pop())
		}
	case s.reportable():
		w := m.begin(TypeConsumed)
		for w.space() >= reportLen && s.reportable() {
			o := s.dirty.pop()
			o.dirty, o.reported = false, o.consumed
			w.u32(o.id)
			w.u32(o.consumed)
		}
	default:
		return false
	}
	return true
}

// reportable reports whether the first session of dirty exists. It removes those that are done, of
// which the peer knows already.
func (s *sink) reportable() bool {
	for s.dirty.len() > 0 {
		if o := s.dirty.first(); s.sessions[o.id] == o {
			return true
		}
		s.dirty.pop()
	}
	return false
}

func (m *Machine) buildAccept() {
	s := &m.snk
	s.acceptDue = false
	w := m.begin(TypeAccept)
	w.u32(m.cfg.BlockSize)
	w.u32(uint32(len(s.blocks)))
	w.u32(uint32(m.cfg.Sessions))
	w.u32(uint32(m.cfg.Mode) << 24)
	m.putGrants(w)
}

func (m *Machine) buildGrant() {
	s := &m.snk
	w := m.begin(TypeGrant)
	at := w.n
	w.u32(0)
	w.u32(s.requested)
	m.putGrants(w)
	end := w.n
	w.n = at
	w.u32(s.grants)
	w.n = end
}

// putGrants grants as many blocks as possible and as fit in the message.
func (m *Machine) putGrants(w *builder) {
	s := &m.snk
	for n := s.grantable(m.cfg.Mode); n > 0 && w.space() >= grantLen; n-- {
		w.grant(s.grant(m.cfg.Mode))
		m.Counters.Grants++
	}
}

// buildSource builds the next message of the source.
func (m *Machine) buildSource() bool {
	s := &m.src
	n := m.missing()
	switch {
	case n > 0:
		s.requested += n
		m.Counters.Requests++
		m.begin(TypeRequest).u32(s.requested)
	case s.fins.len() > 0:
		w := m.begin(TypeFin)
		for s.fins.len() > 0 && w.space() >= idLen {
			w.u32(s.fins.pop())
		}
	case s.orders.len() > 0:
		return m.buildOrder()
	default:
		return false
	}
	return true
}

// buildOrder opens or ends a session of the source.
func (m *Machine) buildOrder() bool {
	s := &m.src
	o := s.orders.first()
	if o.opened {
		s.orders.pop()
		w := m.begin(TypeEnd)
		w.u32(o.id)
		if o.aborted {
			w.u32(o.posted)
			w.u32(1)
			w.text(o.text)
		} else {
			w.u32(o.next)
			w.u32(0)
		}
		o.endSent = true
		return true
	}
	if !s.accepted || s.onWire >= s.peerSessions {
		return false
	}
	s.orders.pop()
	s.onWire++
	o.opened, s.stuck = true, false
	w := m.begin(TypeOpen)
	w.u32(o.id)
	w.bytes(o.params)
	o.params = nil
	return true
}
