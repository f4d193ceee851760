package core

// watch checks whether the peer is alive: keepalives times per Config.Silence while a transfer is
// unfinished, and once per idleTimes Silence otherwise. It counts checks, not only time, so a
// driver that was held up makes one check when it continues, not the last one.
type watch struct {
	due   Time // time of the next check; 0: not planned yet
	idle  bool // nothing is unfinished
	heard bool // a message or data arrived since the last check
	quiet int  // consecutive checks without a message
	talks int  // consecutive checks with one
}

// guard checks more often from now on: something is unfinished.
func (m *Machine) guard(now Time) {
	if m.watch.idle || m.watch.due == 0 {
		m.watch = watch{due: now + m.pulse()}
		m.next = min(m.next, m.watch.due)
	}
}

// rest checks the peer's NIC from time to time, so that an idle connection to a dead host ends.
func (m *Machine) rest(now Time) {
	w := &m.watch
	m.send.probe = w.idle && !w.heard
	*w = watch{due: now + idleTimes*m.cfg.Silence, idle: true}
}

// pulse is the interval of signs of life and checks while a transfer is unfinished.
func (m *Machine) pulse() Time { return max(m.cfg.Silence/keepalives, 1) }

// look performs a check if it is due. What the peer's program started here ends when the peer is
// silent. What this side started waits as long as the peer's NIC acknowledges empty WRITEs;
// otherwise RC ends the connection. The NIC is not probed before that, because RC alone would
// tolerate a peer without processor time for a few seconds only.
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

// owing reports whether a transfer that the peer started is unfinished.
func (m *Machine) owing() bool {
	for i := range m.in {
		if m.in[i].state != inFree {
			return true
		}
	}
	for i := range m.ownSlots {
		if m.ownSlots[i].busy {
			return true
		}
	}
	return false
}
