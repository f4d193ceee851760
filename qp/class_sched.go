package qp

import (
	"math/bits"
	"sync/atomic"

	"github.com/gorxe/gorxe/bth"
)

// With traffic classes in use, the engine serves the highest class that has packets to send, and
// may change to a higher class at each preemption point of the QP that it serves. All packets of a
// QP go through the queue of its class: requests, retransmissions, READ responses, ACKs, NAKs and
// CNPs. See docs/traffic-classes.md.
//
// With class 0 alone, without rates and FIFO order, Engine.classed is false and nothing here is
// used: see Engine.next.

// classScheduler is the part of an Engine that serves QPs by class.
type classScheduler struct {
	classed    bool   // QPs are served by class: queues replaces serving and quantumLeft
	configured bool   // the configuration of class 0 needs that
	backlogged bool   // see SetBacklogged
	midway     bool   // the last packet did not end its message
	used       uint8  // classes with QPs, a bit set
	ready      uint8  // classes whose queue is not empty
	throttled  uint8  // classes without tokens
	rated      int    // QPs with a rate
	total      bucket // of all classes together
	// Counters.SentBytes before the packet that is being built
	bytesBefore uint64
	last        *QP // sent the last packet
	holding     *QP // the same, if it is between two preemption points
	stamps      atomic.Uint64
	limited     qpHeap // QPs without tokens
	users       [NumClasses]int
	config      [NumClasses]ClassConfig
	queues      [NumClasses]classQueue
	classes     [NumClasses]ClassCounters // packets and bytes without class 0
}

// updateClassed switches to serving by class, or back.
func (e *Engine) updateClassed() {
	on := e.configured || e.used > 1 || e.rated > 0
	if on == e.classed {
		return
	}
	e.classed = on
	c := &e.queues[0]
	if on {
		c.serving, c.left, e.serving = e.serving, e.quantumLeft, nil
		e.ready = 0
		if !c.empty() {
			e.ready = 1
		}
		return
	}
	e.serving, e.quantumLeft, c.serving = c.serving, c.left, nil
	e.backlogged, e.throttled, e.holding, e.last, c.part = false, 0, nil, nil, 0
	e.tx.Class = 0
}

// eligible returns the classes that may send now, a bit set.
func (e *Engine) eligible(now Time) uint8 {
	for t := e.throttled; t != 0; t &= t - 1 {
		if c := bits.TrailingZeros8(t); e.queues[c].resume <= now {
			e.throttled &^= 1 << c
		}
	}
	return e.unblocked()
}

// unblocked returns the classes with QPs that have packets to send and wait neither for tokens of
// the class nor for the backlog, a bit set. A QP between two preemption points excludes the others.
func (e *Engine) unblocked() uint8 {
	m := e.ready &^ e.throttled
	if q := e.holding; q != nil && q.list == inRunq && m>>q.Class()&1 != 0 {
		m = 1 << q.Class()
	}
	if e.backlogged {
		m &= 1 << e.TopClass()
	}
	return m
}

// nextClassed is next if classes are in use.
func (e *Engine) nextClassed(now Time) *QP {
	e.wake(now)
	for {
		m := e.eligible(now)
		if m == 0 {
			q := e.dueAck(now)
			if q == nil || !e.mayServe(q.Class()) {
				return nil
			}
			q.ackAtOnce()
			if e.eligible(now) == 0 {
				return nil
			}
			continue
		}
		c := uint8(bits.Len8(m)) - 1
		q := e.holding
		if q == nil || q.list != inRunq || q.Class() != c {
			if q = e.first(c); q == nil {
				e.ready &^= 1 << c
				continue
			}
		}
		if e.hasTokens(now, q, c) {
			e.begin(now, q, c)
			return q
		}
	}
}

// mayServe reports whether neither the backlog nor tokens keep class c from sending.
func (e *Engine) mayServe(c uint8) bool {
	return e.throttled>>c&1 == 0 && (!e.backlogged || int(c) == e.TopClass())
}

// wake moves QPs and ACKs whose time has come to the queues of their classes.
func (e *Engine) wake(now Time) {
	for h := &e.limited; len(h.qps) > 0 && Time(h.qps[0].cs.key) <= now; {
		q := h.qps[0]
		if h.remove(q); q.list == inRunq {
			e.admit(q)
		}
	}
	for _, id := range ackLists {
		for q := e.lists[id].head; q != nil && now >= q.ackDue(); q = e.lists[id].head {
			if !e.keep(q) {
				q.ackAtOnce()
			}
		}
	}
}

// begin prepares the transmission of a packet of q. The timeouts run from the packet that asks for
// an ACK, not from packets that were sent before the QP had to wait.
func (e *Engine) begin(now Time, q *QP, c uint8) {
	e.bytesBefore = e.c.SentBytes
	if p := e.last; p != nil && p != q {
		if low := p.Class(); low < c && e.midway && p.list == inRunq {
			e.classes[low].Preemptions++
		}
		e.midway = false
	}
	if e.config[c].Order == FIFO {
		if key, starts := q.nextStamp(); starts {
			q.cs.stamp = key
		}
	}
	if q.typ == RC && q.lastAsked <= q.una && q.una < q.nxt && q.rec.rnrUntil == 0 && q.unsent() {
		q.restartRetry(now)
	}
}

// hasTokens reports whether engine, class and QP may send a packet now. If not, one of them waits.
func (e *Engine) hasTokens(now Time, q *QP, c uint8) bool {
	cq := &e.queues[c]
	if e.total.rate != 0 && !e.totalHasTokens(now, q) {
		return false
	}
	if cq.bucket.rate == 0 && !q.hasRate() {
		return true
	}
	need := q.maxFrameLen()
	if q.hasRate() && !q.owesControl() {
		if t := q.cs.bucket.readyAt(now, need); t > now {
			e.expel(q)
			e.limited.put(q, uint64(t))
			e.checkReady(c)
			return false
		}
	}
	if cq.bucket.rate != 0 {
		if t := cq.bucket.readyAt(now, need); t > now {
			cq.resume = t
			e.throttled |= 1 << c
			e.forget(q)
			return false
		}
	}
	return true
}

// totalHasTokens reports whether the rate of all classes together allows a packet of q now. If not,
// all classes wait.
func (e *Engine) totalHasTokens(now Time, q *QP) bool {
	t := e.total.readyAt(now, q.maxFrameLen())
	if t <= now {
		return true
	}
	for c := range e.queues {
		if e.throttled>>c&1 == 0 {
			e.queues[c].resume = 0
		}
		e.queues[c].resume = max(e.queues[c].resume, t)
	}
	e.throttled = 1<<NumClasses - 1
	e.forget(q)
	return false
}

// maxFrameLen returns an upper bound for the length of the QP's frames up to the ICRC.
func (q *QP) maxFrameLen() int { return q.maxPacketLen() + bth.ICRCLen }

// owesControl reports whether the next packet is a CNP, a NAK or an ACK.
func (q *QP) owesControl() bool {
	return q.owes && (q.cnpOwed || (q.answers.empty() && (q.nakOwed || q.ackOwed && q.ackNow)))
}

func (e *Engine) checkReady(c uint8) {
	if e.queues[c].empty() {
		e.ready &^= 1 << c
	}
}

// served updates the queues after a packet of q: b up to the ICRC, with netLen bytes of network
// headers.
func (e *Engine) served(now Time, q *QP, b []byte, netLen int) {
	c := q.Class()
	info := bth.BTH(b[netLen:]).Opcode().Info()
	payload := e.c.SentBytes - e.bytesBefore
	cq := &e.queues[c]
	e.tx.Class = c
	e.classes[c].SentPkts++
	e.classes[c].SentBytes += payload
	if cq.bucket.rate != 0 {
		cq.bucket.take(now, len(b)+bth.ICRCLen, q.maxFrameLen())
	}
	if e.total.rate != 0 {
		e.total.take(now, len(b)+bth.ICRCLen, q.maxFrameLen())
	}
	if q.hasRate() {
		q.cs.bucket.take(now, len(b)+bth.ICRCLen, q.maxFrameLen())
	}
	cq.part += payload
	point := info.End || e.config[c].preemptible(cq.part)
	if e.holding = q; point {
		cq.part, e.holding = 0, nil
	}
	e.last, e.midway = q, !info.End
	e.endTurn(q, uint32(len(b)), point)
}

// preemptible reports whether a message may be preempted after n bytes of payload.
func (c *ClassConfig) preemptible(n uint64) bool {
	return c.Preempt >= 0 && n >= uint64(c.Preempt)
}

// endTurn decides whether q stays the next QP of its class after a packet of n bytes. point reports
// whether that packet ends at a preemption point: a turn ends nowhere else.
func (e *Engine) endTurn(q *QP, n uint32, point bool) {
	c := q.Class()
	cq := &e.queues[c]
	switch {
	case q.doneSending():
		e.endService(q)
	case e.config[c].Order == FIFO:
		if q.list == inRunq {
			e.admit(q)
		}
	case n < cq.left:
		cq.left -= n
	case !point:
		cq.left = 0
	default:
		if cq.serving = nil; q.list == inRunq {
			e.admit(q)
		}
		e.checkReady(c)
	}
}

// leave takes a QP that cannot send now out of its class's queue.
func (e *Engine) leave(q *QP) {
	e.expel(q)
	e.checkReady(q.Class())
}

// starved reports whether the QP has requests that wait for its turn or for tokens, and no answer
// to what it has sent is overdue: it has not asked for one, or has packets to retransmit before.
func (q *QP) starved() bool {
	return q.list == inRunq && (q.resending() || q.lastAsked <= q.una && q.unsent())
}

// resending reports whether the QP has packets to retransmit.
func (q *QP) resending() bool { return q.nxt < q.max || q.win.repairing && q.cc.board.due() }

// unsent reports whether the QP has requests to send.
func (q *QP) unsent() bool { return q.sq.cur != q.sq.head.Load() || q.resending() }

func (q *QP) hasRate() bool { return q.cs != nil && q.cs.bucket.rate != 0 }

// delayRetry postpones the timeouts of a QP that is starved. They start again when it sends a
// packet; see begin.
func (q *QP) delayRetry(now Time) {
	r := &q.rec
	for _, t := range []*Time{&r.ackDeadline, &r.probeDeadline} {
		if *t != Never {
			*t = now + starvedDelay
		}
	}
}

// scheduleClassed makes q eligible for sending if classes are in use.
func (e *Engine) scheduleClassed(q *QP) {
	e.unlist(q)
	q.list = inRunq
	if q.cs == nil || q.cs.heap != &e.limited {
		e.admit(q)
		return
	}
	if q.owesControl() { // that does not wait for tokens
		e.limited.remove(q)
		e.admit(q)
	}
}

// hasClassed is HasTransmit if classes are in use.
func (e *Engine) hasClassed(now Time) bool {
	e.wake(now)
	if e.eligible(now) != 0 {
		return true
	}
	q := e.dueAck(now)
	return q != nil && e.mayServe(q.Class())
}

// nextTokens returns the earliest time at which a QP or class that waits for tokens has them.
func (e *Engine) nextTokens() Time {
	t := Never
	if h := e.limited.qps; len(h) > 0 {
		t = Time(h[0].cs.key)
	}
	for m := e.throttled & e.ready; m != 0; m &= m - 1 {
		t = min(t, e.queues[bits.TrailingZeros8(m)].resume)
	}
	return t
}
