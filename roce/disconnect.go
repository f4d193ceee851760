package roce

import (
	"maps"
	"slices"
	"time"

	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce/cm"
)

// How Device.Close disconnects its peers.
//
// A DREQ can be lost. The connection manager would retransmit it after the peer's response
// timeout, which takes seconds. A process that ends does not live that long, and a peer that never
// gets the DREQ keeps the connection: the kernel's rxe retries forever if it was asked for 7
// retries. So Close retransmits DREQs at short intervals, and returns as soon as all peers have
// answered.
const (
	// dreqRetries is the number of retransmissions: with 5 % loss, one DREQ in 60 million gets
	// lost.
	dreqRetries = 5
	// firstDREQInterval is the first interval; it doubles each time. The sum, 630 ms, limits how
	// long Close waits for peers that do not answer.
	firstDREQInterval = 10 * time.Millisecond
	// firstDREQPoll is the first interval of checks for answers. It doubles up to 1/8 of the
	// retransmission interval.
	firstDREQPoll = 50 * time.Microsecond
)

// awaitPeers waits for the peers' answers to the DREQs that endAll has sent. It does nothing in
// virtual time, and if the port does not work any more.
func (d *Device) awaitPeers() {
	if d.virtual || d.failure.Load() != nil {
		return
	}
	interval, poll := firstDREQInterval, firstDREQPoll
	for range dreqRetries {
		if !d.awaitDREPs(interval, &poll) {
			return
		}
		_ = d.do(func(now qp.Time) {
			d.gsi.cm.RetransmitDREQs()
			d.gsi.transmit(now)
		})
		interval *= 2
	}
	d.awaitDREPs(interval, &poll)
}

// awaitDREPs waits until all peers have answered, at most for limit. It reports whether an answer
// is missing.
func (d *Device) awaitDREPs(limit time.Duration, poll *time.Duration) (missing bool) {
	for until := time.Now().Add(limit); ; time.Sleep(*poll) {
		if d.manual {
			d.loop.TryStep()
		}
		_ = d.do(func(qp.Time) { missing = d.gsi.cm.Releasing() > 0 })
		if !missing || time.Now().After(until) {
			return missing
		}
		*poll = min(2**poll, limit/8)
	}
}

// endAll ends all connections and connection attempts, notifies the peers, and shuts all listeners.
// Owner only.
func (g *gsi) endAll(now qp.Time) {
	for _, comm := range slices.Sorted(maps.Keys(g.ids)) { // in an order that a replay repeats
		_ = g.cm.Abort(cm.Time(now), comm)
	}
	for _, l := range g.listeners {
		l.shut()
	}
	g.dispatch(now)
	for g.cm.HasTransmit() && g.transmitOne(now) {
	}
}

// forgetAll ends all cmIDs that are left, so that no goroutine waits for them. Owner only.
func (g *gsi) forgetAll(now qp.Time) {
	for _, comm := range slices.Sorted(maps.Keys(g.ids)) {
		g.forget(now, comm)
	}
}
