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
	// maxPacket is the largest packet that the engine writes, in bytes.
	maxPacket = bth.MaxNetHeader + bth.MaxHeaderLen + 4096
	// dataHeader is the longest header before a payload, that of a WRITE ONLY with immediate.
	dataHeader = bth.HeaderLen + bth.RETHLen + bth.ImmDtLen
	// MinBuffer is the size in bytes of a buffer that holds any packet without message payload. The
	// longest is an ACKNOWLEDGE with a SelACK.
	MinBuffer = bth.MaxNetHeader + bth.MaxAckLen
)

// Config holds the parameters of an engine.
type Config struct {
	MRs   *mr.Table
	Rand  func() uint64 // source of QPNs; cryptographic in production, seeded in tests
	MaxQP int           // limit of QPs; 0: 65,536
	QPNs  QPNRange      // of all QPs. A range that is not all QPNs also limits the number of QPs

	// MaxWindow limits the packets in flight of an RC QP, 2 to 2^23. 0 means DefaultWindow with
	// CongestionNone, otherwise 2^23.
	MaxWindow  int
	Congestion Congestion // of QPs for which Modify does not set it
	DCQCN      DCQCN      // parameters of QPs with CongestionDCQCN

	// MaxReorderMemory limits the memory in bytes for packets that are received out of order with
	// selective repeat. 0 means DefaultReorderMemory.
	MaxReorderMemory int

	// Runs says that the port is faster if it gets many packets of a message at once, because it
	// sends them as a run; see runs.go. While QPs of several traffic classes exist, it has no
	// effect.
	Runs bool

	Classes [NumClasses]ClassConfig // traffic classes
	// Rate limits all classes together, in bytes per second as ClassConfig.Rate. 0 means no limit.
	Rate uint64
}

// Engine owns queue pairs and runs their protocol. The package comment lists which methods may be
// called from which goroutine.
type Engine struct {
	mrs         *mr.Table
	target      mr.Backing // of the memory that checkRemote has returned; see place
	rand        func() uint64
	qpns        QPNRange
	maxWindow   uint32
	fixedWindow uint32 // of QPs with CongestionNone
	congestion  Congestion
	dcqcn       DCQCN

	table     qpTable
	runqSlots int // QPs, including destroyed ones that still occupy a run queue slot
	paths     map[frame.Path]*sharedPath
	// unused buffers for answers, indexed by half their capacity
	answerLists [MaxRdAtomic + 1][][]answer
	pool        reorderPool
	fills       fillList
	lists       [numLists]qpList
	keeping     bool // KeepAcks is on
	wheel       wheel

	runq        *sched.Queue[*QP] // QPs that may have packets to send
	serving     *QP               // the QP being served; it is not in runq
	quantumLeft uint32            // bytes that serving may still send
	runs        bool              // see Config

	window   int   // prefetch window in QPs; 0: off
	pipe     []*QP // ring of QPs in the prefetch pipeline; see prefetch.go
	pipeIn   uint32
	pipeWQE  uint32
	pipeKey  uint32
	pipeMR   uint32
	pipeMem  uint32
	incoming [maxPrefetchBatch]incomingPacket

	classScheduler

	groups map[bth.GID][]*QP // multicast groups

	lastData   Time // time of the last packet other than a late ACK
	lastRewind Time // time of the last go-back; see Calm
	lastGap    Time // time of the last gap in received PSNs; see RecentGaps

	peers peerTable // see silence.go

	boards     []*scoreboard // unused ones
	boardBytes int           // of boards

	doorbells    atomic.Pointer[QP] // list of QPs posted to by other goroutines, newest first
	taken        RecvWR             // scratch of takeOutside
	doorbellHook func()
	errHook      func(*QP)
	host         any

	events    [eventRing]Event
	eventHead uint32
	eventTail uint32
	c         Counters
	rtts      RTTHistogram
	meters    meters
	portMTU   bth.MTU
	parked    bth.Packet                 // scratch
	selWords  [bth.MaxSelACKWords]uint32 // scratch
	word      [atomicLen]byte            // scratch
	grh       [GRHLen]byte               // scratch
	deferring bool                       // see DeferPayloads
	uncopied  *QP                        // whose sent work request completes in Copied
	tx        Transmit                   // the result of PollTransmit
	inMessage bool                       // the last packet does not end its message
	middle    middle                     // for PollRun
	run       Run                        // the result of PollRun
	arrivals  arrivals                   // for HandleNext
	spill     [maxPacket]byte            // for packets that may not fit the caller's buffer
}

// NewEngine returns an engine without QPs.
func NewEngine(c Config) (*Engine, error) {
	if c.MRs == nil || c.Rand == nil {
		return nil, errors.New("qp: Config.MRs and Config.Rand are required; set both")
	}
	if c.MaxQP == 0 {
		c.MaxQP = DefaultMaxQP
	}
	fixed := c.MaxWindow
	if c.MaxWindow == 0 {
		c.MaxWindow, fixed = maxMaxWindow, DefaultWindow
	}
	if c.MaxQP < 1 || c.MaxQP > maxMaxQP {
		return nil, fmt.Errorf("qp: MaxQP is %d, want 1 to %d", c.MaxQP, maxMaxQP)
	}
	if err := c.QPNs.fill(); err != nil {
		return nil, err
	}
	if c.MaxWindow < minWindow || c.MaxWindow > maxMaxWindow {
		return nil, fmt.Errorf("qp: MaxWindow is %d packets, want %d to %d", c.MaxWindow, minWindow,
			maxMaxWindow)
	}
	if c.Congestion >= numCongestion {
		return nil, fmt.Errorf("qp: unknown congestion control %d", c.Congestion)
	}
	if c.MaxReorderMemory == 0 {
		c.MaxReorderMemory = DefaultReorderMemory
	}
	if c.MaxReorderMemory < 0 {
		return nil, fmt.Errorf("qp: MaxReorderMemory is %d bytes, want at least 0",
			c.MaxReorderMemory)
	}
	if err := c.DCQCN.fill(); err != nil {
		return nil, err
	}
	e := &Engine{mrs: c.MRs, rand: c.Rand, qpns: c.QPNs, maxWindow: uint32(c.MaxWindow),
		fixedWindow: uint32(fixed), congestion: c.Congestion, dcqcn: c.DCQCN, portMTU: 1024,
		runs:     c.Runs,
		lastData: -1, lastRewind: -calmAfter, lastGap: -gapMemory,
		paths: map[frame.Path]*sharedPath{}}
	e.table.init(c.QPNs.limit(c.MaxQP))
	e.pool.limit, e.fills.most = c.MaxReorderMemory, maxFill
	e.meters.init()
	e.growRunq()
	if err := e.initClasses(&c.Classes, c.Rate); err != nil {
		return nil, err
	}
	for id := range e.lists {
		e.lists[id].in = listID(id)
	}
	return e, e.SetPrefetch(DefaultPrefetch)
}

// SetPortMTU sets the largest path MTU of the port, which limits UD messages. It applies to QPs
// created afterwards.
func (e *Engine) SetPortMTU(m bth.MTU) { e.portMTU = m }

// Counters returns the engine's counters. Only the owner may read them.
func (e *Engine) Counters() *Counters {
	e.c.ParkedBytes = uint64(e.pool.used)
	return &e.c
}

// HandlePacket processes a received packet. It finds the QP and makes the checks that do not depend
// on the QP's state (IBA 9.6.1.1; RoCEv2 A17.4). It does not keep references to p. It returns false
// if the packet was dropped because it belongs to no QP.
func (e *Engine) HandlePacket(now Time, p *bth.Packet) bool {
	e.HandleEnd(now)
	e.c.RcvdPkts++
	e.c.RcvdBytes += uint64(len(p.Payload))
	dest := p.BTH.DestQP()
	if dest == bth.QPNMulticast {
		e.handleMulticast(p)
		return true
	}
	q := e.table.get(dest)
	if q == nil {
		e.c.DropNoQP++
		return false
	}
	if !q.pkeyOK(p.BTH.PKey()) {
		e.c.DropPKey++
		return false
	}
	if q.typ != UD && !q.path.Matches(p) {
		e.c.DropAddress++
		return false
	}
	q.meter().rcvd += uint64(len(p.Payload))
	switch {
	case q.typ == RC && p.Info.Transport == bth.RC:
		e.peers.heard[p.Src[peerByte]] = now
		if p.TrafficClass&ecnMask == ecnCE {
			q.handleMarked(now, p)
		}
		if p.Info.Response {
			q.handleResponse(now, p)
		} else {
			q.handleRequest(now, p)
		}
	case q.typ == UC && p.Info.Transport == bth.UC:
		q.handleUC(now, p)
	case q.typ == UD && p.Info.Transport == bth.UD:
		q.handleUD(p)
	case q.typ == RC && p.Info.Op == bth.OpCNP:
		q.handleCNP(now)
	default:
		e.c.DropType++
		return false
	}
	return true
}

// HasTransmit reports whether PollTransmit may have a packet at time now.
func (e *Engine) HasTransmit(now Time) bool {
	return e.serving != nil || e.hasQueued(now)
}

// hasQueued is HasTransmit if no QP is being served.
func (e *Engine) hasQueued(now Time) bool {
	if e.classed {
		return e.hasClassed(now)
	}
	return e.runq.Len() > 0 || e.dueAck(now) != nil
}

// Idle reports whether another step would do nothing: no QP has packets to send, apart from those
// that wait for tokens or for the backlog, no requested ACK waits except those of KeepAcks, no held
// packets are to be executed, and there is no doorbell and no event. Timers may be running.
func (e *Engine) Idle() bool {
	return e.serving == nil && e.lists[inAckSoon].head == nil && e.doorbells.Load() == nil &&
		e.queuesIdle() && e.eventHead == e.eventTail && !e.Filling()
}

func (e *Engine) queuesIdle() bool {
	if e.classed {
		return e.unblocked() == 0
	}
	return e.runq.Len() == 0
}

// PollTransmit writes the next packet to b: the path's headers, BTH, extension headers, payload and
// pad. The caller appends the ICRC. b holds the largest frame of the port without its ICRC, at
// least MinBuffer bytes; a packet that does not fit is dropped and counted. The result is valid
// until the next call. It is nil if there is nothing to send now.
func (e *Engine) PollTransmit(now Time, b []byte) *Transmit {
	tx := &e.tx
	tx.Ended, tx.Next = 0, 0
	e.undefer()
	for q := e.next(now); q != nil; q = e.next(now) {
		to, short := b, len(b) < q.maxPacketLen()
		if short {
			to = e.spill[:]
		}
		e.inMessage = false
		n, netLen := q.transmit(now, to)
		if n == 0 {
			e.undefer()
			e.endService(q)
			continue
		}
		e.lastData = now
		switch {
		case e.classed:
			e.served(now, q, to[:n], netLen)
		case q.doneSending():
			e.endService(q)
		case uint32(n) < e.quantumLeft:
			if e.quantumLeft -= uint32(n); e.inMessage && !short {
				tx.Next = q.following(now)
			}
		default:
			if e.serving = nil; q.list == inRunq {
				e.enqueue(q)
			}
		}
		if n > len(b) { // the port's MTU fell below the path MTU: drop the packet, as a link would
			e.c.DropLength++
			e.classes[tx.Class].SentPkts--
			e.undefer()
			e.Copied()
			continue
		}
		if short {
			copy(b, to[:n])
		}
		tx.Len, tx.NetLen, tx.QPN = n, netLen, q.qpn
		e.c.SentPkts++
		return tx
	}
	if e.classed {
		return nil
	}
	if q := e.dueAck(now); q != nil {
		e.unlist(q)
		tx.Len, tx.NetLen = q.sendAck(b)
		tx.QPN = q.qpn
		e.c.SentPkts++
		return tx
	}
	return nil
}

// doneSending reports whether the QP has nothing more to send. If false, it may still have nothing.
// A pending ACK does not count: see endService. The responder's fields are read only if the QP owes
// a response, because with thousands of QPs they are not in the cache.
func (q *QP) doneSending() bool {
	return q.sq.cur == q.sq.head.Load() && q.list == inRunq && !q.win.repairing &&
		(!q.owes || !q.nakOwed && !q.ackNow && !q.cnpOwed && q.answers.empty())
}

// endService takes a QP without packets off the run queue. A pending ACK stays scheduled.
func (e *Engine) endService(q *QP) {
	e.serving = nil
	e.unlist(q)
	if e.classed {
		e.leave(q)
	}
	if q.owes && q.ackOwed {
		e.awaitAck(q)
	}
}

// maxPacketLen returns an upper bound for the length of the QP's packets.
func (q *QP) maxPacketLen() int {
	netLen := q.path.HeaderLen()
	if q.typ == UD {
		netLen = bth.MaxNetHeader
	}
	return netLen + dataHeader + int(q.mtu.Load())
}

// next returns the QP to serve: the current one, or the first in the run queue that still has
// packets to send.
func (e *Engine) next(now Time) *QP {
	if q := e.serving; q != nil && q.list == inRunq {
		return q
	}
	if e.classed {
		return e.nextClassed(now)
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
			e.serving, e.quantumLeft = q, e.turn()
			return q
		}
		e.releaseRunqSlot(q)
	}
}

// schedule makes q eligible for sending.
func (e *Engine) schedule(q *QP) {
	if e.classed {
		e.scheduleClassed(q)
		return
	}
	if q.list == inRunq {
		return
	}
	e.unlist(q)
	q.list = inRunq
	switch {
	case q == e.serving:
	case e.serving == nil && e.runq.Len() == 0: // it would be served next anyway
		e.serving, e.quantumLeft = q, e.turn()
	default:
		e.enqueue(q)
	}
}

// enqueue appends q to the run queue, unless q still occupies a slot there.
func (e *Engine) enqueue(q *QP) {
	if !q.queued {
		q.queued = true
		e.runq.Push(q)
	}
}

// minRunq is the initial capacity of the run queue.
const minRunq = 64

// growRunq gives the run queue space for all QPs.
func (e *Engine) growRunq() {
	old := e.runq
	if old != nil && e.runqSlots <= old.Cap() {
		return
	}
	size := minRunq
	if old != nil {
		size = 2 * old.Cap()
	}
	e.runq, _ = sched.New[*QP](size, e.window) // size and window are in range
	e.queues[0].ring = e.runq
	for old != nil {
		q, ok := old.Pop()
		if !ok {
			return
		}
		e.runq.Push(q)
	}
}

// SetErrHook sets a function that the owner calls whenever a QP enters ERR. The function must not
// call the engine. Set it before use.
func (e *Engine) SetErrHook(f func(*QP)) { e.errHook = f }

// SetHost stores the object that the engine belongs to. Set it before use.
func (e *Engine) SetHost(h any) { e.host = h }

// Host returns what Engine.SetHost has stored. It may be called from any goroutine.
func (q *QP) Host() any { return q.eng.host }

// event queues an asynchronous event.
func (e *Engine) event(ev Event) {
	if e.eventHead-e.eventTail == eventRing {
		e.c.EventsLost++
		return
	}
	e.events[e.eventHead%eventRing] = ev
	e.eventHead++
}

// PollEvent removes and returns the oldest asynchronous event.
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
