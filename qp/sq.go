package qp

import (
	"fmt"
	"sync/atomic"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/internal/fence"
	"github.com/gorxe/gorxe/mr"
)

// wqe is a send work request in its ring slot. It fills one cache line and has no pointers, so the
// garbage collector does not scan it. The poster fills it before it publishes the ring's head. The
// engine owns the fields from psn on.
type wqe struct {
	id     uint64
	raddr  uint64 // UD: the QPN and Q_Key of the receiver
	one    [1]SGE // the SGE, if there is one; more are in slotData
	length uint32 // of the message, bytes
	rkey   bth.RKey
	extra  uint32 // immediate, R_Key to invalidate, or placement and level of a FLUSH
	op     Op
	flags  SendFlags
	nsge   uint8
	inline bool

	// psn is the count of its first packet. Before the WQE is started, it is the poster's stamp if
	// the class is FIFO.
	psn    uint64
	npkts  uint32
	part   uint8  // READ: log2 of the packets per request
	status Status // set if the WQE failed before all of it was sent
}

// datagramTo packs the QPN and Q_Key of a UD work request.
func datagramTo(n bth.QPN, k bth.QKey) uint64 { return uint64(n)<<32 | uint64(k) }

func (w *wqe) destQP() bth.QPN { return bth.QPN(w.raddr >> 32) }
func (w *wqe) qkey() bth.QKey  { return bth.QKey(w.raddr) }

// sendQueue is the SQ. The counters tail <= cur <= started <= head only grow. Its first line holds
// what a poster writes and what never changes, the rest is written by the engine.
//
// A post to an empty queue starts again at the first slot, which lies in the QP. A QP with one
// request at a time therefore uses a single line, which is fetched with the QP, instead of bringing
// the whole ring through the caches and its pages through the TLB.
type sendQueue struct {
	first wqe   // slot 0
	wqes  []wqe // slots from 1; with the first, a power of two

	data      *slotData
	cq        *CQ
	shift     uint32 // maps a counter to a slot; the poster changes it while the queue is empty
	depth     uint16
	maxInline uint16
	maxSGE    uint8
	signalAll bool
	outside   bool          // see SetSource
	head      atomic.Uint32 // next slot to fill; written only by the poster
	posters   atomic.Uint32 // see QP.Posters
	locals    uint32        // local operations that have run and wait for earlier work requests

	tail    atomic.Uint32 // next slot to complete
	cur     uint32        // WQE being sent
	started uint32        // WQEs with PSNs assigned, and local operations that have run
	curPkt  uint32        // next packet of cur
}

// slotData is the memory of the slots beside their WQEs.
type slotData struct {
	sges   []SGE  // maxSGE per slot: more than one SGE, or the operands of an atomic
	inline []byte // maxInline per slot
	source Source // see SetSource
}

// initSQ creates the queue.
func (q *QP) initSQ(a *InitAttr) {
	s := &q.sq
	n := slots(max(a.SQDepth, 1))
	s.cq = a.SendCQ
	s.depth = uint16(a.SQDepth)
	s.maxSGE, s.maxInline = uint8(max(a.MaxSendSGE, 1)), uint16(a.MaxInline)
	s.signalAll = a.SignalAll
	s.wqes = make([]wqe, n-1)
	s.data = &slotData{sges: make([]SGE, n*uint32(s.maxSGE)),
		inline: make([]byte, n*uint32(s.maxInline))}
	if a.Type == UD {
		ahs := make([]*frame.Path, n)
		q.ahs = &ahs
	}
}

// slotSGEs returns the SGEs of a slot in slotData.
func (s *sendQueue) slotSGEs(slot uint32) []SGE {
	n := uint32(s.maxSGE)
	return s.data.sges[slot*n : slot*n+n]
}

// inlineAt returns the memory for the inline data of the WQE of counter i.
func (s *sendQueue) inlineAt(i uint32) []byte {
	n := uint32(s.maxInline)
	at := s.slot(i) * n
	return s.data.inline[at : at+n]
}

// used returns the number of slots in use. It is exact for the poster and the engine, and a
// snapshot for others.
func (s *sendQueue) used() uint32 { return s.head.Load() - s.tail.Load() }

// slot returns the slot of counter i, which is between tail and head.
func (s *sendQueue) slot(i uint32) uint32 { return (i + s.shift) & uint32(len(s.wqes)) }

// at returns the WQE of counter i.
func (s *sendQueue) at(i uint32) *wqe { return s.in(s.slot(i)) }

// oldest returns the oldest outstanding WQE, or nil: the slots of an empty queue belong to the
// poster. Engine only.
func (s *sendQueue) oldest() *wqe {
	if tail := s.tail.Load(); tail != s.started {
		return s.at(tail)
	}
	return nil
}

// in returns the WQE in a slot.
func (s *sendQueue) in(slot uint32) *wqe {
	if slot == 0 {
		return &s.first
	}
	return &s.wqes[slot-1]
}

// sgesAt returns the SGEs of the WQE of counter i.
func (s *sendQueue) sgesAt(i uint32) []SGE {
	at := s.slot(i)
	w := s.in(at)
	if w.nsge <= 1 {
		return w.one[:w.nsge]
	}
	return s.slotSGEs(at)[:w.nsge]
}

// operands returns the memory for an atomic's operands: wqe.one or the slot's first SGE, whichever
// the work request's own SGEs do not use.
func (s *sendQueue) operands(i uint32) *SGE {
	at := s.slot(i)
	if w := s.in(at); w.nsge > 1 {
		return &w.one[0]
	}
	return &s.slotSGEs(at)[0]
}

func (g *SGE) setOperands(compare, swapAdd uint64) {
	*g = SGE{Addr: compare, Length: uint32(swapAdd), LKey: bth.LKey(swapAdd >> 32)}
}

func (g *SGE) getOperands() (compare, swapAdd uint64) {
	return g.Addr, uint64(g.LKey)<<32 | uint64(g.Length)
}

// ahAt returns the entry for the path of a UD work request.
func (q *QP) ahAt(i uint32) **frame.Path { return &(*q.ahs)[q.sq.slot(i)] }

// opRule holds the rules for one operation (IBA 9.4, 11.4.1.1).
type opRule struct {
	types  uint8     // bit set of the Types that support it
	inline bool      // data may be inline
	fixed  uint32    // required length in bytes; 0: any
	need   mr.Access // access that the local memory must allow
}

const (
	onRC = 1 << RC
	onUC = 1 << UC
	onUD = 1 << UD
)

var opRules = [numOps]opRule{
	OpSend:     {types: onRC | onUC | onUD, inline: true},
	OpSendImm:  {types: onRC | onUC | onUD, inline: true},
	OpSendInv:  {types: onRC, inline: true},
	OpWrite:    {types: onRC | onUC, inline: true},
	OpWriteImm: {types: onRC | onUC, inline: true},
	OpRead:     {types: onRC, need: mr.LocalWrite},
	OpCmpSwap:  {types: onRC, fixed: atomicLen, need: mr.LocalWrite},
	OpFetchAdd: {types: onRC, fixed: atomicLen, need: mr.LocalWrite},

	OpFlush:       {types: onRC},
	OpAtomicWrite: {types: onRC, inline: true, fixed: atomicLen},
	OpBindMW:      {types: onRC | onUC},
	OpLocalInv:    {types: onRC | onUC},
	OpRegMR:       {types: onRC | onUC},
}

// PostSend appends work requests to the send queue, in order, and returns how many it accepted. If
// it returns an error, the requests before the failing one are posted, as with ibv_post_send. All
// accepted requests become visible to the engine at once, with one doorbell. Any goroutine may call
// it, but only one at a time per QP.
//
// Errors: ErrQPState before RTS, ErrSQFull, ErrInvalidWR, ErrInvalidKey. In state ERR posting
// succeeds and the requests complete with WRFlushErr (IBA 10.3.1.7).
func (q *QP) PostSend(wrs []SendWR) (int, error) {
	n, err := q.Post(wrs)
	if n > 0 {
		q.RingDoorbell()
	}
	return n, err
}

// Post is PostSend without the doorbell. If it accepts requests, the caller must call RingDoorbell
// or Engine.Posted.
func (q *QP) Post(wrs []SendWR) (int, error) {
	word := q.state.Load()
	if st := State(word & stateMask); st < RTS {
		return 0, fmt.Errorf("%w: PostSend in %s; move the QP to RTS first", ErrQPState, st)
	}
	s := &q.sq
	head := s.head.Load()
	used := head - s.tail.Load()
	if used == 0 {
		s.shift = -head // the engine reads no slot until head changes
	}
	free := uint32(s.depth) - used
	var err error
	n := 0
	for n = range wrs {
		if free == uint32(n) {
			err = ErrSQFull
			break
		}
		if err = q.fillWQE(head+uint32(n), &wrs[n]); err != nil {
			break
		}
	}
	if err == nil {
		n = len(wrs)
	}
	if n > 0 {
		if word&stamped != 0 {
			q.stampWQEs(head, head+uint32(n))
		}
		// the barrier before the engine's state is in RingDoorbell, or in owning the engine
		fence.Store(&s.head, head+uint32(n))
	}
	return n, err
}

// fillWQE checks a work request and copies it into its slot.
func (q *QP) fillWQE(i uint32, wr *SendWR) error {
	s := &q.sq
	if wr.Op >= numOps || opRules[wr.Op].types&(1<<q.typ) == 0 {
		return fmt.Errorf("%w: %s is not an operation of %s QPs", ErrInvalidWR, wr.Op, q.typ)
	}
	rule := &opRules[wr.Op]
	w := s.at(i)
	if wr.Op >= OpFlush && wr.Op != OpAtomicWrite {
		return q.fillOther(i, w, wr)
	}
	n, err := q.fillData(i, w, wr, rule)
	if err != nil {
		return err
	}
	if rule.fixed != 0 && n != uint64(rule.fixed) {
		return fmt.Errorf("%w: %s needs %d bytes of local memory, got %d", ErrWRLength, wr.Op,
			rule.fixed, n)
	}
	if n > MaxMessage {
		return fmt.Errorf("%w: message of %d bytes, the limit is 2^31", ErrWRLength, n)
	}
	if q.typ == UD {
		var path *frame.Path
		if wr.AH != nil {
			ah := noescape(wr.AH)
			if ah.eng != nil && ah.eng != q.eng {
				return fmt.Errorf("%w: the address handle (AH)", ErrForeign)
			}
			path = ah.Path()
		}
		if path == nil || !path.Valid() {
			return fmt.Errorf("%w: a UD work request needs an address handle (AH); "+
				"create one with Device.CreateAH", ErrInvalidWR)
		}
		if n > uint64(q.mtu.Load()) {
			return fmt.Errorf("%w: UD message of %d bytes, the path MTU is %d", ErrWRLength, n,
				q.mtu.Load())
		}
		*q.ahAt(i) = path
	}
	w.id, w.op, w.flags, w.length = wr.ID, wr.Op, wr.Flags, uint32(n)
	w.raddr, w.rkey = wr.RemoteAddr, wr.RKey
	if q.typ == UD {
		w.raddr = datagramTo(wr.RemoteQPN, wr.RemoteQKey)
	}
	w.extra = wr.Imm
	switch wr.Op {
	case OpSendInv:
		w.extra = uint32(wr.InvKey)
	case OpCmpSwap, OpFetchAdd:
		s.operands(i).setOperands(wr.Compare, wr.SwapAdd)
	}
	w.status = Success
	return nil
}

// fillData checks and copies the SGE list or the inline data. It returns the length of the message.
func (q *QP) fillData(i uint32, w *wqe, wr *SendWR, rule *opRule) (uint64, error) {
	s := &q.sq
	if w.inline = len(wr.Inline) > 0; w.inline {
		if !rule.inline || len(wr.SGEs) > 0 || len(wr.Inline) > int(s.maxInline) {
			return 0, fmt.Errorf("%w: %d bytes inline for %s with %d SGEs; the QP's MaxInline is %d",
				ErrInvalidWR, len(wr.Inline), wr.Op, len(wr.SGEs), s.maxInline)
		}
		w.nsge = 0
		copy(s.inlineAt(i), wr.Inline)
		return uint64(len(wr.Inline)), nil
	}
	if len(wr.SGEs) > int(s.maxSGE) {
		return 0, fmt.Errorf("%w: %d SGEs, the QP's MaxSendSGE is %d", ErrInvalidWR, len(wr.SGEs),
			s.maxSGE)
	}
	w.nsge = uint8(len(wr.SGEs))
	return q.fillSGEs(s.sgesAt(i), wr.SGEs, rule.need)
}

// fillSGEs copies SGEs after checking that their keys cover them. It returns their total length.
func (q *QP) fillSGEs(dst, src []SGE, need mr.Access) (uint64, error) {
	var n uint64
	for i, g := range src {
		if g.Length > 0 {
			// mr.NotYet: a REG_MR that was posted earlier will make the key live.
			if _, v := q.eng.mrs.CheckLocal(q.pd, mr.Key(g.LKey), g.Addr, g.Length,
				need); v != mr.OK && v != mr.NotYet && v != mr.Foreign && !q.sq.outside {
				return 0, sgeError(i, g, v)
			}
		}
		n += uint64(g.Length)
		dst[i] = g
	}
	return n, nil
}

// sgeError returns the error for SGE i of a send or receive that failed its key check.
func sgeError(i int, g SGE, v mr.Verdict) error {
	return fmt.Errorf("%w: SGE %d, %d bytes at %#x: %s", ErrInvalidKey, i, g.Length, g.Addr, v)
}

// gather copies bytes [off, off+len(b)) of a WQE's message to b, which starts at offset at of the
// packet. It looks up the keys for every packet, because an MR may have been deregistered since the
// post.
func (q *QP) gather(b []byte, at int, i uint32, off uint32) Status {
	s := &q.sq
	if s.at(i).inline {
		copy(b, s.inlineAt(i)[off:])
		return Success
	}
	for _, g := range s.sgesAt(i) {
		if off >= g.Length {
			off -= g.Length
			continue
		}
		n := min(g.Length-off, uint32(len(b)))
		if n > 0 {
			src, v := q.eng.mrs.CheckLocal(q.pd, mr.Key(g.LKey), g.Addr+uint64(off), n, 0)
			if v != mr.OK && !(v == mr.Foreign && q.load(g, off, n)) {
				return LocProtErr
			}
			q.eng.copyOut(b[:n], at, src)
		}
		if b, at = b[n:], at+int(n); len(b) == 0 {
			break
		}
		off = 0
	}
	return Success
}

// scatter copies b to offset off of an SGE list (IBA 10.7.3).
func (e *Engine) scatter(pd *mr.PD, sges []SGE, off uint32, b []byte) Status {
	for _, g := range sges {
		if len(b) == 0 {
			return Success
		}
		if off >= g.Length {
			off -= g.Length
			continue
		}
		n := min(g.Length-off, uint32(len(b)))
		dst, v := e.mrs.CheckLocal(pd, mr.Key(g.LKey), g.Addr+uint64(off), n, mr.LocalWrite)
		switch v {
		case mr.OK:
			mr.CopyIn(dst, b[:n])
		case mr.Foreign:
			e.scatterForeign(g.LKey, dst, b[:n])
		default:
			return verdictStatus(v)
		}
		b, off = b[n:], 0
	}
	if len(b) > 0 {
		return LocLenErr
	}
	return Success
}
