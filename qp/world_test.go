package qp

import (
	"fmt"
	"math/rand/v2"
	"sort"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/mr"
)

// world is two engines and the link between them, in virtual time.
type world struct {
	t    testing.TB
	now  Time
	ends [2]*end
	wire []inFlight // sorted by arrival time

	delay  Time                               // in each direction
	filter func(from int, p *bth.Packet) bool // false: the packet is lost
	faults faults
	rng    *rand.Rand
	trace  func(from int, p *bth.Packet, lost bool)
	arrive func(to int, p *bth.Packet) bool // false: the receiver drops the packet
	pkts   int
}

// faults holds the probabilities for each packet, and the longest extra delay of a reordered one.
type faults struct {
	loss, dup, reorder float64
	late               Time
}

type inFlight struct {
	at   Time
	seq  int
	to   int
	data []byte
}

// end is one engine with the resources that most tests need.
type end struct {
	*Engine
	mrs   *mr.Table
	pd    *mr.PD
	cq    *CQ
	mem   []byte
	mr    *mr.MR
	qp    *QP
	gid   bth.GID
	wcs   []WC
	evs   []Event
	world *world
}

func newWorld(t testing.TB, seed uint64, change ...func(*Config)) *world {
	w := &world{t: t, delay: 5000, rng: rand.New(rand.NewPCG(seed, 1))}
	for i := range w.ends {
		r := rand.New(rand.NewPCG(seed, uint64(i)+2))
		mrs, err := mr.NewTable(mr.Config{Rand: r.Uint64})
		must(t, err)
		config := Config{MRs: mrs, Rand: r.Uint64}
		for _, c := range change {
			c(&config)
		}
		eng, err := NewEngine(config)
		must(t, err)
		eng.SetPortMTU(4096)
		pd, err := mrs.AllocPD()
		must(t, err)
		cq, err := NewCQ(4096)
		must(t, err)
		e := &end{Engine: eng, mrs: mrs, pd: pd, cq: cq, world: w}
		e.gid[15] = byte(i + 1)
		e.mem = make([]byte, 1<<20)
		e.mr, err = mrs.Register(pd, e.mem, mr.AddrOf(e.mem), mr.LocalWrite|mr.MWBind|allAccess)
		must(t, err)
		w.ends[i] = e
	}
	w.ends[0].DeferPayloads() // the other one copies payloads itself
	return w
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const allAccess = mr.RemoteWrite | mr.RemoteRead | mr.RemoteAtomic | mr.FlushGlobal

// connectAttr returns the attributes that connect uses. Tests modify them.
func connectAttr() Attr {
	return Attr{PathMTU: 1024, RQPSN: 0xfffff0, SQPSN: 0xfffff0, Access: allAccess, MaxRdAtomic: 16,
		MaxDestRdAtomic: 16,
		MinRNRTimer:     12, Timeout: 14, RetryCnt: 7, RNRRetry: 7}
}

// pair creates a QP on each engine and connects them.
func (w *world) pair(typ Type, change ...func(*InitAttr, *Attr)) (a, b *QP) {
	w.t.Helper()
	var qs [2]*QP
	attr := connectAttr()
	for i, e := range w.ends {
		ia := InitAttr{Type: typ, PD: e.pd, SendCQ: e.cq, RecvCQ: e.cq, SQDepth: 128, RQDepth: 128,
			MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 256}
		for _, c := range change {
			c(&ia, &attr)
		}
		q, err := e.CreateQP(ia)
		must(w.t, err)
		qs[i], e.qp = q, q
	}
	for i, q := range qs {
		w.connect(q, attr, i, qs[1-i].QPN())
	}
	return qs[0], qs[1]
}

func (w *world) connect(q *QP, a Attr, i int, dest bth.QPN) {
	w.t.Helper()
	a.DestQPN = dest
	a.Path = w.path(i)
	a.QKey = 0x1234
	for _, st := range []State{Init, RTR, RTS} {
		a.State = st
		mask := AttrState
		for j := range transitions {
			if tr := &transitions[j]; tr.from == q.State() && tr.to == st {
				mask |= tr.required[q.typ]
				if st == Init {
					mask |= tr.optional[q.typ] & (AttrAccess | AttrSelective)
				}
			}
		}
		must(w.t, q.Modify(w.now, &a, mask))
	}
}

// path returns the path from end i to the other end. The destination MAC identifies that end.
func (w *world) path(i int) frame.Path {
	return frame.NewPath(&frame.Address{DstMAC: endMAC(1 - i), Src: w.ends[i].gid,
		Dst: w.ends[1-i].gid})
}

func endMAC(i int) bth.MAC { return bth.MAC{5: byte(i)} }

// pump transmits the packets of end i.
func (w *world) pump(i int) bool {
	e := w.ends[i]
	e.HandleDoorbells(w.now)
	did := false
	for next := 0; e.HasTransmit(w.now); {
		var packets [][]byte
		netLen := 0
		if r := e.PollRun(w.now, min(next, w.pkts%7), 8192); r != nil {
			next -= r.Packets
			packets, netLen = r.packets(), r.NetLen
		} else {
			buf := make([]byte, 8192)
			tx := e.PollTransmit(w.now, buf)
			if tx == nil {
				break
			}
			copy(buf[tx.PayloadAt:tx.Len], tx.Payload)
			e.Copied()
			next, netLen = tx.Next, tx.NetLen
			packets = [][]byte{buf[:tx.Len]}
		}
		did = true
		for _, b := range packets {
			if to := endMAC(1 - i); netLen != bth.MaxNetHeader-4 || bth.MAC(b[:6]) != to {
				w.t.Fatalf("network header missing: % x", b[:netLen])
			}
			w.send(i, b[netLen:])
		}
	}
	return did
}

func (w *world) parse(from int, data []byte) *bth.Packet {
	p := &bth.Packet{}
	if err := p.Parse(data); err != nil {
		w.t.Fatalf("end %d sent a packet that does not parse: %v: % x", from, err, data)
	}
	p.Src, p.Dst = w.ends[from].gid, w.ends[1-from].gid
	p.NetHeader = make([]byte, 40)
	return p
}

func (w *world) send(from int, data []byte) {
	w.pkts++
	data = append([]byte(nil), data...)
	p := w.parse(from, data)
	lost := (w.filter != nil && !w.filter(from, p)) || w.rng.Float64() < w.faults.loss
	if w.trace != nil {
		w.trace(from, p, lost)
	}
	if lost {
		return
	}
	w.deliver(from, data)
	if w.rng.Float64() < w.faults.dup {
		w.deliver(from, data)
	}
}

func (w *world) deliver(from int, data []byte) {
	at := w.now + w.delay
	if w.rng.Float64() < w.faults.reorder {
		at += Time(w.rng.Int64N(int64(w.faults.late)))
	}
	f := inFlight{at: at, seq: w.pkts, to: 1 - from, data: data}
	i := sort.Search(len(w.wire), func(i int) bool { return w.wire[i].at > at })
	w.wire = append(w.wire, inFlight{})
	copy(w.wire[i+1:], w.wire[i:])
	w.wire[i] = f
}

// step advances time to the next event, if there is one before the limit.
func (w *world) step(limit Time) bool {
	for w.pump(0) || w.pump(1) {
	}
	next := limit
	for _, e := range w.ends {
		if t, ok := e.NextTimeout(); ok {
			next = min(next, max(t, w.now+1))
		}
	}
	if len(w.wire) > 0 {
		next = min(next, w.wire[0].at)
	}
	if next >= limit {
		w.now = limit
		return false
	}
	w.now = next
	var seen [2]bool
	for len(w.wire) > 0 && w.wire[0].at <= w.now {
		f := w.wire[0]
		w.wire = w.wire[1:]
		p, e := w.parse(1-f.to, f.data), w.ends[f.to]
		if w.arrive == nil {
			if !seen[f.to] || !e.HandleNext(w.now, p) {
				e.HandlePacket(w.now, p)
			}
			seen[f.to] = true
		} else if w.arrive(f.to, p) {
			e.HandlePacket(w.now, p)
		}
	}
	for _, e := range w.ends {
		e.HandleEnd(w.now)
	}
	for _, e := range w.ends {
		e.HandleTimeout(w.now)
	}
	w.collect()
	return true
}

func (w *world) collect() {
	var wcs [64]WC
	for _, e := range w.ends {
		for {
			n := e.cq.Poll(wcs[:])
			e.wcs = append(e.wcs, wcs[:n]...)
			if n < len(wcs) {
				break
			}
		}
		for ev, ok := e.PollEvent(); ok; ev, ok = e.PollEvent() {
			e.evs = append(e.evs, ev)
		}
	}
}

const second Time = 1e9

// run steps until done returns true or d has passed.
func (w *world) run(d Time, done func() bool) {
	w.t.Helper()
	limit := w.now + d
	w.collect()
	for !done() {
		if !w.step(limit) {
			w.collect()
			if done() {
				return
			}
			w.t.Fatalf("not done after %v ns: a %+v\nb %+v", d, w.ends[0].wcs, w.ends[1].wcs)
		}
	}
}

// idle runs for d.
func (w *world) idle(d Time) {
	for limit := w.now + d; w.step(limit); {
	}
	w.collect()
}

// wc waits for the next completion at end i.
func (w *world) wc(i int) WC {
	w.t.Helper()
	e := w.ends[i]
	w.run(20*second, func() bool { return len(e.wcs) > 0 })
	wc := e.wcs[0]
	e.wcs = e.wcs[1:]
	return wc
}

func (e *end) sge(off, n int) SGE {
	return SGE{Addr: e.mr.Addr() + uint64(off), Length: uint32(n), LKey: bth.LKey(e.mr.LKey())}
}

func (e *end) remote(off int) (uint64, bth.RKey) {
	return e.mr.Addr() + uint64(off), bth.RKey(e.mr.RKey())
}

func (e *end) fill(off, n int, seed byte) []byte {
	b := e.mem[off : off+n]
	for i := range b {
		b[i] = seed + byte(i) + byte(i>>8)
	}
	return b
}

func (w *world) post(q *QP, wrs ...SendWR) {
	w.t.Helper()
	n, err := q.PostSend(wrs)
	if err != nil || n != len(wrs) {
		w.t.Fatalf("PostSend took %d of %d: %v", n, len(wrs), err)
	}
}

func (w *world) recv(q *QP, wrs ...RecvWR) {
	w.t.Helper()
	if n, err := q.PostRecv(wrs); err != nil || n != len(wrs) {
		w.t.Fatalf("PostRecv took %d of %d: %v", n, len(wrs), err)
	}
}

func (w WC) short() string {
	return fmt.Sprintf("%d:%s:%s:%d", w.ID, w.Opcode, w.Status, w.ByteLen)
}
