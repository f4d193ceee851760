package qp

import (
	"fmt"
	"math/bits"
)

// NumClasses is the number of traffic classes. Class 7 is the most urgent, class 0 the default.
const NumClasses = 8

// Order is the order in which the QPs of a class are served.
type Order uint8

// The orders.
const (
	RoundRobin Order = iota // one QP after the other, a quantum of bytes each
	FIFO                    // the oldest work request that can be sent
	numOrders
)

// String returns "round robin" or "FIFO".
func (o Order) String() string { return name([]string{"round robin", "FIFO"}, int(o)) }

// PreemptAtEnd is the value of ClassConfig.Preempt for classes whose messages are not preempted.
const PreemptAtEnd = -1

// Limits of rates and bursts.
const (
	MinRate  = 1_000   // bytes per second
	MaxRate  = 1 << 40 // bytes per second
	MaxBurst = 1 << 30 // bytes
)

// ClassConfig describes a traffic class. The zero value is the default.
type ClassConfig struct {
	Order Order
	// Preempt tells when a QP of this class may be preempted by a higher one: 0 after any packet,
	// n > 0 when n bytes of payload were sent since the last preemption point and at the end of a
	// message, PreemptAtEnd only at the end of a message.
	Preempt int
	// Rate limits the class, in bytes per second of frames from the Ethernet header to the ICRC. 0
	// means no limit.
	Rate uint64
	// Burst is what the class may send at once after a pause, in bytes. It is at least one frame.
	Burst int
}

// Check reports whether the values are in range. The error is ErrInvalidAttr.
func (c *ClassConfig) Check() error {
	switch {
	case c.Order >= numOrders:
		return fmt.Errorf("%w: unknown order %d of a class; use RoundRobin or FIFO", ErrInvalidAttr,
			c.Order)
	case c.Preempt < PreemptAtEnd || c.Preempt > MaxMessage:
		return fmt.Errorf("%w: Preempt is %d, want 0 (any packet), 1 to 2^31 bytes, or PreemptAtEnd",
			ErrInvalidAttr, c.Preempt)
	}
	return checkRate(c.Rate, c.Burst)
}

func checkRate(rate uint64, burst int) error {
	switch {
	case rate != 0 && (rate < MinRate || rate > MaxRate):
		return fmt.Errorf("%w: Rate is %d bytes per second, want %d to 2^40, or 0 for no limit",
			ErrInvalidAttr, rate, MinRate)
	case burst < 0 || burst > MaxBurst:
		return fmt.Errorf("%w: Burst is %d bytes, want 0 to 2^30", ErrInvalidAttr, burst)
	case rate == 0 && burst != 0:
		return fmt.Errorf("%w: Burst is %d bytes, but there is no Rate; set both", ErrInvalidAttr,
			burst)
	}
	return nil
}

// CheckClass reports whether n is a traffic class. The error is ErrInvalidAttr.
func CheckClass(n int) error {
	if n < 0 || n >= NumClasses {
		return fmt.Errorf("%w: traffic class %d does not exist; "+
			"use 0 (the default) to %d (the most urgent)", ErrInvalidAttr, n, NumClasses-1)
	}
	return nil
}

// ClassCounters count what a class has sent.
type ClassCounters struct {
	SentPkts    uint64
	SentBytes   uint64 // payload
	Preemptions uint64 // messages interrupted by packets of a higher class
}

// The word QP.state holds the state in its low byte, and these bits. They are in one word because
// posters read it anyway.
const (
	stateMask  = 0xff
	classShift = 8
	classMask  = (NumClasses - 1) << classShift
	stamped    = 1 << 11 // posters stamp WQEs for FIFO order
	prompt     = 1 << 12 // requested ACKs are sent at once
	ackFirst   = 1 << 13 // InitAttr.AckFirst
	meterShift = 16      // the number of the QP's meter
	meterMask  = 0xffff << meterShift
)

// Class returns the QP's traffic class. It may be called from any goroutine.
func (q *QP) Class() uint8 { return uint8(q.state.Load() & classMask >> classShift) }

// setFlags replaces the bits of mask in the state word.
func (q *QP) setFlags(mask, bits uint32) { q.state.Store(q.state.Load()&^mask | bits) }

// Bounded reports whether QPs of at least two classes exist. Then the owner must bound what is
// queued below the engine, because a higher class may need the link at any time; see SetBacklogged.
func (e *Engine) Bounded() bool { return e.used&(e.used-1) != 0 }

// TopClass returns the highest class that a QP has.
func (e *Engine) TopClass() int { return max(bits.Len8(e.used), 1) - 1 }

// SetBacklogged tells the engine whether the owner has queued as much as the backlog limit allows.
// Then only the highest class that a QP has may send, because nothing more urgent can follow it. A
// QP of a lower class that is between two preemption points stops the highest class, too.
func (e *Engine) SetBacklogged(b bool) { e.backlogged = b && e.classed }

// ClassCounters returns the counters of each class. Only the owner may call it.
func (e *Engine) ClassCounters() [NumClasses]ClassCounters {
	c := e.classes
	c[0].SentPkts, c[0].SentBytes = e.c.SentPkts, e.c.SentBytes
	for i := 1; i < NumClasses; i++ {
		c[0].SentPkts -= c[i].SentPkts
		c[0].SentBytes -= c[i].SentBytes
	}
	return c
}

// initClasses sets the configuration of the classes, and the rate of all together.
func (e *Engine) initClasses(config *[NumClasses]ClassConfig, rate uint64) error {
	if err := checkRate(rate, 0); err != nil {
		return err
	}
	e.total.set(rate, 0)
	for i := range config {
		if err := config[i].Check(); err != nil {
			return fmt.Errorf("class %d: %w", i, err)
		}
		e.queues[i].bucket.set(config[i].Rate, config[i].Burst)
	}
	e.config = *config
	e.configured = config[0].Order != RoundRobin || config[0].Rate != 0 || rate != 0
	return nil
}

// joinClass counts the QP in class c.
func (e *Engine) joinClass(q *QP, c uint8) {
	e.users[c]++
	e.used |= 1 << c
	if c > 0 && e.config[c].Order == RoundRobin {
		e.queues[c].grow(e.users[c])
	}
	q.setFlags(classMask, uint32(c)<<classShift)
	q.updateFlags()
	e.updateClassed()
}

// leaveClass ends that.
func (e *Engine) leaveClass(q *QP) {
	c := q.Class()
	if e.users[c]--; e.users[c] == 0 {
		e.used &^= 1 << c
	}
}

// setClass moves the QP to another class.
func (q *QP) setClass(c uint8) {
	if e := q.eng; c != q.Class() {
		e.expel(q)
		e.checkReady(q.Class())
		e.leaveClass(q)
		e.joinClass(q, c)
		e.readmit(q)
	}
}

// setRate limits the rate of the QP. The bucket is full afterwards.
func (q *QP) setRate(rate uint64, burst int) {
	old, oldBurst := q.rateLimit()
	if old == rate && oldBurst == burst {
		return
	}
	e := q.eng
	e.expel(q)
	e.checkReady(q.Class())
	if old != 0 {
		e.rated--
	}
	if rate != 0 {
		e.rated++
	}
	if q.cs == nil {
		q.cs = new(classState)
	}
	q.cs.bucket.set(rate, burst)
	q.updateFlags()
	e.updateClassed()
	e.readmit(q)
}

// rateLimit returns the values of setRate.
func (q *QP) rateLimit() (rate uint64, burst int) {
	if q.cs == nil {
		return 0, 0
	}
	return q.cs.bucket.rate, q.cs.bucket.burst
}

// updateFlags sets what depends on class and rate. The QP is in no queue.
func (q *QP) updateFlags() {
	fifo := q.eng.config[q.Class()].Order == FIFO
	rate, _ := q.rateLimit()
	flags := uint32(0)
	switch {
	case !fifo && rate == 0:
		q.cs = nil
	case q.cs == nil:
		q.cs = new(classState)
	}
	if fifo {
		flags |= stamped
	}
	if q.Class() > 0 || rate != 0 {
		flags |= prompt
	}
	first := fifo && q.state.Load()&stamped == 0
	if q.setFlags(stamped|prompt, flags); first {
		q.stampWQEs(q.sq.started, q.sq.head.Load())
	}
}

// readmit queues the QP again after a change, if it may send.
func (e *Engine) readmit(q *QP) {
	switch {
	case q.list != inRunq:
	case e.classed:
		e.admit(q)
	default:
		e.enqueue(q)
	}
}

// resetClass makes class and rate those of a new QP. The QP leaves all queues but the ring of class
// 0, from which the engine discards it later.
func (q *QP) resetClass() {
	e := q.eng
	q.setRate(0, 0)
	q.setClass(0)
	if q.cs != nil && q.cs.heap != nil {
		q.cs.heap.remove(q)
	}
	e.forget(q)
	e.checkReady(0)
}
