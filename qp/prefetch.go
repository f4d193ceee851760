package qp

import (
	"fmt"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/prefetch"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/qp/sched"
)

// With thousands of QPs in use, a QP is not in the cache when it is served, and a message waits for
// a dozen cache lines, one after the other. The engine knows in advance which QPs come next: from
// the run queue for sending, from a batch of received frames for receiving, and from the poster for
// an idle QP. It prefetches what they will use while it serves others, in this chain:
//
//	QP -> WQE and its SGEs, or the packet's R_Key -> lookup of the key -> MR
//	   -> first lines of the payload
//
// Each link is prefetched a few QPs later than the one before it, because its address is in what
// that one brought. Prefetching changes only the timing.

// Cache lines of a QP by use; see QP and TestLayout.
const (
	sendLines = 6 // from the first line: common fields, send queue and its first slot, requester
	restLines = 3 // the fields used to take a receive
)

// MaxPrefetch is the largest window in QPs.
const MaxPrefetch = sched.MaxWindow

// ErrPrefetch: the window is out of range; choose 0 (off) to MaxPrefetch.
var ErrPrefetch = sched.ErrWindow

// SetPrefetch sets how many QPs in advance the engine prefetches. 0 turns prefetching off.
func (e *Engine) SetPrefetch(window int) error {
	if err := e.runq.SetWindow(window); err != nil {
		return fmt.Errorf("qp: %w", err)
	}
	e.window = window
	e.pipe = make([]*QP, slots(window))
	e.pipeIn, e.pipeWQE, e.pipeKey, e.pipeMR, e.pipeMem = 0, 0, 0, 0, 0
	return nil
}

// prefetchNext starts prefetching for QPs that enter the window and moves the others one link along
// the chain. It is called once per served QP.
func (e *Engine) prefetchNext() {
	if e.window == 0 || e.runq.Len() <= fewQPs {
		return
	}
	for range 2 {
		q, ok := e.runq.Prefetch()
		if !ok {
			break
		}
		prefetch.Object(q, sendLines)
		e.pipe[e.pipeIn&uint32(len(e.pipe)-1)] = q
		e.pipeIn++
	}
	w := uint32(e.window)
	for ; e.pipeIn-e.pipeWQE > w/4; e.pipeWQE++ {
		e.prefetchWQE(e.piped(e.pipeWQE))
	}
	for ; e.pipeIn-e.pipeKey > w/2; e.pipeKey++ {
		e.prefetchKey(e.piped(e.pipeKey))
	}
	for ; e.pipeIn-e.pipeMR > w/2+w/8; e.pipeMR++ {
		e.prefetchMR(e.piped(e.pipeMR))
	}
	for ; e.pipeIn-e.pipeMem > w-w/8; e.pipeMem++ {
		e.prefetchMemory(e.piped(e.pipeMem))
	}
}

func (e *Engine) piped(at uint32) *QP { return e.pipe[at&uint32(len(e.pipe)-1)] }

func (e *Engine) prefetchWQE(q *QP) {
	if s := &q.sq; s.cur != s.head.Load() && s.slot(s.cur) != 0 {
		prefetch.Object(s.at(s.cur), 1)
	}
}

// source returns the SGE of the current work request. It is nil if there is none, if there are
// several, or if the data is inline.
func (q *QP) source() *SGE {
	s := &q.sq
	if s.cur == s.head.Load() || s.at(s.cur).nsge != 1 {
		return nil
	}
	return &s.at(s.cur).one[0]
}

func (e *Engine) prefetchKey(q *QP) {
	if g := q.source(); g != nil {
		e.mrs.PrefetchLocal(mr.Key(g.LKey))
	}
}

func (e *Engine) prefetchMR(q *QP) {
	if g := q.source(); g != nil {
		e.mrs.PrefetchMR(mr.Key(g.LKey), false)
	}
}

func (e *Engine) prefetchMemory(q *QP) {
	if g := q.source(); g != nil {
		if m := e.mrs.LookupLocal(mr.Key(g.LKey)); m != nil {
			m.PrefetchMemory(g.Addr, g.Length)
		}
	}
}

// PrefetchLines is the number of cache lines, from the start of a QP, that posting and sending use.
// A caller can prefetch them before it posts (software-triggered prefetch in the paper).
const PrefetchLines = sendLines

// incomingPacket is what is known about a received packet before it is handled.
type incomingPacket struct {
	b  []byte // packet from the BTH on; nil: no packet
	q  *QP
	m  *mr.MR
	va uint64
	n  uint32
	rk mr.Key

	recv bool // it may take a receive
}

// Prefetch brings what packets will use into the cache. HandlePacket must get the same packets
// next, in the same order. Each starts at its BTH and is not yet checked. A nil packet is skipped:
// it is not for this engine. See PrefetchBatch for the number of packets.
func (e *Engine) Prefetch(packets [][]byte) {
	f := e.incoming[:min(len(packets), len(e.incoming))]
	far := len(e.table.buckets) > nearBuckets
	for i := range f {
		f[i].b, f[i].q, f[i].m, f[i].rk, f[i].recv = packets[i], nil, nil, 0, false
		if far && packets[i] != nil {
			e.table.prefetch(bth.BTH(packets[i]).DestQP())
		}
	}
	for i := range f {
		f[i].find(e)
	}
	keys, last := false, &incomingPacket{}
	for i := range f {
		f[i].chain(e, last)
		keys, last = keys || f[i].m != nil, &f[i]
	}
	for i := range f {
		if keys && f[i].m != nil {
			f[i].m.PrefetchMemory(f[i].va, f[i].n)
		}
		f[i].b, f[i].m = nil, nil
	}
}

// PrefetchBatch returns how many packets to pass to one call of Prefetch. 0 means that prefetching
// gains nothing.
func (e *Engine) PrefetchBatch() int {
	if e.window == 0 || (e.table.used <= nearQPs && e.mrs.RemoteCapacity() <= nearKeys) {
		return 0
	}
	return min(4*e.window, len(e.incoming))
}

// find prefetches the packet's QP and the bucket of its R_Key.
func (f *incomingPacket) find(e *Engine) {
	if f.b == nil {
		return
	}
	q := e.table.get(bth.BTH(f.b).DestQP())
	f.q = q
	if q == nil { // test the local: testing f.q would read the QP, which is not in the cache yet
		return
	}
	info := bth.BTH(f.b).Opcode().Info()
	if info.Response {
		prefetch.Object(q, sendLines)
		return
	}
	prefetch.Pair(q, &q.responder)
	if f.recv = info.Op == bth.OpSend || info.HasImm; f.recv {
		prefetch.Object(&q.coldFields, restLines)
	}
	if info.RETH == 0 || len(f.b) < int(info.HeaderLen) {
		return
	}
	h := bth.RETH(f.b[info.RETH:])
	f.rk, f.va, f.n = mr.Key(h.RKey()), h.VA(), h.DMALen()
	e.mrs.PrefetchRemote(f.rk)
}

// chain prefetches the region that find made reachable, unless the previous packet uses the same
// one, and the next receive.
func (f *incomingPacket) chain(e *Engine, prev *incomingPacket) {
	switch {
	case f.q == nil:
		return
	case f.rk == 0:
	case f.rk == prev.rk:
		f.m = prev.m
	default:
		f.m = e.mrs.PrefetchMR(f.rk, true)
	}
	if f.recv && f.q.srq == nil { // an SRQ is shared, and stays in the cache
		r := &f.q.rq
		slot := r.tail.Load() & r.mask
		prefetch.Pair(&r.wqes[slot], &r.sges[slot*uint32(r.maxSGE)])
	}
}
