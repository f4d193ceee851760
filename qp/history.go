package qp

import "github.com/gorxe/gorxe/bth"

// history is what a responder keeps of requests that it has executed, to answer duplicates.
//
// It limits how many READ response packets are sent again. Without a limit, one small packet that
// is sent again and again makes the responder send a whole READ each time, to a peer that may not
// have asked for it. Each repeated packet takes one unit of credit, and without credit duplicates
// are dropped. New responses and time add credit. A requester that loses packets makes progress
// with every retry, so it needs a few repeated packets for each new one. If it runs out of credit,
// its next timeout finds some, and each answer that arrives resets its retry counter.
type history struct {
	atomics []savedAtomic // ring of the results of the latest atomics; nil until the first one
	next    uint32
	credit  uint32 // READ response packets that may be sent again
	filled  Time   // time up to which credit was added
}

// Limits of repeated READ responses of a QP, in packets.
const (
	repeatBurst      = 1 << 17 // several windows of a long path
	repeatsPerNew    = 8
	repeatInterval   = Time(500_000) // ns per packet
	repeatFullPeriod = repeatBurst * repeatInterval
)

// savedAtomic is the result of an atomic, kept in case its acknowledgment is lost (IBA 9.7.5.1.3):
// an atomic must not be executed twice.
type savedAtomic struct {
	psn  uint64 // 0: empty
	orig uint64
	msn  bth.MSN
}

// keep returns the QP's history, which it creates if necessary.
func (q *QP) keep() *history {
	if q.history == nil {
		q.history = &history{credit: repeatBurst}
	}
	return q.history
}

// save keeps the result of an atomic in place of the oldest one.
func (q *QP) save(s savedAtomic) {
	h := q.keep()
	if h.atomics == nil {
		h.atomics = make([]savedAtomic, max(q.attr.MaxDestRdAtomic, 1))
	}
	h.atomics[h.next] = s
	h.next = (h.next + 1) % uint32(len(h.atomics))
}

// mayRepeat reports whether the credit suffices to answer a duplicate READ. If the duplicate sets
// back a new answer, mayRepeat spends the credit for the packets that it makes the responder send
// again. A packet of a repeated answer spends it when it is sent.
func (q *QP) mayRepeat(now Time, a *answer) bool {
	h := q.keep()
	h.fill(now)
	switch w := q.answers.covering(a); {
	case w == nil, q.attr.Selective:
		return h.credit > 0
	case w.again:
		return true
	default:
		at := uint32(a.psn - w.psn)
		return at >= w.sent || h.spend(w.sent-at)
	}
}

// mayResend reports whether the next packet of a READ response may be sent: it is new, or the
// credit suffices.
func (q *QP) mayResend(now Time, a *answer) bool {
	h := q.history
	switch {
	case h == nil:
		return true
	case a.again:
		h.fill(now)
		return h.spend(1)
	case a.sent >= a.top:
		h.credit = min(h.credit+repeatsPerNew, repeatBurst)
	}
	return true
}

// fill adds the credit for the time since the last call.
func (h *history) fill(now Time) {
	if now-h.filled >= repeatFullPeriod {
		h.credit, h.filled = repeatBurst, now
		return
	}
	n := (now - h.filled) / repeatInterval
	h.filled += n * repeatInterval
	h.credit = min(h.credit+uint32(n), repeatBurst)
}

// spend takes n units of credit if there are as many.
func (h *history) spend(n uint32) bool {
	if h.credit < n {
		return false
	}
	h.credit -= n
	return true
}
