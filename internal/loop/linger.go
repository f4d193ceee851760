package loop

// lingers decides whether an owner that must not spin waits briefly for the answer to a message.
// The answer is on its way if the program polls on another CPU. It then leaves together with the
// ACK of the message: neither the owner nor the peer has to wake up once more.
type lingers struct {
	skip int // messages for which the owner does not wait
	wait int // the next value of skip
}

// linger looks for doorbells for a moment if a peer waits for an ACK, and reports whether there is
// one. If waiting was in vain, the owner does not try it again for a number of messages, which
// doubles.
func (l *Loop) linger() bool {
	g := &l.lingers
	if l.guest == nil || l.simulated || !l.eng.OwesAck() {
		return false
	}
	if g.skip > 0 {
		g.skip--
		return false
	}
	for end := l.last + lingerTime; l.now() < end; {
		l.guest.Doorbells(false, false)
		if l.eng.DoorbellPending() {
			g.wait = 0
			return true
		}
		if l.cmdReady.Load() || l.stopping.Load() || l.driven() {
			return true
		}
	}
	g.wait = min(2*g.wait+1, maxLingerSkip)
	g.skip = g.wait
	return false
}
