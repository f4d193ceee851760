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
		return fmt.Errorf("%w: traffic class %d does not exist; use 0 (the default) to %d (the most urgent)",
			ErrInvalidAttr, n, NumClasses-1)
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
	classShift = 8
	classMask  = (NumClasses - 1) << classShift
	stateMask  = 1<<classShift - 1
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
// Then only the highest class that a QP has may send, because nothing more urgent can follow it.
func (e *Engine) SetBacklogged(b bool) { e.backlogged = b }

// ClassCounters returns the counters of each class. Only the engine's thread may call it.
func (e *Engine) ClassCounters() [NumClasses]ClassCounters {
	c := e.classes
	c[0].SentPkts, c[0].SentBytes = e.c.SentPkts, e.c.SentBytes
	for i := 1; i < NumClasses; i++ {
		c[0].SentPkts -= c[i].SentPkts
		c[0].SentBytes -= c[i].SentBytes
	}
	return c
}

// joinClass counts the QP in class c.
func (e *Engine) joinClass(q *QP, c uint8) {
	e.users[c]++
	e.used |= 1 << c
	q.setFlags(classMask, uint32(c)<<classShift)
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
	q.eng.leaveClass(q)
	q.eng.joinClass(q, c)
}
