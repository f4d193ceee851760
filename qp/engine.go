package qp

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

const (
	// chunk is how many bytes one QP may send before the next has its turn.
	chunk = 16 << 10
	// ackDelay is how long an ACK may wait for company, and for data to leave first.
	ackDelay Time = 4000
	// ackBatch is how many request packets one ACK covers before it goes out at once.
	ackBatch = 16
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

	table qpTable
	runq  qpList // QPs that may have something to send, in turns
	ackq  qpList // QPs that owe nothing but an ACK, oldest first
	wheel wheel
	turn  uint32 // bytes that the head of runq may still send

	lastData Time // when PollTransmit last sent something other than a late ACK

	bell     atomic.Pointer[QP] // QPs posted on by other goroutines, newest first
	bellHook func()

	events    [eventRing]Event
	eventHead uint32
	eventTail uint32
	c         Counters
	portMTU   bth.MTU
	word      [atomicLen]byte // scratch
	grh       [GRHLen]byte    // scratch
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
	e := &Engine{mrs: c.MRs, rand: c.Rand, maxWindow: uint32(c.MaxWindow), portMTU: 1024, lastData: -1}
	e.table.init(c.MaxQP)
	e.runq.in, e.ackq.in = inRunq, inAckq
	return e, nil
}

// SetPortMTU tells the largest path MTU of the port: what UD messages may carry. QPs made later
// use it.
func (e *Engine) SetPortMTU(m bth.MTU) { e.portMTU = m }

// Counters are the engine's own: read them on its thread.
func (e *Engine) Counters() *Counters { return &e.c }

// HandlePacket takes in one packet. p's views are not used after it returns.
func (e *Engine) HandlePacket(now Time, p *bth.Packet) {
	e.c.RcvdPkts++
	e.c.RcvdBytes += uint64(len(p.Payload))
	dest := p.BTH.DestQP()
	if dest == bth.QPNMulticast {
		e.c.DropMulticast++
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
	if q.typ != UD && (p.Src != q.path.Remote || p.Dst != q.path.Local) {
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
	return e.runq.head != nil || e.lateAck(now) != nil
}

// PollTransmit writes the next packet into b: the path's headers, BTH, extension headers, payload
// and pad. It returns their length and that of the network headers; 0: nothing to send now. The
// caller appends the ICRC; b needs room for a whole frame.
func (e *Engine) PollTransmit(now Time, b []byte) (n, netLen int) {
	for q := e.runq.head; q != nil; q = e.runq.head {
		if n, netLen = q.transmit(now, b); n == 0 {
			e.runq.remove(q)
			if q.ackOwed {
				e.ackq.push(q)
			}
			e.turn = chunk
			continue
		}
		e.lastData = now
		e.c.SentPkts++
		if uint32(n) >= e.turn {
			e.runq.remove(q)
			e.runq.push(q)
			e.turn = chunk
		} else {
			e.turn -= uint32(n)
		}
		return n, netLen
	}
	if q := e.lateAck(now); q != nil {
		e.ackq.remove(q)
		n, netLen = q.sendAck(b)
		e.c.SentPkts++
		return n, netLen
	}
	return 0, 0
}

// lateAck is the QP whose ACK is due. An ACK waits for the end of a turn in which its requests
// came and of one in which data left, so that answers which the user posts at once overtake it and
// many requests share one; but not longer than ackDelay.
func (e *Engine) lateAck(now Time) *QP {
	q := e.ackq.head
	if q == nil || now-q.ackSince >= ackDelay || (now > q.ackSince && now != e.lastData) {
		return q
	}
	return nil
}

// schedule gives q turns to send.
func (e *Engine) schedule(q *QP) {
	if q.list == inRunq {
		return
	}
	if q.list == inAckq {
		e.ackq.remove(q)
	}
	if e.runq.head == nil {
		e.turn = chunk
	}
	e.runq.push(q)
}

// SetBell sets what PostSend calls, on the poster's goroutine, when it rings the first bell since
// HandleDoorbells; for waking a sleeping owner. Set it before use.
func (e *Engine) SetBell(f func()) { e.bellHook = f }

// BellPending tells whether HandleDoorbells has work. Any goroutine.
func (e *Engine) BellPending() bool { return e.bell.Load() != nil }

// ring puts the QP on the bell list unless it is there. Any goroutine.
func (q *QP) ring() {
	if q.rung.Load() || !q.rung.CompareAndSwap(false, true) {
		return
	}
	e := q.eng
	for {
		top := e.bell.Load()
		q.bellNext = top
		if e.bell.CompareAndSwap(top, q) {
			if top == nil && e.bellHook != nil {
				e.bellHook()
			}
			return
		}
	}
}

// HandleDoorbells looks at the QPs on which other goroutines posted.
func (e *Engine) HandleDoorbells(now Time) {
	if e.bell.Load() == nil {
		return
	}
	// Newest first on the list; turned round so that QPs are served in the order of their posts.
	var first *QP
	for q := e.bell.Swap(nil); q != nil; {
		next := q.bellNext
		q.bellNext, first = first, q
		q = next
	}
	for q := first; q != nil; {
		next := q.bellNext
		q.bellNext = nil
		q.rung.Store(false) // before looking: a later post rings again
		switch q.State() {
		case Err:
			q.flush()
		case SQE: // IBA 10.3.1.6
			q.flushSends()
		default:
			if !q.dead {
				e.schedule(q)
			}
		}
		q = next
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
