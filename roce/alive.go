package roce

import (
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/due"
	"github.com/gorxe/gorxe/qp"
)

const (
	// DefaultKeepAlive is the default of ConnectOptions.KeepAlive for Dial and Accept.
	DefaultKeepAlive = 15 * time.Second
	// minKeepAlive bounds the rate of keepalives.
	minKeepAlive = 10 * time.Millisecond
	// minProbes is the number of unanswered keepalives that end a connection, if the QP's retry
	// count plus one is smaller: one lost packet must not end a connection.
	minProbes = 3
	// dialProbe is when the dialing side sends its first keepalive: if all its RTUs are lost, the
	// keepalive tells the listener that the connection is established.
	dialProbe = time.Second
	// probeAgain is the delay of a keepalive for which there was no transmit buffer.
	probeAgain = time.Millisecond
)

// keepAlives sends the keepalives of all QPs that want them. The owner of the loop calls all
// methods.
type keepAlives struct {
	of           map[*QP]*keepAlive
	due          due.Queue[*keepAlive]
	sent, failed uint64
}

// keepAlive is the state of one QP.
type keepAlive struct {
	q              *QP
	check          qp.Time // interval of the checks for packets of the peer; 0: only on suspicion
	interval       qp.Time // between unanswered keepalives: the QP's ACK timeout
	max            int     // unanswered keepalives that end the connection
	unanswered     int
	requests, acks uint64 // of QP.Contact, at the previous check
	at             qp.Time
	slot           int // of keepAlives.due
}

// watch begins to check q: at first after the time first, then every half period. A period of 0
// checks only after suspect. QPs that cannot tell whether their peer is dead are left alone: UC,
// and RC without an ACK timeout.
func (k *keepAlives) watch(now qp.Time, q *QP, period, first time.Duration) *keepAlive {
	attr := q.qp.Query()
	if q.Type() != RC || attr.Timeout == 0 {
		return nil
	}
	k.forget(q)
	if k.of == nil {
		k.of = map[*QP]*keepAlive{}
	}
	a := &keepAlive{
		q: q, interval: qp.Time(bth.AckTimeout(attr.Timeout)),
		max: max(int(attr.RetryCnt)+1, minProbes), at: qp.Never,
	}
	if period > 0 {
		a.check = qp.Time(max(period, minKeepAlive)) / 2
		a.at = now + min(a.check, qp.Time(first))
	}
	a.requests, a.acks, _ = q.qp.Contact()
	k.of[q] = a
	k.due.Set(a)
	return a
}

// forget ends the checks of q.
func (k *keepAlives) forget(q *QP) {
	if a := k.of[q]; a != nil {
		delete(k.of, q)
		k.due.Remove(a)
	}
}

// suspect sends a keepalive now, because the peer may have forgotten the connection. The QP ends as
// usual if the peer does not answer.
func (k *keepAlives) suspect(g *gsi, now qp.Time, q *QP) {
	a := k.of[q]
	if a == nil {
		if a = k.watch(now, q, 0, 0); a == nil {
			return
		}
	}
	if a.unanswered == 0 {
		a.requests, a.acks, _ = q.qp.Contact()
		k.probe(g, now, a)
	}
}

// work does the checks that are due and returns their number.
func (k *keepAlives) work(g *gsi, now qp.Time) int {
	n := 0
	for ; k.due.Len() > 0 && k.due.First().at <= now && n < madsPerStep; n++ {
		k.look(g, now, k.due.First())
	}
	return n
}

// look checks whether the peer has sent anything since the previous check.
func (k *keepAlives) look(g *gsi, now qp.Time, a *keepAlive) {
	if st := a.q.State(); a.q.closed.Load() || st == StateErr || st == StateReset {
		k.forget(a.q)
		return
	}
	requests, acks, answered := a.q.qp.Contact()
	alive := answered || requests != a.requests || acks != a.acks
	a.requests, a.acks = requests, acks
	switch {
	case alive, a.q.qp.SQLen() > 0: // the retries of outstanding work requests find a dead peer
		k.alive(now, a)
	case a.unanswered < a.max:
		k.probe(g, now, a)
	default:
		k.failed++
		k.forget(a.q)
		if a.q.cmID != nil && a.q.cmID.conn != nil {
			a.q.cmID.conn.silent = true
		}
		a.q.qp.Abandon()
	}
}

// alive schedules the next check of a peer that is alive.
func (k *keepAlives) alive(now qp.Time, a *keepAlive) {
	a.unanswered = 0
	if a.check == 0 {
		k.schedule(a, qp.Never)
		return
	}
	k.schedule(a, now+a.check)
}

// probe sends a keepalive.
func (k *keepAlives) probe(g *gsi, now qp.Time, a *keepAlive) {
	b := g.dev.loop.Buffer()
	if b == nil {
		k.schedule(a, now+qp.Time(probeAgain))
		return
	}
	n, netLen := a.q.qp.PutKeepAlive(b)
	if n == 0 { // the QP sends something else
		k.alive(now, a)
		return
	}
	g.dev.loop.Send(a.q.QPN(), n, netLen)
	k.sent++
	a.unanswered++
	k.schedule(a, now+a.interval)
}

func (k *keepAlives) schedule(a *keepAlive, at qp.Time) {
	a.at = at
	k.due.Set(a)
}

// next returns the time of the next check; false if there is none.
func (k *keepAlives) next() (qp.Time, bool) {
	if k.due.Len() == 0 || k.due.First().at == qp.Never {
		return qp.Never, false
	}
	return k.due.First().at, true
}

// Due implements due.Item.
func (a *keepAlive) Due() int64 { return int64(a.at) }

// Slot implements due.Item.
func (a *keepAlive) Slot() *int { return &a.slot }

// keepAlivePeriod returns the period that an option of Dial or Accept means; 0: none.
func keepAlivePeriod(o time.Duration) time.Duration {
	switch {
	case o == 0:
		return DefaultKeepAlive
	case o < 0:
		return 0
	}
	return o
}
