package qp

import (
	"fmt"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/prefetch"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/qp/sched"
)

// Prefetching: with thousands of QPs in use none of them is in the caches when its turn comes, and a message waits for a dozen
// lines of memory, one after the other. But the engine knows ahead whose turn comes: the run queue says so for sending,
// the batch of frames just received for receiving, and the poster for a QP that is idle. What they will touch is fetched
// while others are served, in the chain
//
//	QP context -> WQE and its SGEs, or the packet's R_Key -> look-up of the key -> MR -> first lines of the payload
//
// each link a few QPs nearer to its turn than the one before it, since an address is found in what was fetched before.
// Nothing changes by it but time.

// The default window, by the paper's formula chunk/BW x wnd >= n x delay (sched.Window), measured: a message's turn takes
// some 300 ns, the chain has 5 links of up to 200 ns each, a TLB miss included; and twice that, since turns
// are shorter where all is found.
const DefaultPrefetch = 8

// fewQPs is how many QPs stay in the nearest caches anyway.
const fewQPs = 64

// nearQPs and nearPlaces are how many QPs, and places of R_Keys, stay near enough that looking at a batch of packets beforehand costs more
// than it saves: some 10 % of the rate with 65 to 1000 QPs, 5 % with 2000.
const (
	nearQPs  = 2048
	nearKeys = 4096
)

// Lines of a QP by what touches them; see QP and TestLayout.
const (
	sendLines = 6 // from the first on: context, send queue and its first slot, requester
	restLines = 3 // what taking a receive looks at
)

// MaxPrefetch is the largest window.
const MaxPrefetch = sched.MaxWindow

// SetPrefetch sets how many QPs ahead of their turn the engine fetches what they need; 0: it does not.
func (e *Engine) SetPrefetch(window int) error {
	if err := e.runq.SetWindow(window); err != nil {
		return fmt.Errorf("qp: %w", err)
	}
	e.window = window
	e.pipe = make([]*QP, slots(window))
	e.pipeIn, e.pipeWQE, e.pipeKey, e.pipeMR, e.pipeMem = 0, 0, 0, 0, 0
	return nil
}

// lookAhead fetches for the QPs that come into the window, and moves the others a step along the chain. It is called once a
// turn.
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

// source is the SGE of the work request under way; nil: it has none, or several, or inline data.
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

// AheadLines is how many lines of a QP, from its first on, posting to it and sending touch. To fetch them as soon as it is known that
// the QP will be posted to is the paper's software-triggered prefetch. Any goroutine.
const PrefetchLines = sendLines

// foresight is what is known of a received packet before it is looked at.
type incomingPacket struct {
	b  []byte // from the BTH on; nil: nothing
	q  *QP
	m  *mr.MR
	va uint64
	n  uint32
	rk mr.Key

	recv bool // it may take a receive
}

// Foresee is told of packets that HandlePacket will get next, in this order, from their BTHs on, unchecked; nil stands for a packet
// that is nobody's. It fetches what they will touch. The owner gives it a batch of packets at a time, see ForeseeBatch.
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

// nearBuckets is how large a QP table is that stays in the caches.
const nearBuckets = 1024

// ForeseeBatch is how many packets Foresee should be given at a time; 0: none, there is nothing to gain.
func (e *Engine) PrefetchBatch() int {
	if e.window == 0 || (e.table.used <= nearQPs && e.mrs.RemoteCapacity() <= nearKeys) {
		return 0
	}
	return min(4*e.window, len(e.incoming))
}

// maxForesight bounds a batch.
const maxPrefetchBatch = 64

// find fetches the packet's QP and where its R_Key is looked up.
func (f *incomingPacket) find(e *Engine) {
	if f.b == nil {
		return
	}
	q := e.table.get(bth.BTH(f.b).DestQP())
	f.q = q
	if q == nil { // of the local, or the compiler checks f.q again by reading the QP, which waits for what is to be fetched
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

// chain goes on from what find fetched: to the region, which may be that of the packet before, and to the receive that is next.
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
	if f.recv && f.q.srq == nil { // an SRQ is everybody's, and in the caches
		r := &f.q.rq
		slot := r.tail.Load() & r.mask
		prefetch.Pair(&r.wqes[slot], &r.sges[slot*uint32(r.maxSGE)])
	}
}
