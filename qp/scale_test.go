package qp

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/prefetch"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/qp/sched"
)

// Everything that a message uses lies in the cache lines that prefetch.go prefetches, and a WQE is
// a line.
func TestLayout(t *testing.T) {
	var q QP
	in := func(name string, at uintptr, from, lines uintptr) {
		t.Helper()
		if at < from || at >= from+lines*prefetch.Line {
			t.Errorf("%s is at offset %d, want it within %d lines from %d", name, at, lines, from)
		}
	}
	in("list", unsafe.Offsetof(q.list), 0, 1)
	in("owes", unsafe.Offsetof(q.owes), 0, 1)
	in("sq.first", unsafe.Offsetof(q.sq)+unsafe.Offsetof(q.sq.first), prefetch.Line, 1)
	in("sq.head", unsafe.Offsetof(q.sq)+unsafe.Offsetof(q.sq.head), 2*prefetch.Line, 1)
	in("sq.posters", unsafe.Offsetof(q.sq)+unsafe.Offsetof(q.sq.posters), 2*prefetch.Line, 1)
	in("sq.tail", unsafe.Offsetof(q.sq)+unsafe.Offsetof(q.sq.tail), 3*prefetch.Line, 1)
	in("una", unsafe.Offsetof(q.una), 0, sendLines)
	in("timer.armed", unsafe.Offsetof(q.rec)+unsafe.Offsetof(q.rec.timer)+unsafe.Offsetof(q.rec.timer.armed), 0, sendLines)
	coldFields := unsafe.Offsetof(q.coldFields)
	for name, at := range map[string]uintptr{"recvCQ": unsafe.Offsetof(q.recvCQ),
		"rq.tail":   unsafe.Offsetof(q.rq) + unsafe.Offsetof(q.rq.tail),
		"recv.held": unsafe.Offsetof(q.recv) + unsafe.Offsetof(q.recv.held)} {
		in(name, at, coldFields&^(prefetch.Line-1), restLines)
	}
	p := unsafe.Offsetof(q.responder)
	if p%prefetch.Line != 0 {
		t.Errorf("the responder is at offset %d, want the start of a line", p)
	}
	in("off", unsafe.Offsetof(q.off), p, 1)
	in("refused", unsafe.Offsetof(q.refused), p, 1)
	in("selAck", unsafe.Offsetof(q.selAck), p, 1)
	in("sq.data", unsafe.Offsetof(q.sq)+unsafe.Offsetof(q.sq.data), 2*prefetch.Line, 1)
	in("unacked", unsafe.Offsetof(q.unacked), p, 1)
	in("listPrev", unsafe.Offsetof(q.listPrev), p, 1)
	if n := unsafe.Sizeof(wqe{}); n != prefetch.Line {
		t.Errorf("a WQE has %d bytes, want a line", n)
	}
	if n := unsafe.Sizeof(sharedPath{}); n != 2*prefetch.Line {
		t.Errorf("a sharedPath has %d bytes, want two lines", n)
	}
	if n := unsafe.Sizeof(q); n > 768 {
		t.Errorf("a QP has %d bytes, more than the limit", n)
	}
}

// crowd makes n pairs of RC QPs with short queues.
func (w *world) crowd(n int, change ...func(*InitAttr, *Attr)) (as, bs []*QP) {
	small := func(ia *InitAttr, _ *Attr) {
		ia.SQDepth, ia.RQDepth, ia.MaxSendSGE, ia.MaxRecvSGE, ia.MaxInline = 4, 1, 1, 1, 0
	}
	for range n {
		a, b := w.pair(RC, append([]func(*InitAttr, *Attr){small}, change...)...)
		as, bs = append(as, a), append(bs, b)
	}
	return as, bs
}

// heap returns the number of live bytes on the heap.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// An idle RC QP takes at most 1 KiB besides its rings, whatever the number of QPs and of
// outstanding READs and atomics.
func TestFootprint(t *testing.T) {
	for _, n := range []int{100, 3000, 11000} {
		w := newWorld(t, 1)
		before := heap()
		as, bs := w.crowd(n)
		took := heap() - before
		rings := InitAttr{SQDepth: 4, RQDepth: 1, MaxSendSGE: 1, MaxRecvSGE: 1}
		if each := int(took)/(2*n) - rings.Footprint(); each > 1024 {
			t.Errorf("%d QPs take %d bytes each in addition to their rings of %d", 2*n, each,
				rings.Footprint())
		} else {
			t.Logf("%d QPs: %d bytes each, and rings of %d", 2*n, each, rings.Footprint())
		}
		runtime.KeepAlive(as)
		runtime.KeepAlive(bs)
	}
}

// A million packets to unknown QPNs or keys: each is dropped after a bounded number of lookups,
// nothing grows and nothing is allocated.
func TestMillionUnknownNumbers(t *testing.T) {
	w := newWorld(t, 1)
	as, bs := w.crowd(2000)
	e := w.ends[1]
	buckets, runqSlots, queue := len(e.table.buckets), e.mrs.RemoteCapacity(), e.runq.Cap()
	live := map[bth.QPN]bool{}
	for _, q := range bs {
		live[q.QPN()] = true
	}
	for i := range e.table.buckets {
		if e.table.buckets[i].spilled > 0 {
			t.Error("a QPN that the engine drew is not in its own bucket")
		}
	}
	b := make([]byte, bth.HeaderLen+bth.RETHLen)
	p := &bth.Packet{Src: w.ends[0].gid, Dst: e.gid}
	n := bth.QPN(1)
	dropped, packets := e.c.DropNoQP, uint64(0)
	stray := func() {
		for n++; live[n&psnMask] || n&psnMask <= bth.QPNGSI || n&psnMask == bth.QPNMulticast; n++ {
		}
		bth.PutBTH(b, &bth.BTHFields{Opcode: bth.RCWriteOnly, PKey: bth.DefaultPKey,
			DestQP: n & psnMask})
		bth.PutRETH(b[bth.HeaderLen:], uint64(n), bth.RKey(n*0x9e3779b1), 0)
		if err := p.Parse(b); err != nil {
			t.Fatal(err)
		}
		p.NetHeader = grhZeros[:]
		e.Prefetch([][]byte{b})
		e.HandlePacket(w.now, p)
		packets++
	}
	if a := testing.AllocsPerRun(1<<20-1, stray); a != 0 {
		t.Errorf("%v allocations a packet", a)
	}
	if got := e.c.DropNoQP - dropped; got != packets {
		t.Errorf("%d of %d dropped because of an unknown QP", got, packets)
	}
	for k := range mr.Key(1 << 20) {
		if k == mr.Key(e.mr.RKey()) {
			continue
		}
		e.mrs.PrefetchMR(k, true)
		if _, v := e.mrs.CheckRemote(e.pd, k, 0, 8, mr.RemoteWrite); v != mr.BadKey {
			t.Fatalf("key %#x: %v", k, v)
		}
	}
	if len(e.table.buckets) != buckets || e.mrs.RemoteCapacity() != runqSlots ||
		e.runq.Cap() != queue {
		t.Error("a table has grown")
	}
	runtime.KeepAlive(as)
}

// Any packet to any QP may be prefetched: of another transport, truncated, with or without a
// receive or SRQ. It changes nothing.
func TestPrefetchAcceptsAnything(t *testing.T) {
	w := newWorld(t, 1)
	e := w.ends[1]
	srq, err := e.NewSRQ(e.pd, SRQConfig{Depth: 2})
	if err != nil {
		t.Fatal(err)
	}
	var qs []*QP
	for _, typ := range []Type{RC, UC, UD} {
		for _, s := range []*SRQ{nil, srq} {
			_, b := w.pair(typ, func(ia *InitAttr, _ *Attr) {
				if ia.RQDepth = 0; s != nil && ia.PD == e.pd {
					ia.SRQ = s
				}
			})
			qs = append(qs, b)
		}
	}
	before := e.c
	for op := range 256 {
		for n := range bth.HeaderLen + bth.RETHLen + 1 {
			var packets [][]byte
			for _, q := range qs {
				b := make([]byte, bth.HeaderLen+bth.RETHLen)
				bth.PutBTH(b, &bth.BTHFields{Opcode: bth.Opcode(op), DestQP: q.QPN()})
				bth.PutRETH(b[bth.HeaderLen:], 64, bth.RKey(e.mr.RKey()), 64)
				if b = b[:n]; n < bth.HeaderLen {
					b = nil // PeekBTH returns at least a BTH
				}
				packets = append(packets, b)
			}
			e.Prefetch(packets)
		}
	}
	if e.c != before {
		t.Errorf("counters were %+v, now %+v", before, e.c)
	}
}

// The engine prefetches in the order in which it serves QPs: a QP enters the chain at most a window
// before it is served, and its links follow at fractions of the window: QP, WQE, key, region,
// payload.
func TestPrefetchDistance(t *testing.T) {
	const n, turns = 200, 1000
	for _, window := range []uint32{1, 2, 4, 8, 32} {
		w := newWorld(t, 1)
		as, _ := w.crowd(n)
		e := w.ends[0]
		must(t, e.SetPrefetch(int(window)))
		wr := SendWR{Op: OpWrite, SGEs: []SGE{e.sge(0, 60<<10)}}
		wr.RemoteAddr, wr.RKey = w.ends[1].remote(0)
		for _, q := range as {
			w.post(q, wr)
		}
		e.HandleDoorbells(w.now)
		var (
			buf     [8192]byte
			fetched []*QP // in this order
			served  int
			last    *QP
		)
		for served < turns {
			if tx := e.PollTransmit(w.now, buf[:]); tx == nil || e.runq.Len() <= fewQPs {
				break // so few QPs have packets that nothing is prefetched
			}
			if e.serving == nil || e.serving == last {
				continue
			}
			last = e.serving
			served++
			for ; uint32(len(fetched)) < e.pipeIn; fetched = append(fetched,
				e.pipe[uint32(len(fetched))&uint32(len(e.pipe)-1)]) {
				if e.pipeIn-uint32(len(fetched)) > uint32(len(e.pipe)) {
					t.Fatalf("window %d: the prefetch ring is overrun", window)
				}
			}
			for link, at := range []uint32{e.pipeWQE, e.pipeKey, e.pipeMR, e.pipeMem} {
				if lag, most := e.pipeIn-at, []uint32{window / 4, window / 2, window/2 + window/8,
					window - window/8}[link]; lag > most {
					t.Fatalf("window %d: link %d is %d QPs behind, want %d at most", window, link+1,
						lag, most)
				}
			}
			if served < n { // from the second round on all is even
				continue
			}
			at := slices.Index(fetched[max(0, len(fetched)-int(window)-2):], last)
			if at < 0 {
				t.Fatalf("window %d: QP %d is served and was not prefetched in the last %d pops",
					window, last.qpn, window)
			}
		}
		if served < 2*n {
			t.Fatalf("%d pops: the test is too short", served)
		}
	}
}

// Prefetch examines the whole batch before any packet is handled: the QP of each packet, its key,
// and whether it may take a receive.
func TestPrefetchBatch(t *testing.T) {
	w := newWorld(t, 1)
	_, bs := w.crowd(2100) // more than stay in the caches
	e := w.ends[1]
	if n := e.PrefetchBatch(); n != 4*DefaultPrefetch {
		t.Fatalf("batches of %d", n)
	}
	var packets [][]byte
	ops := []bth.Opcode{bth.RCWriteOnly, bth.RCAck, bth.RCSendOnly}
	for i, q := range bs[:9] {
		b := make([]byte, bth.HeaderLen+bth.RETHLen)
		bth.PutBTH(b, &bth.BTHFields{Opcode: ops[i%len(ops)], DestQP: q.QPN()})
		bth.PutRETH(b[bth.HeaderLen:], 64, bth.RKey(e.mr.RKey()), 64)
		packets = append(packets, b)
	}
	e.Prefetch(packets)
	for i, q := range bs[:len(packets)] {
		f, op := &e.incoming[i], ops[i%len(ops)]
		if f.q != q || (f.rk != 0) != (op == bth.RCWriteOnly) || f.recv != (op == bth.RCSendOnly) {
			t.Errorf("packet %d, %v: %+v", i, op, f)
		}
	}
	must(t, e.SetPrefetch(0))
	if n := e.PrefetchBatch(); n != 0 {
		t.Errorf("prefetching is off, but PrefetchBatch() = %d", n)
	}
}

// If 10,000 QPs have much to send, each is served for at most a quantum and a packet, and waits for
// at most one such service of each other QP.
func TestFairness(t *testing.T) {
	const n, rounds = 10_000, 3
	w := newWorld(t, 1)
	// Nothing is acknowledged, so the window must hold everything that is sent.
	as, _ := w.crowd(n, func(_ *InitAttr, at *Attr) { at.PathMTU = 1024 })
	e := w.ends[0]
	wr := SendWR{Op: OpWrite, SGEs: []SGE{e.sge(0, 60<<10)}}
	wr.RemoteAddr, wr.RKey = w.ends[1].remote(0)
	index := map[bth.QPN]int{}
	for i, q := range as {
		w.post(q, wr)
		index[q.destQP] = i
	}
	e.HandleDoorbells(w.now)
	var (
		buf          [8192]byte
		sent, last   [n]int // bytes sent by all QPs at the end of a QP's latest service
		total        int
		current      = -1
		turn         int
		maxPacketLen int
	)
	const most = quantum + maxPacket // for one service
	for range rounds * n * (quantum/1024 + 1) {
		tx := e.PollTransmit(w.now, buf[:])
		if tx == nil {
			break
		}
		i := index[bth.BTH(buf[tx.NetLen:tx.Len]).DestQP()]
		if i != current {
			if current >= 0 {
				last[current] = total
			}
			maxPacketLen = max(maxPacketLen, total-last[i])
			current, turn = i, 0
		}
		turn += tx.Len
		total += tx.Len
		sent[i] += tx.Len
		if turn > most {
			t.Fatalf("QP %d sent %d bytes in one service", i, turn)
		}
	}
	if maxPacketLen > n*most {
		t.Errorf("a QP waited for %d bytes of others, the limit is %d", maxPacketLen, n*most)
	}
	for i, s := range sent {
		if s < sent[0]-most || s > sent[0]+most {
			t.Fatalf("QP %d sent %d bytes, QP 0 %d", i, s, sent[0])
		}
	}
}

// Idle QPs cost nothing: with 20,000 of them a step does the same work as without, counted in QPs
// popped from the run queue, timers and packets.
func TestWorkAmongIdleQPs(t *testing.T) {
	work := func(idle int) string {
		w := newWorld(t, 1)
		as, _ := w.crowd(1)
		w.crowd(idle)
		w.idle(second) // whatever a new QP may do
		e := w.ends[0]
		before := e.c
		for range 50 {
			wr := SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{e.sge(0, 64)}}
			wr.RemoteAddr, wr.RKey = w.ends[1].remote(0)
			w.post(as[0], wr)
			if e.HandleDoorbells(w.now); e.serving != as[0] || e.runq.Len() != 0 {
				t.Fatalf("%d other QPs in the run queue for one post", e.runq.Len())
			}
			w.wc(0)
		}
		w.idle(100_000_000)
		if _, ok := e.NextTimeout(); ok || e.HasTransmit(w.now) {
			t.Error("an idle engine has something to do")
		}
		return fmt.Sprintf("%d packets out, %d in, %d timers", e.c.SentPkts-before.SentPkts,
			e.c.RcvdPkts-before.RcvdPkts, e.c.Timers-before.Timers)
	}
	if alone, among := work(0), work(20_000); alone != among {
		t.Errorf("alone: %s; with idle QPs: %s", alone, among)
	}
}

// Failing QPs do not slow down the others: a dead peer, a peer without receives (RNR), and one that
// refuses everything as out of sequence. The other QPs achieve the same in the same time, and each
// failing QP sends few useless packets.
func TestFailingQPsDoNotSlowOthers(t *testing.T) {
	const healthy, each = 20, 40
	for _, trouble := range []string{"dead", "rnr", "storm"} {
		run := func(bad int) (took Time, wasted int) {
			w := newWorld(t, 1)
			as, _ := w.crowd(healthy)
			sick, _ := w.crowd(bad)
			e := w.ends[0]
			isSick := map[bth.QPN]bool{}
			for _, q := range sick {
				isSick[q.destQP] = true
			}
			w.filter = func(from int, p *bth.Packet) bool {
				if from == 0 && isSick[p.BTH.DestQP()] {
					wasted++
					return trouble == "rnr" || (trouble == "storm" && wasted%3 != 1)
				}
				return true
			}
			wr := SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{e.sge(0, 4096)}}
			wr.RemoteAddr, wr.RKey = w.ends[1].remote(0)
			for _, q := range sick {
				s := wr
				if trouble == "rnr" {
					s.Op = OpSend
				}
				w.post(q, s)
			}
			start := w.now
			for range each {
				for _, q := range as {
					w.post(q, wr)
				}
				for done := 0; done < healthy; {
					if wc := w.wc(0); wc.Status == Success && !isSick[e.table.get(wc.QPN).destQP] {
						done++
					}
				}
			}
			return w.now - start, wasted
		}
		alone, _ := run(0)
		among, wasted := run(50)
		if among > alone+alone/20 {
			t.Errorf("%s: the others take %d ns among 50 failing QPs, %d alone", trouble, among,
				alone)
		}
		if most := 50 * 40; wasted > most {
			t.Errorf("%s: %d packets of failing QPs in %d us; the limit is %d", trouble, wasted,
				among/1000, most)
		}
		t.Logf("%s: %d ns, alone %d ns, %d packets of failing QPs", trouble, among, alone, wasted)
	}
}

// The default window is twice the result of the paper's formula with measured values, rounded up to
// a power of two; see DefaultPrefetch.
func TestDefaultWindow(t *testing.T) {
	const turn, kinds, delay = 300e-9, 5, 200 * time.Nanosecond
	least := sched.Window(64, 64/turn, kinds, delay)
	if least != 4 || DefaultPrefetch != slots(2*least) {
		t.Errorf("the formula gives %d, the default is %d", least, DefaultPrefetch)
	}
}
