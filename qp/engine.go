package qp

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/qp/sched"
)

const (
	// chunk is how many bytes one QP may send before the next has its turn.
	quantum = 16 << 10
	// maxPacket is what the engine writes for one packet at most.
	maxPacket = bth.MaxNetHeader + bth.MaxHeaderLen + 4096
	// dataHeader is the longest header in front of a payload: a WRITE ONLY with immediate.
	dataHeader = bth.HeaderLen + bth.RETHLen + bth.ImmDtLen
	// MinBuffer is what any packet without payload needs.
	MinBuffer = bth.MaxNetHeader + bth.MaxHeaderLen
)

// Config makes an engine.
type Config struct {
	MRs       *mr.Table
	Rand      func() uint64 // QPNs; crypto-grade in production, seeded in tests
	MaxQP     int           // 0: 65,536
	MaxWindow int           // packets in flight for each RC QP; 0: DefaultWindow
}

// Engine owns queue pairs and drives their protocol. See the package comment for who may call
// what from where.
type Engine struct {
	mrs       *mr.Table
	rand      func() uint64
	maxWindow uint32

	table       qpTable
	runqSlots   int // QPs, and dead ones that have a place in runq still
	paths       map[frame.Path]*sharedPath
	answerLists [MaxRdAtomic + 1][][]answer // for answers, by half their size; not in use
	lists       [numLists]qpList
	wheel       wheel

	runq    *sched.Queue[*QP] // QPs that may have something to send
	serving *QP               // whose turn it is; not in runq
	turn    uint32            // bytes that it may still send

	window   int   // of prefetching; 0: off
	pipe     []*QP // QPs on their way through the chain, a ring; see prefetch.go
	pipeIn   uint32
	pipeWQE  uint32
	pipeKey  uint32
	pipeMR   uint32
	pipeMem  uint32
	incoming [maxPrefetchBatch]incomingPacket

	groups map[bth.GID][]*QP // multicast

	lastData   Time // when PollTransmit last sent something other than a late ACK
	lastRewind Time // when a QP last had to go back
	lastGap    Time // when a gap was last heard of, by either half of a QP

	doorbells    atomic.Pointer[QP] // QPs posted on by other goroutines, newest first
	doorbellHook func()
	errHook      func(*QP)
	host         any

	events    [eventRing]Event
	eventHead uint32
	eventTail uint32
	c         Counters
	portMTU   bth.MTU
	word      [atomicLen]byte // scratch
	grh       [GRHLen]byte    // scratch
	deferring bool            // see DeferPayloads
	tx        Transmit        // what PollTransmit returns
	aside     [maxPacket]byte // packets that may not fit the caller's buffer
}

// NewEngine makes an engine without QPs.
func NewEngine(c Config) (*Engine, error) {
	if c.MRs == nil || c.Rand == nil {
		return nil, errors.New("qp: Config needs MRs and Rand")
	}
	if c.MaxQP == 0 {
		c.MaxQP = defaultMaxQP
	}
	if c.MaxWindow == 0 {
		c.MaxWindow = DefaultWindow
	}
	if c.MaxQP < 1 || c.MaxQP > maxMaxQP {
		return nil, fmt.Errorf("qp: MaxQP %d out of range 1 to %d", c.MaxQP, maxMaxQP)
	}
	if c.MaxWindow < minWindow || c.MaxWindow > maxMaxWindow {
		return nil, fmt.Errorf("qp: MaxWindow %d out of range %d to %d packets", c.MaxWindow, minWindow, maxMaxWindow)
	}
	e := &Engine{mrs: c.MRs, rand: c.Rand, maxWindow: uint32(c.MaxWindow), portMTU: 1024, lastData: -1, lastRewind: -calmAfter, lastGap: -gapMemory, paths: map[frame.Path]*sharedPath{}}
	e.table.init(c.MaxQP)
	e.growRunq()
	for id := range e.lists {
		e.lists[id].in = listID(id)
	}
	return e, e.SetPrefetch(DefaultPrefetch)
}

// SetPortMTU tells the largest path MTU of the port: what UD messages may carry. QPs made later
// use it.
func (e *Engine) SetPortMTU(m bth.MTU) { e.portMTU = m }

// Counters are the engine's own: read them on its thread.
func (e *Engine) Counters() *Counters { return &e.c }

// HandlePacket takes in one packet: it finds the QP and checks what a packet must be before the QP's
// state counts (IBA 9.6.1.1; RoCEv2 A17.4). p's views are not used after it returns.
func (e *Engine) HandlePacket(now Time, p *bth.Packet) {
	e.c.RcvdPkts++
	e.c.RcvdBytes += uint64(len(p.Payload))
	dest := p.BTH.DestQP()
	if dest == bth.QPNMulticast {
		e.handleMulticast(p)
		return
	}
	q := e.table.get(dest)
	if q == nil {
		e.c.DropNoQP++
		return
	}
	if !q.pkeyOK(p.BTH.PKey()) {
		e.c.DropPKey++
		return
	}
	if q.typ != UD && !q.path.Matches(p) {
		e.c.DropAddress++
		return
	}
	switch {
	case q.typ == RC && p.Info.Transport == bth.RC:
		if p.Info.Response {
			q.handleResponse(now, p)
		} else {
			q.handleRequest(now, p)
		}
	case q.typ == UC && p.Info.Transport == bth.UC:
		q.handleUC(now, p)
	case q.typ == UD && p.Info.Transport == bth.UD:
		q.handleUD(p)
	default:
		e.c.DropType++
	}
}

// HasTransmit tells whether PollTransmit may have a packet at now.
func (e *Engine) HasTransmit(now Time) bool {
	return e.serving != nil || e.waiting(now)
}

// Serving is the QP whose turn has begun and is not over, or nil.
func (e *Engine) Serving() *QP { return e.serving }

// waiting is HasTransmit with no QP being served.
func (e *Engine) waiting(now Time) bool { return e.runq.Len() > 0 || e.dueAck(now) != nil }

// Quiet tells whether nothing is under way that another turn would move on: no QP waits for its turn, no ACK that was asked for,
// no doorbell. Timers may be running.
func (e *Engine) Idle() bool {
	return e.serving == nil && e.lists[inAckSoon].head == nil && e.doorbells.Load() == nil && e.runq.Len() == 0 && e.eventHead == e.eventTail
}

// PollTransmit writes the next packet to b: the path's headers, BTH, extension headers, payload and
// pad. The caller appends the ICRC. b holds the largest frame of the port without its ICRC, at least
// MinBuffer bytes; a packet that does not fit is dropped and counted. The result is valid until the
// next call. It is nil if there is nothing to send now.
func (e *Engine) PollTransmit(now Time, b []byte) *Transmit {
	tx := &e.tx
	tx.Payload, tx.PayloadAt = nil, 0
	for q := e.next(); q != nil; q = e.next() {
		to, short := b, len(b) < q.maxPacketLen()
		if short {
			to = e.aside[:]
		}
		n, netLen := q.transmit(now, to)
		if n == 0 {
			tx.Payload, tx.PayloadAt = nil, 0
			e.endService(q)
			continue
		}
		e.lastData = now
		switch {
		case q.doneSending():
			e.endService(q)
		case uint32(n) < e.turn:
			e.turn -= uint32(n)
		default:
			if e.serving = nil; q.list == inRunq {
				e.enqueue(q)
			}
		}
		if n > len(b) { // the port's MTU fell below the path MTU: drop the packet, as a link would
			e.c.DropLength++
			tx.Payload, tx.PayloadAt = nil, 0
			continue
		}
		if short {
			copy(b, to[:n])
		}
		tx.Len, tx.NetLen = n, netLen
		e.c.SentPkts++
		return tx
	}
	if q := e.dueAck(now); q != nil {
		e.unlist(q)
		tx.Len, tx.NetLen = q.sendAck(b)
		e.c.SentPkts++
		return tx
	}
	return nil
}

// spent tells that the QP has nothing more to send, which spares it a turn to find out; a QP that does not say so may have nothing
// either. An ACK that is owed is no reason to stay: see stand. The responder's lines are looked at only if it owes something: with thousands of
// QPs they are far away.
func (q *QP) doneSending() bool {
	return q.sq.cur == q.sq.head.Load() && q.list == inRunq && (!q.owes || !q.nakOwed && !q.ackNow && q.answers.empty())
}

// stand ends the turns of a QP that has nothing more to send, but for an ACK that may wait.
func (e *Engine) endService(q *QP) {
	e.serving = nil
	e.unlist(q)
	if q.owes && q.ackOwed {
		e.awaitAck(q)
	}
}

// longest is what a packet of the QP may need at most.
func (q *QP) maxPacketLen() int {
	netLen := q.path.HeaderLen()
	if q.typ == UD {
		netLen = bth.MaxNetHeader
	}
	return netLen + dataHeader + int(q.mtu.Load())
}

// next is the QP whose turn it is: the one being served, else the first that has not left the queue meanwhile.
func (e *Engine) next() *QP {
	if q := e.serving; q != nil && q.list == inRunq {
		return q
	}
	e.serving = nil
	for {
		q, ok := e.runq.Pop()
		if !ok {
			return nil
		}
		e.prefetchNext()
		q.queued = false
		if q.list == inRunq {
			e.serving, e.turn = q, quantum
			return q
		}
		e.forget(q)
	}
}

// schedule gives q turns to send.
func (e *Engine) schedule(q *QP) {
	if q.list == inRunq {
		return
	}
	e.unlist(q)
	q.list = inRunq
	switch {
	case q == e.serving:
	case e.serving == nil && e.runq.Len() == 0: // it would be the next at once
		e.serving, e.turn = q, quantum
	default:
		e.enqueue(q)
	}
}

// enqueue puts q at the back of the run queue, or lets it have the place again that it left.
func (e *Engine) enqueue(q *QP) {
	if !q.queued {
		q.queued = true
		e.runq.Push(q)
	}
}

// minRunq is how many QPs the run queue has room for at first.
const minRunq = 64

// growRunq makes room in the run queue for all QPs.
func (e *Engine) growRunq() {
	old := e.runq
	if old != nil && e.runqSlots <= old.Cap() {
		return
	}
	size := minRunq
	if old != nil {
		size = 2 * old.Cap()
	}
	e.runq, _ = sched.New[*QP](size, e.window) // both in range
	for old != nil {
		q, ok := old.Pop()
		if !ok {
			return
		}
		e.runq.Push(q)
	}
}

// SetBell sets what PostSend calls, on the poster's goroutine, when it rings the first bell since
// HandleDoorbells; for waking a sleeping owner. Set it before use.
func (e *Engine) SetDoorbellHook(f func()) { e.doorbellHook = f }

// SetErrHook sets what is called, on the engine's thread, whenever a QP enters ERR, whatever the reason. It must not
// call the engine. Set it before use.
func (e *Engine) SetErrHook(f func(*QP)) { e.errHook = f }

// SetHost and QP.Host keep whose engine it is, for whoever made it. Set it before use; QP.Host from any goroutine.
func (e *Engine) SetHost(h any) { e.host = h }
func (q *QP) Host() any         { return q.eng.host }

// BellPending tells whether HandleDoorbells has work. Any goroutine.
func (e *Engine) DoorbellPending() bool { return e.doorbells.Load() != nil }

// Ring tells the engine, wherever it runs, of what was posted: it puts the QP on the bell list unless it is there. Any goroutine.
func (q *QP) RingDoorbell() {
	// No look before the swap: even in vain it is the barrier between the head, which Post has stored, and rung: the engine sees
	// the head, or the bell.
	if !q.rung.CompareAndSwap(false, true) {
		return
	}
	e := q.eng
	for {
		top := e.doorbells.Load()
		q.doorbellNext = top
		if e.doorbells.CompareAndSwap(top, q) {
			if top == nil && e.doorbellHook != nil {
				e.doorbellHook()
			}
			return
		}
	}
}

// HandleDoorbells looks at the QPs on which other goroutines posted.
func (e *Engine) HandleDoorbells(now Time) {
	if e.doorbells.Load() == nil {
		return
	}
	// Newest first on the list; turned round so that QPs are served in the order of their posts.
	var first *QP
	for q := e.doorbells.Swap(nil); q != nil; {
		next := q.doorbellNext
		q.doorbellNext, first = first, q
		q = next
	}
	for first != nil {
		q := first
		first, q.doorbellNext = q.doorbellNext, nil
		q.rung.Store(false) // before looking: a later post rings again
		e.Posted(q)
	}
}

// Posted takes in what was posted on a QP, without a doorbell. The engine's owner.
func (e *Engine) Posted(q *QP) {
	switch q.State() {
	case Err:
		q.flush()
	case SQE: // IBA 10.3.1.6
		q.flushSends()
	case Reset: // or destroyed
	default:
		e.schedule(q)
	}
}

// event records an asynchronous event.
func (e *Engine) event(ev Event) {
	if e.eventHead-e.eventTail == eventRing {
		e.c.EventsLost++
		return
	}
	e.events[e.eventHead%eventRing] = ev
	e.eventHead++
}

// PollEvent takes the oldest asynchronous event.
func (e *Engine) PollEvent() (Event, bool) {
	if e.eventHead == e.eventTail {
		return Event{}, false
	}
	slot := &e.events[e.eventTail%eventRing]
	ev := *slot
	*slot = Event{}
	e.eventTail++
	return ev, true
}
