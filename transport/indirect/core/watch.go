package core

// watch finds out whether the peer is alive. It looks keepalives times in Config.Silence while a transfer is unfinished, and once while none is. It
// counts looks, and not time alone: a driver that was itself held up for long takes one look upon its return, and not the last.
type watch struct {
	due   Time // of the next look; 0: the first one has yet to be planned
	idle  bool // nothing is unfinished
	heard bool // a message or data since the last one: the peer's program lives
	acked bool // data has been acknowledged since: its NIC does
	quiet int  // looks in a row without a word
	numb  int  // and without an acknowledgement either
	talks int  // looks in a row with a word
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
	m.send.probe = w.idle && !w.heard && m.send.flying == 0
	*w = watch{due: now + m.cfg.Silence, idle: true}
}

// pulse is how often each end says something while a transfer lasts, and listens for it.
func (m *Machine) pulse() Time { return max(m.cfg.Silence/keepalives, 1) }

// look is one look, if it is due. What the peer's program has begun here dies with its word; what was begun at this end waits for as long as
// its NIC acknowledges, of which an empty WRITE makes sure.
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
	w.quiet, w.numb, w.talks = w.quiet+1, w.numb+1, w.talks+1
	if w.heard {
		w.quiet, w.numb = 0, 0
	} else {
		w.talks = 0
	}
	if w.acked {
		w.numb = 0
	}
	w.heard, w.acked = false, false
	if w.quiet >= keepalives && (owing || w.numb >= keepalives) {
		m.Kill(ErrSilent)
		w.due = Never
		return
	}
	m.send.probe = busy && w.quiet > 0 && m.send.flying == 0
	w.due = now + m.pulse()
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
