package sim

import (
	"encoding/binary"
	"fmt"

	"github.com/gorxe/gorxe/internal/verify"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/roce"
)

const (
	privateWords = 4 // words for atomics of one side
	sharedWords  = 2 // words of a host that all sides add to
	batch        = 5 // maximum of operations posted at once
)

// op is a send work request and its expected effect.
type op struct {
	s      *side
	wr     roce.SendWR
	data   []byte  // SEND and WRITE: the data; READ: the expected data, nil: what the target holds
	target *region // WRITE, READ, atomics: at the peer
	toff   int
	land   []piece // READ and atomics
	m      *msg    // the message that the peer must receive
	inv    *region // SEND with invalidate

	allow []roce.Status // besides Success
	crime bool          // it must not succeed
	done  bool          // it succeeded
	gone  bool          // its target was closed while it was in flight

	onPost, onSuccess func() // nil: nothing
}

func (o *op) String() string {
	return fmt.Sprintf("side %d: %v %d, %d bytes", o.s.i, o.wr.Op, o.wr.ID, o.length())
}

func (o *op) length() int {
	switch {
	case o.land != nil:
		return total(o.land)
	case o.wr.Op == roce.OpFlush:
		return int(o.wr.Length)
	case o.wr.Op == roce.OpBindMW:
		return int(o.wr.SGEs[0].Length)
	}
	return len(o.data)
}

// moved is the number of bytes that an operation moves.
func (o *op) moved() int {
	if o.land != nil {
		return total(o.land)
	}
	return len(o.data)
}

func (o *op) writes() bool {
	return o.wr.Op == roce.OpWrite || o.wr.Op == roce.OpWriteImm || o.wr.Op == roce.OpAtomicWrite
}
func (o *op) atomic() bool   { return o.wr.Op == roce.OpCmpSwap || o.wr.Op == roce.OpFetchAdd }
func (o *op) receives() bool { return o.wr.Op <= roce.OpSendInv || o.wr.Op == roce.OpWriteImm }

// msg is a SEND, or a WRITE with immediate, in flight.
type msg struct {
	o         *op
	imm       uint32
	solicited bool
	onReceive func() // nil: nothing
}

// postSome posts a list of operations, as many as fit.
func (s *side) postSome() {
	n := min(1+s.w.rng.IntN(batch), s.todo)
	if n == 0 {
		return
	}
	s.making = nil
	if s.w.sc.crimes && s.c.doomed == "" && oneIn(s.w.rng, 20) {
		s.making = s.commitCrime()
	}
	for len(s.making) < n {
		ops := s.makeOp()
		if ops == nil {
			break
		}
		s.making = append(s.making, ops...)
	}
	s.post(s.making)
}

// post posts operations. The last one of a side is signaled, because otherwise the ones before it
// would never complete.
func (s *side) post(ops []*op) {
	w := s.w
	if len(ops) == 0 {
		return
	}
	wrs := make([]roce.SendWR, len(ops))
	for i, o := range ops {
		w.nextID++
		o.wr.ID = w.nextID
		if oneIn(w.rng, 2) || i == len(ops)-1 {
			o.wr.Flags |= roce.Signaled
		}
		wrs[i] = o.wr
	}
	n := posted(s.q.PostSend(wrs...), len(wrs))
	for _, o := range ops[:n] {
		w.tracef("side %d posts %v flags %d", s.i, o, o.wr.Flags)
		s.pending = append(s.pending, o)
		s.overwrites(o)
		s.watchFor(o)
		if o.m != nil {
			s.peer.inbox = append(s.peer.inbox, o.m)
		}
		if o.onPost != nil {
			o.onPost()
		}
		s.budget -= o.moved()
		if o.target == s.peer.h.shared {
			s.peer.h.added[o.toff/8].asked++
		}
	}
	if n < len(ops) && len(s.pending) > 0 {
		// The queue is full. What was posted last may be unsignaled; then a later one completes it.
		s.todo -= n
		s.todo = max(s.todo, 1)
		return
	}
	s.todo = max(s.todo-n, 0)
}

// menu has the weights of the operations by transport.
var menu = map[roce.QPType][]roce.Op{
	roce.RC: {
		roce.OpSend, roce.OpSend, roce.OpSendImm, roce.OpSendInv, roce.OpWrite, roce.OpWrite,
		roce.OpWrite, roce.OpWriteImm,
		roce.OpWriteImm, roce.OpRead, roce.OpRead, roce.OpRead, roce.OpCmpSwap, roce.OpFetchAdd,
		roce.OpFetchAdd,
		roce.OpAtomicWrite, roce.OpFlush,
	},
	roce.UC: {roce.OpSend, roce.OpSendImm, roce.OpWrite, roce.OpWriteImm},
	roce.UD: {roce.OpSend, roce.OpSendImm},
}

// makeOp draws an operation. SEND with invalidate has a WRITE in front. Nil: there is no space for
// its result now.
func (s *side) makeOp() []*op {
	r := s.w.rng
	if s.window != nil && oneIn(r, 6) {
		if ops := s.windowOps(); ops != nil {
			return ops
		}
	}
	o := &op{s: s}
	o.wr.Op = pick(r, menu[s.c.cfg.typ]...)
	if oneIn(r, 4) {
		o.wr.Flags |= roce.Solicited
	}
	if oneIn(r, 10) {
		o.wr.Flags |= roce.Fence
	}
	switch o.wr.Op {
	case roce.OpSend, roce.OpSendImm:
		s.makeSend(o)
	case roce.OpSendInv:
		return s.makeInvalidate(o)
	case roce.OpWrite, roce.OpWriteImm:
		if !s.makeWrite(o) {
			return nil
		}
	case roce.OpRead:
		if !s.makeRead(o) {
			return nil
		}
	case roce.OpAtomicWrite:
		if !s.makeAtomicWrite(o) {
			return nil
		}
	case roce.OpFlush:
		s.makeFlush(o)
	default:
		if !s.makeAtomic(o) {
			return nil
		}
	}
	return []*op{o}
}

// size draws the length of an operation.
func (s *side) size(most int) int {
	r, mtu := s.w.rng, int(s.c.cfg.options[0].MTU)
	n := 0
	switch r.IntN(10) {
	case 0:
	case 1:
		n = r.IntN(9)
	case 2, 3:
		n = max(0, mtu*r.IntN(4)+r.IntN(3)-1)
	case 4, 5, 6:
		n = r.IntN(2 * mtu)
	case 7, 8:
		n = r.IntN(16 << 10)
	case 9:
		n = r.IntN(most + 1)
		if s.c.cfg.largest == bigOp {
			n = most - r.IntN(mtu)
		}
	}
	return max(0, min(n, most, s.budget))
}

// from sets the source: pieces of noise, or inline.
func (s *side) from(o *op, n int) {
	r := s.w.rng
	at := r.IntN(len(noise) - n)
	o.data = noise[at : at+n]
	if n > 0 && n <= s.c.cfg.inline && oneIn(r, 2) {
		o.wr.Inline = o.data
		return
	}
	if n == 0 && oneIn(r, 2) {
		return // no SGE
	}
	o.wr.SGEs = sges(split(r, s.h.source, at, n, 4))
}

// arrives makes the peer expect o.
func (s *side) arrives(o *op) {
	r := s.w.rng
	if o.wr.Op == roce.OpSendImm || o.wr.Op == roce.OpWriteImm {
		o.wr.Imm = r.Uint32()
	}
	o.m = &msg{o: o, imm: o.wr.Imm, solicited: o.wr.Flags&roce.Solicited != 0}
}

func (s *side) makeSend(o *op) {
	most := s.c.cfg.slot
	if s.c.cfg.typ == roce.UD {
		most = min(most, int(s.h.dev.Info().ActiveMTU))
		o.wr.AH, o.wr.RemoteQPN, o.wr.RemoteQKey = s.ah, s.peer.q.QPN(), qkey
	}
	s.from(o, s.size(most))
	s.arrives(o)
}

// makeInvalidate grants a region of the peer for one WRITE, which the SEND after it ends.
func (s *side) makeInvalidate(o *op) []*op {
	r := s.w.rng
	o.inv = s.region(s.peer.h, 1+r.IntN(5000),
		roce.LocalWrite|roce.RemoteWrite|roce.RemoteInvalidate)
	write := &op{s: s, target: o.inv}
	write.wr.Op = roce.OpWrite
	s.from(write, r.IntN(o.inv.n+1))
	write.wr.RemoteAddr, write.wr.RKey = o.inv.remote(0)
	s.from(o, s.size(s.c.cfg.slot))
	o.wr.InvKey = o.inv.mr.RKey()
	s.arrives(o)
	return []*op{write, o}
}

func (s *side) makeWrite(o *op) bool {
	r := s.w.rng
	n := s.size(s.c.cfg.largest)
	s.from(o, n)
	o.target = s.dst
	if s.c.cfg.typ == roce.RC {
		o.toff = r.IntN(s.dst.n - n + 1)
	} else {
		if s.dstAt+n > s.dst.n {
			return false
		}
		o.toff = s.dstAt
		s.dstAt += n
	}
	o.wr.RemoteAddr, o.wr.RKey = o.target.remote(o.toff)
	if n == 0 && oneIn(r, 2) {
		// A zero-length operation needs no valid key (IBA 9.7.4.1.4).
		o.wr.RemoteAddr, o.wr.RKey = r.Uint64(), roce.RKey(r.Uint32())
	}
	if o.wr.Op == roce.OpWriteImm {
		s.arrives(o)
	}
	return true
}

// makeAtomicWrite writes 8 bytes where address and memory are aligned. A zero-based region may have
// no such place.
func (s *side) makeAtomicWrite(o *op) bool {
	r := s.w.rng
	o.target = s.dst
	addr, key := s.dst.remote(r.IntN(s.dst.n - 16))
	addr = (addr + 7) &^ 7
	o.toff = int(addr - s.dst.mr.Addr())
	if mr.AddrOf(s.dst.at(o.toff, 8))&7 != 0 {
		return false
	}
	s.from(o, 8)
	o.wr.RemoteAddr, o.wr.RKey = addr, key
	return true
}

// makeFlush flushes a range of the WRITEs, or the whole region.
func (s *side) makeFlush(o *op) {
	r := s.w.rng
	o.toff = r.IntN(s.dst.n)
	o.wr.Length = uint32(r.IntN(s.dst.n - o.toff))
	o.wr.Placement, o.wr.Level = roce.PlaceGlobal, pick(r, roce.FlushRange, roce.FlushRegion)
	o.wr.RemoteAddr, o.wr.RKey = s.dst.remote(o.toff)
}

// makeRead reads the peer's noise or the result of earlier WRITEs.
func (s *side) makeRead(o *op) bool {
	r := s.w.rng
	n := s.size(s.c.cfg.largest)
	at, ok := s.landing(n)
	if !ok {
		return false
	}
	o.land = split(r, s.land, at, n, 4)
	o.wr.SGEs = sges(o.land)
	o.target = s.peer.h.source
	if oneIn(r, 3) {
		o.target = s.dst
		o.toff = r.IntN(s.dst.n - n + 1)
	} else {
		o.toff = r.IntN(len(noise) - n)
		o.data = noise[o.toff : o.toff+n]
	}
	o.wr.RemoteAddr, o.wr.RKey = o.target.remote(o.toff)
	return true
}

// landing finds n bytes that no pending operation uses.
func (s *side) landing(n int) (int, bool) {
	at := s.w.rng.IntN(s.land.n - n + 1)
	for _, ops := range [][]*op{s.pending, s.making} {
		for _, o := range ops {
			for _, p := range o.land {
				if at < p.off+p.n && p.off < at+n {
					return 0, false
				}
			}
		}
	}
	return at, true
}

func (s *side) makeAtomic(o *op) bool {
	r := s.w.rng
	at, ok := s.landing(8)
	if !ok {
		return false
	}
	o.land = split(r, s.land, at, 8, 3)
	o.wr.SGEs = sges(o.land)
	if o.wr.Op == roce.OpFetchAdd && oneIn(r, 3) {
		o.target, o.toff = s.peer.h.shared, 8*r.IntN(sharedWords)
		o.wr.SwapAdd = 1
	} else {
		o.target, o.toff = s.words, 8*r.IntN(privateWords)
		o.wr.SwapAdd = r.Uint64()
		o.wr.Compare = s.expectWord(o.toff / 8)
		if oneIn(r, 3) {
			o.wr.Compare = r.Uint64()
		}
	}
	o.wr.RemoteAddr, o.wr.RKey = o.target.remote(o.toff)
	return true
}

// expectWord returns the value of a word when everything posted so far is done.
func (s *side) expectWord(i int) uint64 {
	v := s.word[i]
	for _, o := range s.pending {
		if o.atomic() && !o.crime && o.target == s.words && o.toff == 8*i {
			v = o.applyTo(v)
		}
	}
	return v
}

// applyTo returns the value that the atomic stores if it finds v.
func (o *op) applyTo(v uint64) uint64 {
	return verify.Atomic(o.wr.Op, v, o.wr.Compare, o.wr.SwapAdd)
}

// brought returns the value that an atomic fetched, in host byte order.
func (o *op) brought() uint64 { return binary.NativeEndian.Uint64(gather(o.land)) }
