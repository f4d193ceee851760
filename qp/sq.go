package qp

import (
	"sync/atomic"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/internal/fence"
	"github.com/gorxe/gorxe/mr"
)

// wqe is a send work request in its ring slot: one cache line, and no pointer for the garbage
// collector. The poster fills it before it publishes the ring's head; from then on it is the engine's,
// which owns the fields from psn on.
type wqe struct {
	id     uint64
	raddr  uint64 // UD: the peer's QPN and Q_Key
	one    [1]SGE // the only SGE, if there is one; more are in sendQueue.rooms
	length uint32 // of the message, bytes
	rkey   bth.RKey
	extra  uint32 // immediate, the rkey to invalidate, or a FLUSH's placement and level
	op     Op
	flags  SendFlags
	nsge   uint8
	inline bool

	psn    uint64 // count of its first packet
	npkts  uint32
	part   uint8  // READ: packets asked for by one request
	status Status // set when the WQE failed before it was sent whole
}

// datagramTo packs the address of a UD work request beside its AH.
func datagramTo(n bth.QPN, k bth.QKey) uint64 { return uint64(n)<<32 | uint64(k) }

func (w *wqe) destQP() bth.QPN { return bth.QPN(w.raddr >> 32) }
func (w *wqe) qkey() bth.QKey  { return bth.QKey(w.raddr) }

// sendQueue is the SQ: tail <= cur <= started <= head, all counting up for ever. What a poster writes, or
// what never changes, fills the first line; behind it is what the engine writes.
//
// A post that finds the queue empty begins again at the first slot, which lies in the QP. So a QP that has one request under way at a
// time uses one line over and over, which comes with the QP's others: a ring that went round would bring all its
// lines through the caches in turn, and the pages that they are on through the TLB.
type sendQueue struct {
	first wqe   // slot 0
	wqes  []wqe // slots 1 on; with the first a power of two

	slotData  *SGE // room for each slot: more SGEs than one, inline data, or an atomic's operands; see roomAt
	cq        *CQ
	shift     uint32 // what makes a count a slot; the poster sets it while the queue is empty
	depth     uint16
	maxInline uint16
	maxSGE    uint8
	slotSGEs  uint8 // SGEs a slot has in rooms, or bytes of inline data over 16
	signalAll bool
	head      atomic.Uint32 // next slot to fill; written by the poster only
	posters   atomic.Uint32 // see QP.Posters
	_         [4]byte

	tail    atomic.Uint32 // next slot to complete
	cur     uint32        // WQE being sent
	started uint32        // WQEs that were given PSNs, and local operations that have run
	curPkt  uint32        // next packet of cur
	locals  uint32        // local operations that have run and wait for those before them
}

// initSQ makes the queue.
func (q *QP) initSQ(a *InitAttr) {
	s := &q.sq
	n := slots(max(a.SQDepth, 1))
	s.cq = a.SendCQ
	s.depth = uint16(a.SQDepth)
	s.maxSGE, s.maxInline = uint8(max(a.MaxSendSGE, 1)), uint16(a.MaxInline)
	s.signalAll, s.slotSGEs = a.SignalAll, uint8(a.slotSGEs())
	s.wqes = make([]wqe, n-1)
	s.slotData = &make([]SGE, n*uint32(s.slotSGEs))[0]
	if a.Type == UD {
		ahs := make([]*frame.Path, n)
		q.ahs = &ahs
	}
}

// slotRoom is how many SGEs a slot has room for: those of a WR, or its inline data instead.
func (a *InitAttr) slotSGEs() int {
	return max(a.MaxSendSGE, 1, (a.MaxInline+sgeSize-1)/sgeSize)
}

// used is how many slots are taken; exact for either end, a snapshot for others.
func (s *sendQueue) used() uint32 { return s.head.Load() - s.tail.Load() }

// slot is where the work request of a count between tail and head is, and the next one's.
func (s *sendQueue) slot(i uint32) uint32 { return (i + s.shift) & uint32(len(s.wqes)) }

// at is the work request of a count.
func (s *sendQueue) at(i uint32) *wqe { return s.in(s.slot(i)) }

// in is the one in a slot.
func (s *sendQueue) in(slot uint32) *wqe {
	if slot == 0 {
		return &s.first
	}
	return &s.wqes[slot-1]
}

// sgesAt are the SGEs of the work request of a count.
func (s *sendQueue) sgesAt(i uint32) []SGE {
	at := s.slot(i)
	w := s.in(at)
	if w.nsge <= 1 {
		return w.one[:w.nsge]
	}
	return s.slotDataAt(at)[:w.nsge]
}

// operands is where an atomic keeps what it compares with and swaps in or adds: where its SGEs are not.
func (s *sendQueue) operands(i uint32) *SGE {
	at := s.slot(i)
	if w := s.in(at); w.nsge > 1 {
		return &w.one[0]
	}
	return &s.slotDataAt(at)[0]
}

func (g *SGE) setOperands(compare, swapAdd uint64) {
	*g = SGE{Addr: compare, Length: uint32(swapAdd), LKey: bth.LKey(swapAdd >> 32)}
}

func (g *SGE) getOperands() (compare, swapAdd uint64) {
	return g.Addr, uint64(g.LKey)<<32 | uint64(g.Length)
}

// ahAt returns the slot of the path of a UD work request.
func (q *QP) ahAt(i uint32) **frame.Path { return &(*q.ahs)[q.sq.slot(i)] }

// opRule is what the architecture says of one operation (IBA 9.4, 11.4.1.1).
type opRule struct {
	types  uint8     // bit of each Type that may use it
	inline bool      // data may be inline
	fixed  uint32    // length it must have; 0: any
	need   mr.Access // what the local memory must allow
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

// PostSend puts work requests on the send queue, in order, and returns how many it took; with an
// error, those before the offending one are posted (as ibv_post_send's bad_wr). All that fit become
// visible to the engine at once, with one doorbell. Any goroutine, one at a time for each QP.
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

// Post is PostSend without the doorbell: the work requests are on the queue, and Engine.Posted or Ring has to follow if there are any.
func (q *QP) Post(wrs []SendWR) (int, error) {
	if st := q.State(); st < RTS {
		return 0, refuseState(st)
	}
	s := &q.sq
	head := s.head.Load()
	used := head - s.tail.Load()
	if used == 0 {
		s.shift = -head // the engine looks at no slot until head moves on
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
		fence.Store(&s.head, head+uint32(n)) // the barrier before the engine's state is in Ring, or in being its owner
	}
	return n, err
}

// fillWQE checks a work request and copies it into its slot.
func (q *QP) fillWQE(i uint32, wr *SendWR) error {
	s := &q.sq
	if wr.Op >= numOps || opRules[wr.Op].types&(1<<q.typ) == 0 {
		return q.refuseWR(notOfType, wr, 0)
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
		return q.refuseWR(wrongLength, wr, n)
	}
	if n > MaxMessage {
		return q.refuseWR(tooLong, wr, n)
	}
	if q.typ == UD {
		var path *frame.Path
		if wr.AH != nil {
			path = wr.AH.Path()
		}
		if path == nil || !path.Valid() {
			return q.refuseWR(noAH, wr, n)
		}
		if n > uint64(q.mtu.Load()) {
			return q.refuseWR(longDatagram, wr, n)
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

// fillData checks and copies the SGE list or the inline data; it returns the message's length.
func (q *QP) fillData(i uint32, w *wqe, wr *SendWR, rule *opRule) (uint64, error) {
	s := &q.sq
	if w.inline = len(wr.Inline) > 0; w.inline {
		if !rule.inline || len(wr.SGEs) > 0 || len(wr.Inline) > int(s.maxInline) {
			return 0, q.refuseWR(wrongInline, wr, 0)
		}
		w.nsge = 0
		copy(s.inlineAt(i), wr.Inline)
		return uint64(len(wr.Inline)), nil
	}
	if len(wr.SGEs) > int(s.maxSGE) {
		return 0, q.refuseWR(manySGEs, wr, 0)
	}
	w.nsge = uint8(len(wr.SGEs))
	return q.fillSGEs(s.sgesAt(i), wr.SGEs, rule.need)
}

// fillSGEs copies SGEs after checking that their keys cover them; it returns their total length.
func (q *QP) fillSGEs(dst, src []SGE, need mr.Access) (uint64, error) {
	var n uint64
	for i, g := range src {
		if g.Length > 0 {
			// mr.NotYet: a REG_MR posted before this work request will make the key live.
			if _, v := q.eng.mrs.CheckLocal(q.pd, mr.Key(g.LKey), g.Addr, g.Length, need); v != mr.OK && v != mr.NotYet {
				return 0, refuseSGE(i, &g, v)
			}
		}
		n += uint64(g.Length)
		dst[i] = g
	}
	return n, nil
}

// gather copies bytes [off, off+len(b)) of a WQE's message into b, which is the packet from byte at on. The keys are looked up anew for
// every packet: an MR may have died since the post.
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
			if v != mr.OK {
				return verdictStatus(v)
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
		if v != mr.OK {
			return verdictStatus(v)
		}
		mr.CopyIn(dst, b[:n])
		b, off = b[n:], 0
	}
	if len(b) > 0 {
		return LocLenErr
	}
	return Success
}
