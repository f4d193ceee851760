package qp

import (
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// cable joins two engines directly: everything that is sent arrives in the same step. It does not
// allocate.
type cable struct {
	*world
	a, b *QP
	buf  [8192]byte
	pkt  bth.Packet
	wcs  [64]WC
}

func newCable(t testing.TB, typ Type, mtu bth.MTU) *cable {
	c := &cable{world: newWorld(t, 1)}
	c.a, c.b = c.pair(typ, func(_ *InitAttr, at *Attr) { at.PathMTU = mtu })
	c.turn()
	return c
}

// turn lets a microsecond pass and moves packets until neither side sends.
func (c *cable) turn() {
	c.now += 1000
	for moved := true; moved; {
		moved = false
		for i := range c.ends {
			c.drain(i, func(to *end) {
				moved = true
				to.HandlePacket(c.now, &c.pkt)
			})
		}
	}
}

// drain passes what end i sends to deliver, in c.pkt.
func (c *cable) drain(i int, deliver func(to *end)) {
	e, to := c.ends[i], c.ends[1-i]
	e.HandleDoorbells(c.now)
	for next := 0; e.HasTransmit(c.now); {
		if r := e.PollRun(c.now, next, len(c.buf)); r != nil {
			next -= r.Packets
			for i := range r.Packets {
				copy(c.buf[len(r.Header):], r.Put(c.buf[:], i))
				c.deliver(e, to, c.buf[r.NetLen:r.Len], deliver)
			}
			continue
		}
		tx := e.PollTransmit(c.now, c.buf[:])
		if tx == nil {
			return
		}
		next = tx.Next
		c.deliver(e, to, c.buf[tx.NetLen:tx.Len], deliver)
	}
}

func (c *cable) deliver(from, to *end, b []byte, deliver func(to *end)) {
	if err := c.pkt.Parse(b); err != nil {
		c.t.Fatal(err)
	}
	c.pkt.Src, c.pkt.Dst, c.pkt.NetHeader = from.gid, to.gid, grhZeros[:]
	deliver(to)
}

var grhZeros [GRHLen]byte

// settle steps until the sender's queue is empty, which takes longer if no ACK was requested.
func (c *cable) settle() {
	for i := 0; c.a.SQLen() > 0; i++ {
		if c.turn(); i > 10_000 {
			c.t.Fatal("the queue does not become empty")
		}
	}
}

// traffic is one iteration of a hot path.
type traffic struct {
	name string
	typ  Type
	wrs  []SendWR
	recv bool
	wcs  int // completions on both sides
}

func hotTraffic(c *cable, size int) []traffic {
	a, b := c.ends[0], c.ends[1]
	va, key := b.remote(0)
	wr := func(op Op, n int) SendWR {
		return SendWR{ID: 1, Op: op, Flags: Signaled, SGEs: []SGE{a.sge(0, n)}, RemoteAddr: va,
			RKey: key, SwapAdd: 1}
	}
	path := c.path(0)
	ud := wr(OpSend, min(size, 1000))
	ud.AH, ud.RemoteQPN, ud.RemoteQKey = NewAH(&path, nil), c.b.QPN(), 0x1234
	inline := wr(OpWrite, 0)
	inline.SGEs, inline.Inline = nil, make([]byte, 64)
	return []traffic{
		{"WRITE", RC, []SendWR{wr(OpWrite, size)}, false, 1},
		{"inline WRITE", RC, []SendWR{inline}, false, 1},
		{"SEND", RC, []SendWR{wr(OpSend, size)}, true, 2},
		{"WRITE_IMM", RC, []SendWR{wr(OpWriteImm, size)}, true, 2},
		{"READ", RC, []SendWR{wr(OpRead, size)}, false, 1},
		{"FETCH_ADD", RC, []SendWR{wr(OpFetchAdd, 8)}, false, 1},
		{"CMP_SWAP", RC, []SendWR{wr(OpCmpSwap, 8)}, false, 1},
		{"FLUSH", RC, []SendWR{{ID: 1, Op: OpFlush, Flags: Signaled, RemoteAddr: va, RKey: key,
			Length: 64, Placement: PlaceGlobal}}, false, 1},
		{"ATOMIC_WRITE", RC, []SendWR{wr(OpAtomicWrite, 8)}, false, 1},
		{"all mixed", RC, []SendWR{wr(OpWrite, size), wr(OpRead, size), wr(OpFetchAdd, 8),
			wr(OpSend, size)}, true, 5},
		{"UC SEND", UC, []SendWR{wr(OpSend, size)}, true, 2},
		{"UD SEND", UD, []SendWR{ud}, true, 2},
	}
}

func (c *cable) once(tr *traffic, recvs []RecvWR) {
	if tr.recv {
		if n, err := c.b.PostRecv(recvs); n != 1 {
			c.t.Fatal(err)
		}
	}
	if n, err := c.a.PostSend(tr.wrs); n != len(tr.wrs) {
		c.t.Fatal(err)
	}
	c.settle()
	n := c.ends[0].cq.Poll(c.wcs[:])
	n += c.ends[1].cq.Poll(c.wcs[n:])
	if n != tr.wcs {
		c.t.Fatalf("%s: %d completions, want %d", tr.name, n, tr.wcs)
	}
	for i := range c.wcs[:n] {
		if c.wcs[i].Status != Success {
			c.t.Fatalf("%s: %s", tr.name, c.wcs[i].short())
		}
	}
}

// The steady state does not allocate: post, transmit, handle, acknowledge and poll, for each
// operation, for small and long messages, with and without losses.
func TestHotPathAllocatesNothing(t *testing.T) {
	for _, size := range []int{64, 20_000} {
		for i := range hotTraffic(newCable(t, RC, 1024), size) {
			typ := hotTraffic(newCable(t, RC, 1024), size)[i].typ
			c := newCable(t, typ, 1024)
			tr := hotTraffic(c, size)[i]
			recvs := []RecvWR{{SGEs: []SGE{c.ends[1].sge(100_000, 50_000)}}}
			for range 10 {
				c.once(&tr, recvs)
			}
			if n := testing.AllocsPerRun(50, func() { c.once(&tr, recvs) }); n != 0 {
				t.Errorf("%s of %d bytes: %v allocations", tr.name, size, n)
			}
		}
	}
}

// The loss paths do not allocate either: sequence NAKs, RNR NAKs, duplicates, probes, timeouts and
// invalid packets.
func TestRecoveryAllocatesNothing(t *testing.T) {
	c := newCable(t, RC, 256)
	a, b := c.ends[0], c.ends[1]
	va, key := b.remote(0)
	wrs := []SendWR{{Op: OpWrite, SGEs: []SGE{a.sge(0, 2000)}, RemoteAddr: va, RKey: key},
		{Op: OpRead, SGEs: []SGE{a.sge(0, 2000)}, RemoteAddr: va, RKey: key},
		{Op: OpSend, Flags: Signaled, SGEs: []SGE{a.sge(0, 100)}}}
	recvs := []RecvWR{{SGEs: []SGE{b.sge(4096, 100)}}}
	garbage := make([]byte, 64)
	i := 0
	run := func() {
		if n, err := c.a.PostSend(wrs); n != 3 {
			t.Fatal(err)
		}
		for j := 0; c.a.SQLen() > 0; j++ {
			c.now += 5000
			if j == 40 {
				if n, _ := c.b.PostRecv(recvs); n != 1 {
					t.Fatal("PostRecv")
				}
			}
			for side, e := range c.ends {
				e.HandleTimeout(c.now)
				c.drain(side, func(to *end) {
					if i++; i%5 == 0 && j < 200 {
						return // lost
					}
					to.HandlePacket(c.now, &c.pkt)
					if i%7 == 0 {
						to.HandlePacket(c.now, &c.pkt)
					}
				})
			}
			garbage[0] = byte(i)
			if c.pkt.Parse(garbage) == nil {
				c.pkt.Src, c.pkt.Dst = a.gid, b.gid
				b.HandlePacket(c.now, &c.pkt)
			}
		}
		a.cq.Poll(c.wcs[:])
		b.cq.Poll(c.wcs[:])
	}
	for range 30 {
		run()
	}
	if n := testing.AllocsPerRun(30, run); n != 0 {
		t.Errorf("%v allocations", n)
	}
	ca, cb := a.Counters(), b.Counters()
	if ca.Retransmits == 0 || ca.RcvdRNR == 0 || ca.RcvdSeqNAK == 0 || cb.DuplicateRequest == 0 ||
		ca.Probes == 0 {
		t.Errorf("the test covers nothing: %+v", *ca)
	}
}

// benchTraffic measures the work of both engines for one message: post, transmit, parse, handle,
// acknowledge, handle, poll. batch messages are posted at once.
func benchTraffic(b *testing.B, op Op, size, batch int, flags SendFlags, setup ...func(*cable)) {
	c := newCable(b, RC, 4096)
	for _, f := range setup {
		f(c)
	}
	src, dst := c.ends[0], c.ends[1]
	va, key := dst.remote(0)
	wrs := make([]SendWR, batch)
	for i := range wrs {
		wrs[i] = SendWR{Op: op, Flags: flags, SGEs: []SGE{src.sge(0, size)}, RemoteAddr: va,
			RKey: key}
	}
	wrs[batch-1].Flags = Signaled
	recvs := make([]RecvWR, batch)
	for i := range recvs {
		recvs[i].SGEs = []SGE{dst.sge(0, size)}
	}
	b.ReportAllocs()
	b.SetBytes(int64(size))
	for n := 0; n < b.N; n += batch {
		if op == OpSend {
			_, _ = c.b.PostRecv(recvs)
		}
		if _, err := c.a.PostSend(wrs); err != nil {
			b.Fatal(err)
		}
		c.settle()
		for src.cq.Poll(c.wcs[:]) > 0 {
		}
		for dst.cq.Poll(c.wcs[:]) > 0 {
		}
	}
	if src.Counters().CompletionErrors+src.Counters().Retransmits > 0 {
		b.Fatal("errors or losses on a perfect wire")
	}
}

func BenchmarkWrite64(b *testing.B)         { benchTraffic(b, OpWrite, 64, 1, Signaled) }
func BenchmarkWrite64Batch32(b *testing.B)  { benchTraffic(b, OpWrite, 64, 32, 0) }
func BenchmarkWrite64Signaled(b *testing.B) { benchTraffic(b, OpWrite, 64, 32, Signaled) }
func BenchmarkWrite64K(b *testing.B)        { benchTraffic(b, OpWrite, 64<<10, 1, Signaled) }
func BenchmarkSend64(b *testing.B)          { benchTraffic(b, OpSend, 64, 32, 0) }
func BenchmarkRead64(b *testing.B)          { benchTraffic(b, OpRead, 64, 16, 0) }
func BenchmarkRead64K(b *testing.B)         { benchTraffic(b, OpRead, 64<<10, 1, 0) }

// BenchmarkClass5 is BenchmarkWrite64Batch32 with QPs of a traffic class.
func BenchmarkClass5(b *testing.B) {
	benchTraffic(b, OpWrite, 64, 32, 0, func(c *cable) {
		for _, q := range []*QP{c.a, c.b} {
			must(b, q.Modify(0, &Attr{Class: 5}, AttrClass))
		}
	})
}

func BenchmarkFetchAdd(b *testing.B) { benchTraffic(b, OpFetchAdd, 8, 16, 0) }
