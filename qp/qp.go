package qp

import (
	"fmt"
	"sync/atomic"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/internal/fence"
	"github.com/gorxe/gorxe/mr"
)

// InitAttr makes a QP.
type InitAttr struct {
	Type   Type
	PD     *mr.PD
	SendCQ *CQ
	RecvCQ *CQ
	SRQ    *SRQ // instead of an RQ of its own

	SQDepth, RQDepth       int // WRs, 0 to MaxQueueDepth
	MaxSendSGE, MaxRecvSGE int // 0 means 1
	MaxInline              int // bytes, 0 to MaxInline
	SignalAll              bool
	QPN                    bth.QPN // 0: a random one
}

// QP is a queue pair.
//
// Its fields stand in the order of their use, in cache lines of 64 bytes: the first line serves everything, then come the send
// queue and the requester, then the responder, and last what the data path rarely looks at. A small message touches six
// lines at the sender and two at the receiver; see prefetch.go, which fetches them, and TestLayout, which holds
// them to it.
type QP struct {
	// Line 0.
	eng          *Engine
	path         *sharedPath
	pd           *mr.PD
	doorbellNext *QP
	state        atomic.Uint32
	mtu          atomic.Uint32 // path MTU in bytes; read by posters of UD sends
	rung         atomic.Bool   // on the bell list
	destQP       bth.QPN
	qpn          bth.QPN
	pkey         bth.PKey
	srcPort      uint16 // UDP source port
	typ          Type
	list         listID
	queued       bool // in the run queue, if only as an empty place
	owes         bool // answers, a NAK or an ACK: transmit has to look at the responder
	qkey         bth.QKey

	// Lines 1 to 5, and in line 6 what losses, READs and UD look at.
	sq sendQueue
	requester
	rdEnds *[]uint64      // where each outstanding READ or atomic ends; a ring, made for the first
	ahs    *[]*frame.Path // UD: the path of each slot's datagram
	_      [16]byte       // the responder begins with a line

	// Line 7, and in line 8 what long WRITEs, READs, atomics and losses look at.
	responder

	rest
}

// rest is what a QP has beside.
type rest struct {
	recvCQ      *CQ
	srq         *SRQ
	rq          recvQueue
	recv        heldRecv
	attr        attrs         // as last set
	recvPosters atomic.Uint32 // see RecvPosters
	groups      uint16        // multicast groups that it is attached to
	rdHead      uint8         // of rdEnds
	dead        bool
	owner       any
}

// admit makes room for the QP in the run queue.
func (e *Engine) admit() {
	e.runqSlots++
	e.growRunq()
}

// forget gives the room back, when no place in the run queue is a dead QP's any more.
func (e *Engine) forget(q *QP) {
	if q.dead && !q.queued {
		e.runqSlots--
	}
}

// CreateQP makes a QP in state RESET.
//
// Errors: ErrInvalidAttr, ErrInvalidDepth, ErrTooManyQPs.
func (e *Engine) CreateQP(a InitAttr) (*QP, error) {
	q := new(QP)
	if err := e.InitQP(q, a); err != nil {
		return nil, err
	}
	return q, nil
}

// InitQP is CreateQP in memory of the caller's, which is zero and begins with a cache line if it is to be fast. It is the QP's for good: the
// engine may point to a destroyed QP still.
func (e *Engine) InitQP(q *QP, a InitAttr) error {
	if err := a.Check(); err != nil {
		return err
	}
	if a.SRQ != nil && a.SRQ.eng != e {
		return fmt.Errorf("%w: the SRQ belongs to another engine", ErrInvalidAttr)
	}
	if e.table.used >= e.table.max {
		return fmt.Errorf("%w: the limit is %d", ErrTooManyQPs, e.table.max)
	}
	if a.QPN == 0 {
		a.QPN = e.freeQPN()
	} else if e.table.get(a.QPN) != nil || a.QPN >= bth.QPNMulticast {
		return fmt.Errorf("%w: QPN %#x is taken or out of range", ErrInvalidAttr, uint32(a.QPN))
	}
	q.eng, q.typ, q.qpn, q.pd, q.recvCQ, q.srq = e, a.Type, a.QPN, a.PD, a.RecvCQ, a.SRQ
	e.admit()
	q.initSQ(&a)
	if a.SRQ == nil {
		q.rq.init(a.RQDepth, a.MaxRecvSGE)
		q.recv.sges = make([]SGE, q.rq.maxSGE)
	} else {
		q.recv.sges = make([]SGE, a.SRQ.maxSGE)
	}
	q.reset()
	e.table.put(q)
	return nil
}

// Check tells whether the numbers are within the engine's bounds: ErrInvalidAttr, ErrInvalidDepth.
func (a *InitAttr) Check() error {
	switch {
	case a.Type >= numTypes:
		return fmt.Errorf("%w: QP type %d", ErrInvalidAttr, a.Type)
	case a.PD == nil || a.SendCQ == nil || a.RecvCQ == nil:
		return fmt.Errorf("%w: a QP needs a PD, a SendCQ and a RecvCQ", ErrInvalidAttr)
	case a.SQDepth < 0 || a.SQDepth > MaxQueueDepth || a.RQDepth < 0 || a.RQDepth > MaxQueueDepth:
		return fmt.Errorf("%w: SQ of %d, RQ of %d WRs; allowed are 0 to %d", ErrInvalidDepth, a.SQDepth, a.RQDepth, MaxQueueDepth)
	case a.MaxSendSGE < 0 || a.MaxSendSGE > MaxSGE || a.MaxRecvSGE < 0 || a.MaxRecvSGE > MaxSGE:
		return fmt.Errorf("%w: %d send and %d receive SGEs; allowed are 0 to %d", ErrInvalidAttr, a.MaxSendSGE, a.MaxRecvSGE, MaxSGE)
	case a.MaxInline < 0 || a.MaxInline > MaxInline:
		return fmt.Errorf("%w: %d bytes inline; allowed are 0 to %d", ErrInvalidAttr, a.MaxInline, MaxInline)
	}
	return nil
}

// freeQPN draws a QPN that is not in use, not reserved (0 and 1 are the management QPs), and has room in its bucket, as a fifth of
// them at least have.
func (e *Engine) freeQPN() bth.QPN {
	for {
		n := bth.QPN(e.rand() & psnMask)
		if n > bth.QPNGSI && n < bth.QPNMulticast && e.table.get(n) == nil && e.table.room(n) {
			return n
		}
	}
}

// DestroyQP removes a QP without completing anything that it held.
func (e *Engine) DestroyQP(q *QP) {
	if q.dead {
		return
	}
	q.dead = true
	q.reset()
	q.setState(Reset)
	e.table.del(q.qpn)
	e.detachAll(q)
	e.forget(q)
}

// SetOwner and Owner keep what a QP belongs to, for whoever made it. Owner thread.
func (q *QP) SetOwner(o any) { q.owner = o }
func (q *QP) Owner() any     { return q.owner }

// Posters and RecvPosters are words for whoever keeps posters of sends and of receives apart, zero at first. The engine does not look at
// them, but posting has their lines at hand.
func (q *QP) Posters() *atomic.Uint32     { return &q.sq.posters }
func (q *QP) RecvPosters() *atomic.Uint32 { return &q.recvPosters }

// QPN is the QP's number. Any goroutine.
func (q *QP) QPN() bth.QPN { return q.qpn }

// Type is the QP's transport. Any goroutine.
func (q *QP) Type() Type { return q.typ }

// SQLen is how many send work requests are posted and not yet completed. Any goroutine.
func (q *QP) SQLen() int { return int(q.sq.used()) }

// RQLen is how many receives are posted to the QP's own queue and not yet completed. Owner thread.
func (q *QP) RQLen() int {
	n := int(q.rq.used())
	if q.recv.held {
		n++
	}
	return n
}

// State is the QP's state now. Any goroutine.
func (q *QP) State() State { return State(q.state.Load()) }

func (q *QP) setState(s State) { q.state.Store(uint32(s)) }

// pkeyOK is the partition check of IBA 10.9.3: same partition, one of both a full member.
func (q *QP) pkeyOK(p bth.PKey) bool {
	return (p^q.pkey)&0x7fff == 0 && (p|q.pkey)&0x8000 != 0
}

// reset forgets everything that was posted or learnt, without completions (IBA 10.3.1.1).
func (q *QP) reset() {
	e := q.eng
	e.stopTimer(q)
	e.unlist(q)
	head := q.sq.head.Load()
	q.sq.tail.Store(head)
	q.sq.cur, q.sq.started, q.sq.curPkt, q.sq.locals = head, head, 0, 0
	q.endScope()
	q.rq.tail.Store(q.rq.head.Load())
	q.recv.held = false
	q.eng.returnAnswers(&q.answers)
	q.requester = requester{}
	q.responder = responder{}
	q.owes = false
	q.rdEnds, q.rdHead = nil, 0
	q.dropPath()
	q.attr = attrs{}
	q.pkey, q.destQP, q.qkey = bth.DefaultPKey, 0, 0
	q.mtu.Store(uint32(e.portMTU))
}

// retire frees the oldest send work request and completes it. The slot is free before the CQE is
// written: a completion that overruns its CQ flushes the queue and must not meet this one again; and
// who polls the CQE finds the slot free.
func (q *QP) retire(st Status) {
	tail := q.sq.tail.Load()
	w := q.sq.at(tail)
	if st == Success && w.flags&Signaled == 0 && !q.sq.signalAll {
		fence.Store(&q.sq.tail, tail+1)
		return
	}
	wc := WC{ID: w.id, Status: st, Opcode: wcOpcodes[w.op], ByteLen: w.length, QPN: q.qpn}
	fence.Store(&q.sq.tail, tail+1)
	q.complete(q.sq.cq, &wc, false)
}

// complete writes a CQE. A CQ that is full is lost (IBA 10.2.2.3): the QP goes to ERR.
func (q *QP) complete(cq *CQ, wc *WC, solicited bool) {
	e := q.eng
	e.c.Completions++
	switch wc.Status {
	case Success:
	case WRFlushErr:
		e.c.Flushed++
	default:
		e.c.CompletionErrors++
	}
	first := !cq.overrun.Load()
	if cq.push(wc, solicited) {
		return
	}
	if first {
		e.event(Event{Kind: EventCQErr, CQ: cq})
	}
	if st := q.State(); st != Err && st != Reset {
		e.event(Event{Kind: EventQPFatal, QP: q})
		q.toErr()
	}
}

// fail ends the oldest send work request with an error and takes the QP where the architecture
// says: RC to ERR, UC and UD to SQE (IBA 9.9.2, 10.3.1.6).
func (q *QP) fail(st Status) {
	q.retire(st)
	switch {
	case q.State() == Err:
	case q.typ == RC:
		q.toErr()
	default:
		q.setState(SQE)
		q.flushSends()
	}
}

// toErr moves to ERR and flushes.
func (q *QP) toErr() {
	q.setState(Err)
	q.eng.setTimer(q, Never)
	q.flush()
	if q.eng.errHook != nil {
		q.eng.errHook(q)
	}
	if q.srq != nil {
		q.eng.event(Event{Kind: EventQPLastWQEReached, QP: q})
	}
}

// flush completes everything posted with WRFlushErr, sends and receives.
func (q *QP) flush() {
	q.flushSends()
	if q.recv.held {
		q.flushRecv()
	}
	if q.srq == nil {
		for q.rq.take(&q.recv) {
			q.flushRecv()
		}
	}
}

func (q *QP) flushRecv() {
	q.recv.held = false
	q.complete(q.recvCQ, &WC{ID: q.recv.id, Status: WRFlushErr, Opcode: WCRecv, QPN: q.qpn}, false)
}

func (q *QP) flushSends() {
	s := &q.sq
	for s.tail.Load() != s.head.Load() {
		q.retire(WRFlushErr)
	}
	s.started, s.cur, s.curPkt, s.locals = s.tail.Load(), s.tail.Load(), 0, 0
	q.una, q.nxt = q.max, q.max
}
