package qp

import (
	"fmt"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

// wqe is a send work request in its ring slot. The poster fills the first part before it
// publishes the ring's head; the second part belongs to the engine.
type wqe struct {
	id      uint64
	raddr   uint64
	compare uint64
	swapAdd uint64
	ah      *Path
	length  uint32 // of the message, bytes
	rkey    bth.RKey
	extra   uint32 // immediate, the rkey to invalidate, or a FLUSH's placement and level
	rqpn    bth.QPN
	rqkey   bth.QKey
	op      Op
	flags   SendFlags
	nsge    uint8
	inline  bool

	status Status // set when the WQE failed before it was sent whole
	psn    uint64 // count of its first packet
	npkts  uint32
	part   uint32 // READ: packets asked for by one request
}

// sendQueue is the SQ: tail <= cur <= started <= head, all counting up for ever.
type sendQueue struct {
	ring
	wqes      []wqe
	sges      []SGE  // maxSGE for each slot
	data      []byte // maxInline for each slot
	mask      uint32
	depth     uint32
	maxSGE    uint32
	maxInline uint32
	signalAll bool

	cur     uint32 // WQE being sent
	started uint32 // WQEs that were given PSNs, and local operations that have run
	curPkt  uint32 // next packet of cur
	locals  uint32 // local operations that have run and wait for those before them
}

func (s *sendQueue) init(a *InitAttr) {
	n := slots(max(a.SQDepth, 1))
	s.depth, s.mask = uint32(a.SQDepth), n-1
	s.maxSGE, s.maxInline = uint32(max(a.MaxSendSGE, 1)), uint32(a.MaxInline)
	s.signalAll = a.SignalAll
	s.wqes = make([]wqe, n)
	s.sges = make([]SGE, n*s.maxSGE)
	s.data = make([]byte, n*s.maxInline)
}

func (s *sendQueue) at(i uint32) *wqe { return &s.wqes[i&s.mask] }

func (s *sendQueue) sgesAt(i uint32) []SGE {
	o := (i & s.mask) * s.maxSGE
	return s.sges[o : o+uint32(s.wqes[i&s.mask].nsge)]
}

func (s *sendQueue) inlineAt(i uint32) []byte {
	o := (i & s.mask) * s.maxInline
	return s.data[o : o+s.maxInline]
}

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
	if st := q.State(); st < RTS {
		return 0, fmt.Errorf("%w: PostSend in %s, it needs RTS", ErrQPState, st)
	}
	s := &q.sq
	head := s.head.Load()
	free := s.depth - (head - s.tail.Load())
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
		s.head.Store(head + uint32(n))
		q.ring()
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
		return fmt.Errorf("%w: %s needs %d bytes of local memory, not %d", ErrInvalidWR, wr.Op, rule.fixed, n)
	}
	if n > MaxMessage {
		return fmt.Errorf("%w: message of %d bytes, the limit is 2^31", ErrInvalidWR, n)
	}
	if q.typ == UD {
		if wr.AH == nil || !wr.AH.ready() {
			return fmt.Errorf("%w: a UD work request needs an address handle (AH) with headers", ErrInvalidWR)
		}
		if mtu := int(q.mtu.Load()); n > uint64(mtu) {
			return fmt.Errorf("%w: UD message of %d bytes, the path MTU is %d", ErrInvalidWR, n, mtu)
		}
	}
	w.id, w.op, w.flags, w.length = wr.ID, wr.Op, wr.Flags, uint32(n)
	w.raddr, w.rkey = wr.RemoteAddr, wr.RKey
	w.compare, w.swapAdd = wr.Compare, wr.SwapAdd
	w.extra = wr.Imm
	if wr.Op == OpSendInv {
		w.extra = uint32(wr.InvKey)
	}
	w.ah, w.rqpn, w.rqkey = wr.AH, wr.RemoteQPN, wr.RemoteQKey
	w.status = Success
	return nil
}

// fillData checks and copies the SGE list or the inline data; it returns the message's length.
func (q *QP) fillData(i uint32, w *wqe, wr *SendWR, rule *opRule) (uint64, error) {
	s := &q.sq
	if w.inline = len(wr.Inline) > 0; w.inline {
		if !rule.inline || len(wr.SGEs) > 0 || len(wr.Inline) > int(s.maxInline) {
			return 0, fmt.Errorf("%w: %d bytes inline for %s with %d SGEs; the QP's MaxInline is %d", ErrInvalidWR, len(wr.Inline), wr.Op, len(wr.SGEs), s.maxInline)
		}
		w.nsge = 0
		copy(s.inlineAt(i), wr.Inline)
		return uint64(len(wr.Inline)), nil
	}
	if len(wr.SGEs) > int(s.maxSGE) {
		return 0, fmt.Errorf("%w: %d SGEs, the QP's MaxSendSGE is %d", ErrInvalidWR, len(wr.SGEs), s.maxSGE)
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
				return 0, fmt.Errorf("%w: SGE %d, %d bytes at %#x: %s", ErrInvalidKey, i, g.Length, g.Addr, v)
			}
		}
		n += uint64(g.Length)
		dst[i] = g
	}
	return n, nil
}

// gather copies bytes [off, off+len(b)) of a WQE's message into b. The keys are looked up anew for
// every packet: an MR may have died since the post.
func (q *QP) gather(b []byte, i uint32, off uint32) Status {
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
			mr.CopyOut(b[:n], src)
		}
		if b = b[n:]; len(b) == 0 {
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
