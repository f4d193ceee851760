package roce

import (
	"time"

	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce/cm"
)

// How a device that closes takes leave of its peers.
//
// A DREQ may be lost like any datagram. The connection manager would repeat it after the peer's time-out, which is
// seconds; a process that ends does not live that long, and a peer that never hears of the end waits for ever: rxe, asked for
// 7 retries, repeats without end. So Close stays for a moment, repeats at short intervals, and goes as soon as
// everybody has answered.
const (
	// farewells is how often a DREQ is repeated: with 5 % of the frames lost one in 60 million is never heard.
	farewells = 5
	// firstFarewell is the first interval; each is twice as long as the one before. Together they bound what Close
	// waits for peers that do not answer: 630 ms.
	firstFarewell = 10 * time.Millisecond
	// farewellLook is how often Close looks whether all have answered, the first time. It slows down to the eighth of an interval.
	farewellLook = 50 * time.Microsecond
)

// farewell waits for the peers' answers, after endAll. On a device whose clock is the caller's nothing can be waited for.
func (d *Device) farewell() {
	if d.virtual {
		return
	}
	interval, pause := firstFarewell, farewellLook
	for range farewells {
		if !d.releasing(interval, &pause) {
			return
		}
		_ = d.do(func(now qp.Time) {
			d.gsi.cm.RetransmitDREQs()
			d.gsi.transmit(now)
		})
		interval *= 2
	}
	d.releasing(interval, &pause)
}

// releasing waits until no answer is awaited, for at most the given time, and tells whether one still is. It drives a device with
// Manual progress.
func (d *Device) releasing(most time.Duration, pause *time.Duration) (still bool) {
	for until := time.Now().Add(most); ; time.Sleep(*pause) {
		if d.manual {
			d.loop.TryStep()
		}
		_ = d.do(func(qp.Time) { still = d.gsi.cm.Releasing() > 0 })
		if !still || time.Now().After(until) {
			return still
		}
		*pause = min(2**pause, most/8)
	}
}

// endAll tells every peer that the connection, or the attempt at one, is over, and takes no more requests. Owner only.
func (g *gsi) endAll(now qp.Time) {
	for id := range g.conns {
		_ = g.cm.Abort(cm.Time(now), id)
	}
	for _, l := range g.listeners {
		l.shut()
	}
	g.dispatch(now)
	for g.cm.HasTransmit() && g.sendOne(now) {
	}
}

// forgetAll ends the waiting for dialogues that have not ended by themselves. Owner only.
func (g *gsi) forgetAll(now qp.Time) {
	for id := range g.conns {
		g.forget(now, id)
	}
}
