package qp

import (
	"fmt"
	"sync/atomic"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/internal/fence"
	"github.com/gorxe/gorxe/mr"
)

// InitAttr holds the parameters of a new QP.
type InitAttr struct {
	Type   Type
	PD     *mr.PD
	SendCQ *CQ
	RecvCQ *CQ
	SRQ    *SRQ // replaces the QP's own RQ

	SQDepth, RQDepth       int // work requests, 0 to MaxQueueDepth
	MaxSendSGE, MaxRecvSGE int // per work request; 0 means 1
	MaxInline              int // bytes, 0 to MaxInline
	SignalAll              bool
	QPN                    bth.QPN // 0: the engine chooses a random one
	// AckFirst sends the ACK of a message that completed a receive before work requests that are
	// posted later. Otherwise a reply may precede the ACK.
	AckFirst bool
}

// QP is a queue pair.
//
// The fields are ordered by use, in cache lines of 64 bytes: the first line is used by everything,
// then come the send queue and the requester, the responder, and the fields that the data path
// rarely reads. A small message touches six lines at the sender and two at the receiver. TestLayout
// checks the layout, on which prefetch.go depends.
type QP struct {
	// Line 0.
	eng          *Engine
	path         *sharedPath
	pd           *mr.PD
	doorbellNext *QP
	state        atomic.Uint32 // also class and meter; see stateMask
	mtu          atomic.Uint32 // path MTU in bytes; read by posters of UD sends
	rung         atomic.Bool   // on the doorbell list
	destQP       bth.QPN
	qpn          bth.QPN
	pkey         bth.PKey
	srcPort      uint16 // UDP source port
	typ          Type
	list         listID
	queued       bool // occupies a slot in the run queue, which may be stale
	owes         bool // a response, NAK or ACK is pending: transmit must look at the responder
	qkey         bth.QKey

	// Lines 1 to 5. Line 6 holds what only losses, READs and UD use.
	sq sendQueue
	cs *classState // nil unless the QP has a rate or its class is FIFO
	requester
	// ring of the ends of outstanding READs and atomics; made for the first one
	rdEnds *[]uint64
	ahs    *[]*frame.Path // UD: the path of each slot's datagram
	// The peer sent something that is neither a new request nor an acknowledgment; see Contact.
	contact   bool
	cause     Status      // see Cause
	tolerance uint16      // transmissions by which packets may be late; see QP.late
	resent    uint16      // retransmissions that the peer may still report as duplicates
	dups      uint16      // duplicates that the peer has reported, modulo 2^16
	cc        *congestion // nil unless win.modeled

	// Line 7. Line 8 holds what only long WRITEs, READs, atomics and losses use.
	responder

	coldFields
}

// coldFields are the fields that the data path rarely uses.
type coldFields struct {
	recvCQ      *CQ
	srq         *SRQ
	rq          recvQueue
	recv        heldRecv
	attr        attrs         // as last set
	recvPosters atomic.Uint32 // see RecvPosters
	lastCNP     cnpTime       // when the last CNP was sent
	groups      uint16        // number of multicast groups that it is attached to
	rdHead      uint8         // of rdEnds
	dead        bool
	outer       any
}

// reserveRunqSlot makes the run queue large enough for one more QP.
func (e *Engine) reserveRunqSlot() {
	e.runqSlots++
	e.growRunq()
}

// releaseRunqSlot gives the slot back once a destroyed QP has left the run queue.
func (e *Engine) releaseRunqSlot(q *QP) {
	if q.dead && !q.queued {
		e.runqSlots--
	}
}

// CreateQP returns a new QP in state RESET.
//
// Errors: ErrInvalidAttr, ErrInvalidDepth, ErrTooManyQPs.
func (e *Engine) CreateQP(a InitAttr) (*QP, error) {
	q := new(QP)
	if err := e.InitQP(q, a); err != nil {
		return nil, err
	}
	return q, nil
}

// InitQP is CreateQP with memory from the caller. The memory must be zero, and should be aligned to
// a cache line. It cannot be reused: the engine may refer to a QP after DestroyQP.
func (e *Engine) InitQP(q *QP, a InitAttr) error {
	if err := a.Check(); err != nil {
		return err
	}
	if a.SRQ != nil && a.SRQ.eng != e {
		return fmt.Errorf("%w: the SRQ belongs to another engine; use one of this engine",
			ErrInvalidAttr)
	}
	if e.table.used >= e.table.max {
		return fmt.Errorf("%w: the limit is %d", ErrTooManyQPs, e.table.max)
	}
	if a.QPN == 0 {
		a.QPN = e.freeQPN()
	} else if e.table.get(a.QPN) != nil || !e.qpns.usable(a.QPN) {
		return fmt.Errorf("%w: QPN %#x is in use or out of range; choose another or 0",
			ErrInvalidAttr, uint32(a.QPN))
	}
	q.eng, q.typ, q.qpn, q.pd, q.recvCQ, q.srq = e, a.Type, a.QPN, a.PD, a.RecvCQ, a.SRQ
	e.reserveRunqSlot()
	q.initSQ(&a)
	if a.SRQ == nil {
		q.rq.init(a.RQDepth, a.MaxRecvSGE)
		q.recv.sges = make([]SGE, q.rq.maxSGE)
	} else {
		q.recv.sges = make([]SGE, a.SRQ.maxSGE)
	}
	if a.AckFirst {
		q.setFlags(ackFirst, ackFirst)
	}
	q.assignMeter()
	e.joinClass(q, 0)
	q.reset()
	e.table.put(q)
	return nil
}

// Check reports whether the parameters are in range. Errors: ErrInvalidAttr, ErrInvalidDepth.
func (a *InitAttr) Check() error {
	switch {
	case a.Type >= numTypes:
		return fmt.Errorf("%w: unknown QP type %d; use RC, UC or UD", ErrInvalidAttr, a.Type)
	case a.PD == nil || a.SendCQ == nil || a.RecvCQ == nil:
		return fmt.Errorf("%w: a QP needs a PD, a SendCQ and a RecvCQ; set all three",
			ErrInvalidAttr)
	case a.SQDepth < 0 || a.SQDepth > MaxQueueDepth || a.RQDepth < 0 || a.RQDepth > MaxQueueDepth:
		return fmt.Errorf("%w: send queue of %d, receive queue of %d work requests, want 0 to %d",
			ErrInvalidDepth, a.SQDepth, a.RQDepth, MaxQueueDepth)
	case a.MaxSendSGE < 0 || a.MaxSendSGE > MaxSGE || a.MaxRecvSGE < 0 || a.MaxRecvSGE > MaxSGE:
		return fmt.Errorf("%w: MaxSendSGE is %d, MaxRecvSGE is %d, want 0 to %d", ErrInvalidAttr,
			a.MaxSendSGE, a.MaxRecvSGE, MaxSGE)
	case a.MaxInline < 0 || a.MaxInline > MaxInline:
		return fmt.Errorf("%w: MaxInline is %d bytes, want 0 to %d", ErrInvalidAttr, a.MaxInline,
			MaxInline)
	}
	return nil
}

// DestroyQP removes a QP and releases the memory of its queues. Its work requests do not complete.
// No other goroutine may post to the QP meanwhile; later posts fail.
func (e *Engine) DestroyQP(q *QP) {
	if q.dead {
		return
	}
	q.dead = true
	q.setState(Reset)
	q.reset()
	e.leaveClass(q)
	q.releaseMeter()
	e.table.del(q.qpn)
	e.detachAll(q)
	e.releaseRunqSlot(q)
	q.releaseQueues()
}

// releaseQueues drops the references to the queues, whose memory is many times that of the QP. The
// user, and other QPs that were allocated together with this one, may keep the QP alive.
func (q *QP) releaseQueues() {
	s := &q.sq
	s.wqes, s.data, s.cq, s.depth, s.outside = nil, nil, nil, 0, false
	q.ahs = nil
	q.rq.release()
	q.recv.sges = nil
	q.recvCQ = nil
}

// SetOuter stores the object that contains the QP. Only the owner of the engine may call it.
func (q *QP) SetOuter(o any) { q.outer = o }

// Outer returns what SetOuter has stored. Only the owner of the engine may call it.
func (q *QP) Outer() any { return q.outer }

// Posters returns a word in which the caller can keep a lock for posting sends. It is zero at
// first. The engine does not use it. It lies in a cache line that posting uses anyway.
func (q *QP) Posters() *atomic.Uint32 { return &q.sq.posters }

// RecvPosters is Posters for receives.
func (q *QP) RecvPosters() *atomic.Uint32 { return &q.recvPosters }

// QPN returns the QP's number. It may be called from any goroutine.
func (q *QP) QPN() bth.QPN { return q.qpn }

// Type returns the QP's transport. It may be called from any goroutine.
func (q *QP) Type() Type { return q.typ }

// Depths returns the depths of the QP's send queue and of its own receive queue. It returns 0 after
// DestroyQP.
func (q *QP) Depths() (send, recv int) { return int(q.sq.depth), int(q.rq.depth) }

// SQLen returns the number of send work requests that are posted and not completed. It may be
// called from any goroutine; with concurrent posts it is a snapshot.
func (q *QP) SQLen() int {
	tail := q.sq.tail.Load() // first: it must not overtake the head
	return int(q.sq.head.Load() - tail)
}

// Activity returns a number that changes when the QP accepts a request packet from the peer, or
// when the peer acknowledges a packet. Only the owner may call it.
func (q *QP) Activity() uint64 { return q.epsn + q.una }

// RQLen returns the number of receives that are posted to the QP's own queue and not completed.
// Only the owner may call it.
func (q *QP) RQLen() int {
	n := int(q.rq.used())
	if q.recv.held {
		n++
	}
	return n
}

// PeerNotReady reports whether the peer's latest answer said that it had posted no receive. Only
// the owner may call it.
func (q *QP) PeerNotReady() bool { return q.rec.rnrs != 0 }

// State returns the QP's state. It may be called from any goroutine.
func (q *QP) State() State { return State(q.state.Load() & stateMask) }

func (q *QP) setState(s State) { q.setFlags(stateMask, uint32(s)) }

// pkeyOK makes the partition check of IBA 10.9.3: the same partition, and at least one side is a
// full member.
func (q *QP) pkeyOK(p bth.PKey) bool {
	return (p^q.pkey)&0x7fff == 0 && (p|q.pkey)&0x8000 != 0
}

// reset discards everything that was posted or received, without completions (IBA 10.3.1.1).
func (q *QP) reset() {
	e := q.eng
	e.stopTimer(q)
	e.unlist(q)
	q.resetClass()
	head := q.sq.head.Load()
	q.sq.tail.Store(head)
	q.sq.cur, q.sq.started, q.sq.curPkt, q.sq.locals = head, head, 0, 0
	q.endScope()
	q.rq.tail.Store(q.rq.head.Load())
	q.recv.held = false
	q.meter().clear()
	q.eng.returnAnswers(&q.answers)
	q.releaseReorder()
	q.closeScoreboard()
	q.requester, q.cc = requester{}, nil
	q.responder = responder{}
	q.owes = false
	q.rdEnds, q.rdHead = nil, 0
	q.lastCNP = 0
	q.contact, q.cause = false, Success
	q.tolerance, q.resent, q.dups = minTolerance, 0, 0
	q.dropPath()
	q.attr = attrs{Congestion: q.eng.congestion}
	q.pkey, q.destQP, q.qkey = bth.DefaultPKey, 0, 0
	q.mtu.Store(uint32(e.portMTU))
}

// retire frees the oldest send work request and completes it. It frees the slot before it writes
// the CQE: if the CQE overruns the CQ, the queue is flushed and must not contain this request; and
// a caller that polls the CQE finds the slot free.
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

// complete writes a CQE. A CQ that overruns is unusable (IBA 10.2.2.3), and the QP goes to ERR.
func (q *QP) complete(cq *CQ, wc *WC, solicited bool) {
	e := q.eng
	e.c.Completions++
	switch wc.Status {
	case Success:
	case WRFlushErr:
		e.c.Flushed++
		q.counted().Flushed++
	default:
		e.c.CompletionErrors++
		q.counted().Errors++
		if q.cause == Success {
			q.cause = wc.Status
		}
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

// fail completes the oldest send work request with an error and moves RC QPs to ERR, UC and UD QPs
// to SQE (IBA 9.9.2, 10.3.1.6).
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

// toErr moves the QP to ERR and flushes it.
func (q *QP) toErr() {
	q.setState(Err)
	q.eng.setTimer(q, Never)
	q.releaseReorder()
	q.flush()
	if q.eng.errHook != nil {
		q.eng.errHook(q)
	}
	if q.srq != nil {
		q.eng.event(Event{Kind: EventQPLastWQEReached, QP: q})
	}
}

// flush completes all posted sends and receives with WRFlushErr.
func (q *QP) flush() {
	q.flushSends()
	if q.recv.held {
		q.flushRecv()
	}
	if q.srq == nil {
		for q.rq.take(&q.recv) || q.sq.outside && q.takeOutside(q.sq.data.source) {
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
	for s.tail.Load() != s.head.Load() || s.outside && s.data.source.Sends() {
		q.retire(WRFlushErr)
	}
	s.started, s.cur, s.curPkt, s.locals = s.tail.Load(), s.tail.Load(), 0, 0
	q.closeScoreboard()
	q.una, q.nxt = q.max, q.max
}
