package core

// watch finds out whether the peer is alive. It looks keepalives times in Config.Silence while a transfer is unfinished, and once in idleTimes Silence
// while none is. It counts looks, and not time alone: a driver that was itself held up for long takes one look upon its return, and not the
// last.
type watch struct {
	due   Time // of the next look; 0: the first one has yet to be planned
	idle  bool // nothing is unfinished
	heard bool // a message or data since the last one
	quiet int  // looks in a row without
	talks int  // looks in a row with
}

// guard looks more closely from now on: something has to be finished with the peer.
func (m *Machine) guard(now Time) {
	if m.watch.idle || m.watch.due == 0 {
		m.watch = watch{due: now + m.pulse()}
		m.next = min(m.next, m.watch.due)
	}
}

// rest looks now and then whether the peer's NIC is there: an idle connection to a host that has died would hold its place for ever.
func (m *Machine) rest(now Time) {
	w := &m.watch
	m.send.probe = w.idle && !w.heard
	*w = watch{due: now + idleTimes*m.cfg.Silence, idle: true}
}

// pulse is how often each end says something while a transfer lasts, and listens for it.
func (m *Machine) pulse() Time { return max(m.cfg.Silence/keepalives, 1) }

// look is one look, if it is due. What the peer's program has begun here dies with its word. What was begun at this end waits for as long as the
// peer's NIC acknowledges an empty WRITE; RC ends the connection if it does not. That is not tried before: RC alone would bear with
// a peer that gets no processor time for some seconds only.
func (m *Machine) look(now Time) {
	w := &m.watch
	if now < w.due {
		return
	}
	busy, owing := m.Busy() > 0, m.owing()
	if !busy && !owing {
		m.rest(now)
		return
	}
	w.quiet, w.talks = w.quiet+1, w.talks+1
	if w.heard {
		w.quiet = 0
	} else {
		w.talks = 0
	}
	w.heard = false
	w.due = now + m.pulse()
	if m.send.probe = w.quiet >= keepalives; m.send.probe && owing {
		m.Kill(ErrSilent)
		w.due = Never
	}
}

// owing tells whether anything that the peer has begun here is unfinished.
func (m *Machine) owing() bool {
	for i := range m.in {
		if m.in[i].state != inFree {
			return true
		}
	}
	for i := range m.lots {
		if m.lots[i].busy {
			return true
		}
	}
	return false
}
