package qp

import (
	"errors"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/mr"
)

// IBA 10.3.1: sends cannot be posted before RTS, receives not before INIT.
func TestPostingByState(t *testing.T) {
	for st := Reset; st < numStates; st++ {
		k := newTalk(t, UD) // UD has all the states
		k.q.setState(st)
		_, err := k.q.PostSend([]SendWR{{Op: OpSend, AH: testAH()}})
		if want := st < RTS; errors.Is(err, ErrQPState) != want {
			t.Errorf("PostSend in %s: %v", st, err)
		}
		_, err = k.q.PostRecv([]RecvWR{{}})
		if want := st == Reset; errors.Is(err, ErrQPState) != want {
			t.Errorf("PostRecv in %s: %v", st, err)
		}
	}
}

// testAH returns an address handle with a valid path.
func testAH() *AH {
	p := frame.NewPath(&frame.Address{Src: bth.GID{15: 1}, Dst: bth.GID{15: 2}})
	return NewAH(&p, nil)
}

// Invalid work requests are rejected when they are posted (IBA 11.4.1.1).
func TestPostSendRefuses(t *testing.T) {
	path := testAH()
	big := func(k *talk) SGE { g := k.sge(0, 8); g.Length = 1 << 30; return g }
	for _, c := range []struct {
		name string
		typ  Type
		wr   func(k *talk) SendWR
		want error
	}{
		{"unknown operation", RC, func(*talk) SendWR { return SendWR{Op: numOps} }, ErrInvalidWR},
		{"READ on UC", UC, func(k *talk) SendWR { return SendWR{Op: OpRead} }, ErrInvalidWR},
		{"SEND with invalidate on UC", UC, func(k *talk) SendWR { return SendWR{Op: OpSendInv} },
			ErrInvalidWR},
		{"atomic on UC", UC,
			func(k *talk) SendWR { return SendWR{Op: OpFetchAdd, SGEs: []SGE{k.sge(0, 8)}} },
			ErrInvalidWR},
		{"WRITE on UD", UD, func(k *talk) SendWR { return SendWR{Op: OpWrite, AH: path} },
			ErrInvalidWR},
		{"UD without AH", UD, func(*talk) SendWR { return SendWR{Op: OpSend} }, ErrInvalidWR},
		{"UD with a zero AH", UD, func(*talk) SendWR { return SendWR{Op: OpSend, AH: new(AH)} },
			ErrInvalidWR},
		{"UD with an empty AH", UD,
			func(*talk) SendWR { return SendWR{Op: OpSend, AH: NewAH(&frame.Path{}, nil)} },
			ErrInvalidWR},
		{"UD longer than the path MTU", UD,
			func(k *talk) SendWR {
				return SendWR{Op: OpSend, AH: path,
					SGEs: []SGE{k.sge(0, 4097)}}
			}, ErrInvalidWR},
		{"atomic of 4 bytes", RC,
			func(k *talk) SendWR { return SendWR{Op: OpCmpSwap, SGEs: []SGE{k.sge(0, 4)}} },
			ErrInvalidWR},
		{"atomic of no bytes", RC, func(k *talk) SendWR { return SendWR{Op: OpFetchAdd} },
			ErrInvalidWR},
		{"too many SGEs", RC,
			func(k *talk) SendWR { return SendWR{Op: OpSend, SGEs: make([]SGE, 5)} }, ErrInvalidWR},
		{"inline and SGEs", RC,
			func(k *talk) SendWR {
				return SendWR{Op: OpSend, Inline: seq(1),
					SGEs: []SGE{k.sge(0, 1)}}
			}, ErrInvalidWR},
		{"inline too long", RC,
			func(k *talk) SendWR { return SendWR{Op: OpSend, Inline: seq(257)} }, ErrInvalidWR},
		{"inline READ", RC, func(k *talk) SendWR { return SendWR{Op: OpRead, Inline: seq(8)} },
			ErrInvalidWR},
		{"unknown lkey", RC,
			func(k *talk) SendWR {
				g := k.sge(0, 8)
				g.LKey ^= 1
				return SendWR{Op: OpSend,
					SGEs: []SGE{g}}
			}, ErrInvalidKey},
		{"R_Key as lkey", RC, func(k *talk) SendWR {
			g := k.sge(0, 8)
			g.LKey = bth.LKey(k.mr.RKey())
			return SendWR{Op: OpSend, SGEs: []SGE{g}}
		}, ErrInvalidKey},
		{"beyond the region", RC,
			func(k *talk) SendWR { return SendWR{Op: OpSend, SGEs: []SGE{k.sge(1<<20-7, 8)}} },
			ErrInvalidKey},
		{"another PD's region", RC, func(k *talk) SendWR {
			pd, _ := k.mrs.AllocPD()
			m, _ := k.region(pd, 64, mr.LocalWrite)
			return SendWR{Op: OpSend,
				SGEs: []SGE{{Addr: m.Addr(), Length: 8, LKey: bth.LKey(m.LKey())}}}
		}, ErrInvalidKey},
		{"READ into read-only memory", RC, func(k *talk) SendWR {
			m, _ := k.region(k.pd, 64, mr.RemoteRead)
			return SendWR{Op: OpRead,
				SGEs: []SGE{{Addr: m.Addr(), Length: 8, LKey: bth.LKey(m.LKey())}}}
		}, ErrInvalidKey},
		{"more than 2^31 bytes", RC,
			func(k *talk) SendWR { return SendWR{Op: OpSend, SGEs: []SGE{big(k), big(k), big(k)}} },
			ErrInvalidKey},
	} {
		k := newTalk(t, c.typ)
		n, err := k.q.PostSend([]SendWR{c.wr(k)})
		if n != 0 || !errors.Is(err, c.want) {
			t.Errorf("%s: accepted %d, %v; want %v", c.name, n, err, c.want)
		}
		k.hears()
	}
}

// A list is posted up to the first invalid request. The count tells which one (like bad_wr).
func TestPostListPartly(t *testing.T) {
	k := newTalk(t, RC)
	n, err := k.q.PostSend([]SendWR{k.wr(1, OpWrite, 8), k.wr(2, OpWrite, 8), {ID: 3, Op: numOps},
		k.wr(4, OpWrite, 8)})
	if n != 2 || !errors.Is(err, ErrInvalidWR) {
		t.Fatalf("accepted %d: %v", n, err)
	}
	k.hears("RDMA WRITE Only +0 dma=8 8B", "RDMA WRITE Only +1 dma=8 ask 8B")
	n, err = k.q.PostRecv([]RecvWR{{ID: 1}, {ID: 2, SGEs: make([]SGE, 5)}, {ID: 3}})
	if n != 1 || !errors.Is(err, ErrInvalidWR) || k.q.RQLen() != 1 {
		t.Fatalf("PostRecv accepted %d: %v", n, err)
	}
	if n, err := k.q.PostSend(nil); n != 0 || err != nil {
		t.Errorf("an empty list: %d, %v", n, err)
	}
}

// A list becomes visible at once: only its last request asks for an ACK.
func TestLinkedListIsOneDoorbell(t *testing.T) {
	k := newTalk(t, RC)
	rang := 0
	k.SetDoorbellHook(func() { rang++ })
	k.post(k.wr(1, OpWrite, 8), k.wr(2, OpSend, 8), k.wr(3, OpWrite, 8))
	k.post(k.wr(4, OpWrite, 8))
	k.equal("bells", rang, 1)
	k.hears("RDMA WRITE Only +0 dma=8 8B", "SEND Only +1 8B", "RDMA WRITE Only +2 dma=8 8B",
		"RDMA WRITE Only +3 dma=8 ask 8B")
	k.post(k.wr(5, OpWrite, 8))
	k.equal("bells", rang, 2)
	k.equal("SQLen", k.q.SQLen(), 5)
}

// A queue accepts exactly its depth, whatever the size of the ring, and slots are freed by
// acknowledgments.
func TestQueueDepths(t *testing.T) {
	k := newTalk(t, RC, func(a *InitAttr, _ *Attr) { a.SQDepth, a.RQDepth = 5, 3 })
	var wrs []SendWR
	for i := range 7 {
		wrs = append(wrs, k.wr(uint64(i), OpWrite, 8))
	}
	n, err := k.q.PostSend(wrs)
	if n != 5 || !errors.Is(err, ErrSQFull) {
		t.Fatalf("accepted %d: %v", n, err)
	}
	k.listen()
	k.say(ack(1))
	n, err = k.q.PostSend(wrs[5:])
	if n != 2 || err != nil {
		t.Fatalf("after two completions it accepted %d: %v", n, err)
	}
	n, err = k.q.PostRecv(make([]RecvWR, 4))
	if n != 3 || !errors.Is(err, ErrRQFull) {
		t.Fatalf("PostRecv accepted %d: %v", n, err)
	}
	k = newTalk(t, RC, func(a *InitAttr, _ *Attr) { a.SQDepth, a.RQDepth = 0, 0 })
	if n, err := k.q.PostSend(wrs[:1]); n != 0 || !errors.Is(err, ErrSQFull) {
		t.Errorf("an SQ of depth 0 accepted %d: %v", n, err)
	}
	if n, err := k.q.PostRecv(make([]RecvWR, 1)); n != 0 || !errors.Is(err, ErrRQFull) {
		t.Errorf("an RQ of depth 0 accepted %d: %v", n, err)
	}
}

// PostSend copies inline data: the caller may reuse its buffer at once (IBA 11.4.1.1). Other memory
// is read when the packet is sent, and again for a retransmission. A post to an empty queue starts
// at the QP's first slot. Otherwise the slots go around, and each work request keeps its own.
func TestEmptyQueueRestarts(t *testing.T) {
	c := newCable(t, RC, 1024)
	q := c.a
	if len(q.sq.wqes) < 3 {
		t.Fatalf("a queue of %d slots", 1+len(q.sq.wqes))
	}
	va, key := c.ends[1].remote(0)
	post := func(id uint64) uint32 {
		t.Helper()
		wr := SendWR{ID: id, Op: OpWrite, Flags: Signaled, SGEs: []SGE{c.ends[0].sge(0, 8)},
			RemoteAddr: va, RKey: key}
		if n, err := q.PostSend([]SendWR{wr}); n != 1 {
			t.Fatal(err)
		}
		return q.sq.slot(q.sq.head.Load() - 1)
	}
	done := func(ids ...uint64) {
		t.Helper()
		c.settle()
		wcs := make([]WC, 8)
		n := q.sq.cq.Poll(wcs)
		if n != len(ids) {
			t.Fatalf("%d completions, want %d", n, len(ids))
		}
		for i, wc := range wcs[:n] {
			if wc.ID != ids[i] || wc.Status != Success {
				t.Fatalf("completions %v, want those of %v", wcs[:n], ids)
			}
		}
	}
	for id := range uint64(5) {
		if at := post(id); at != 0 {
			t.Errorf("post %d to an empty queue is in slot %d", id, at)
		}
		done(id)
	}
	slots := map[uint32]bool{post(7): true, post(8): true, post(9): true}
	if len(slots) != 3 || !slots[0] {
		t.Errorf("three posts are in slots %v", slots)
	}
	done(7, 8, 9)
}

func TestInlineIsCopied(t *testing.T) {
	k := newTalk(t, RC)
	buf := seq(100)
	k.post(SendWR{ID: 1, Op: OpSend, Inline: buf, Flags: Signaled})
	clear(buf)
	k.equal("sent", string(k.listen()[0].Payload), string(seq(100)))
	k.now += 10_000
	k.say(nak(0, bth.NAKPSNSequence))
	k.equal("retransmitted", string(k.listen()[0].Payload), string(seq(100)))
	k.say(ack(0))
	k.completes("1 success SEND 100B")
}

// The message is gathered from the SGEs in order. Empty SGEs are allowed anywhere, with any key.
func TestGather(t *testing.T) {
	copyTo := func(k *talk) []SGE {
		data := seq(600)
		copy(k.mem[0:], data[:100])
		copy(k.mem[9000:], data[100:400])
		copy(k.mem[5000:], data[400:])
		return []SGE{k.sge(0, 100), {Addr: 1, LKey: 1}, k.sge(9000, 300), k.sge(5000, 200)}
	}
	k := newTalk(t, RC)
	k.post(SendWR{ID: 1, Op: OpWrite, SGEs: copyTo(k), RemoteAddr: 0x1000, RKey: 9})
	var got strings.Builder
	for _, p := range k.listen() {
		got.Write(p.Payload)
	}
	k.equal("sent", got.String(), string(seq(600)))
	k.post(SendWR{ID: 2, Op: OpRead, Flags: Signaled,
		SGEs: []SGE{{LKey: 7}, k.sge(2000, 1), {LKey: 8}, k.sge(50, 299)}, RemoteAddr: 0x1000,
		RKey: 9})
	k.listen()
	k.say(pkt{op: bth.RCReadResponseFirst, psn: 3, data: seq(300)[:256]},
		pkt{op: bth.RCReadResponseLast, psn: 4, data: seq(300)[256:]})
	k.completes("2 success RDMA_READ 300B")
	k.equal("scattered", string(k.mem[2000:2001])+string(k.mem[50:349]), string(seq(300)))
	// only empty SGEs: a message of no bytes
	k.post(SendWR{ID: 3, Op: OpSend, Flags: Signaled, SGEs: []SGE{{}, {}}})
	k.hears("SEND Only +5 ask")
}

// Packets are padded with zeros to a multiple of 4 bytes, whatever the buffer contained (IBA
// 9.2.4).
func TestPadIsZero(t *testing.T) {
	k := newTalk(t, RC)
	for n := range 9 {
		k.post(SendWR{Op: OpSend, Inline: seq(n)})
		k.HandleDoorbells(k.now)
		buf := [512]byte{}
		for i := range buf {
			buf[i] = 0xee
		}
		tx := k.PollTransmit(k.now, buf[:])
		body := buf[tx.NetLen+bth.HeaderLen : tx.Len]
		if len(body) != (n+3)/4*4 || bth.BTH(buf[tx.NetLen:]).PadCount() != -n&3 {
			t.Fatalf("%d bytes: %d on the wire, pad count %d", n, len(body),
				bth.BTH(buf[tx.NetLen:]).PadCount())
		}
		for _, b := range body[n:] {
			k.equal("pad byte", b, byte(0))
		}
	}
}

// IBA 9.9.2: if memory is deregistered after the post, the request fails with a local protection
// error after those before it have completed. Those after it are flushed.
func TestLocalProtectionErrorInQueue(t *testing.T) {
	k := newTalk(t, RC)
	m, _ := k.region(k.pd, 1024, mr.LocalWrite)
	dying := SendWR{ID: 3, Op: OpWrite,
		SGEs: []SGE{{Addr: m.Addr(), Length: 8, LKey: bth.LKey(m.LKey())}}, RemoteAddr: 1, RKey: 1}
	k.post(k.wr(1, OpWrite, 8), k.wr(2, OpRead, 8), dying, k.wr(4, OpWrite, 8))
	must(t, k.mrs.Deregister(m))
	k.hears("RDMA WRITE Only +0 dma=8 8B", "RDMA READ Request +1 dma=8 ask")
	k.completes()
	k.say(ack(0))
	k.completes("1 success RDMA_WRITE 8B")
	k.is(RTS)
	k.say(pkt{op: bth.RCReadResponseOnly, psn: 1, data: seq(8)})
	k.completes("2 success RDMA_READ 8B", "3 local protection error",
		"4 Work Request Flushed Error")
	k.is(Err)
}

// The same if those before it must be sent again first.
func TestLocalProtectionErrorAfterLoss(t *testing.T) {
	k := newTalk(t, RC)
	m, _ := k.region(k.pd, 1024, mr.LocalWrite)
	dying := SendWR{ID: 2, Op: OpWrite,
		SGEs: []SGE{{Addr: m.Addr(), Length: 600, LKey: bth.LKey(m.LKey())}}, RemoteAddr: 1,
		RKey: 1}
	k.post(k.wr(1, OpWrite, 8), dying)
	k.HandleDoorbells(k.now)
	var buf [2048]byte
	for range 2 { // the first request, and one packet of the second
		k.PollTransmit(k.now, buf[:])
	}
	must(t, k.mrs.Deregister(m))
	k.hears()
	k.now += 10_000
	k.say(nak(0, bth.NAKPSNSequence))
	k.hears("RDMA WRITE Only +0 dma=8 8B")
	k.say(ack(0))
	k.completes("1 success RDMA_WRITE 8B", "2 local protection error")
}

// IBA 9.7.3: READs fail locally on a QP with max_rd_atomic 0.
func TestReadWithoutInitiatorDepth(t *testing.T) {
	k := newTalk(t, RC, func(_ *InitAttr, a *Attr) { a.MaxRdAtomic = 0 })
	k.post(k.wr(1, OpWrite, 8), k.wr(2, OpRead, 8))
	k.hears("RDMA WRITE Only +0 dma=8 8B")
	k.say(ack(0))
	k.completes("1 success RDMA_WRITE 8B", "2 local QP operation error")
	k.is(Err)
}

// At most max_rd_atomic READs and atomics are outstanding. Each response lets the next one start.
func TestInitiatorDepth(t *testing.T) {
	k := newTalk(t, RC, func(_ *InitAttr, a *Attr) { a.MaxRdAtomic = 2 })
	k.post(k.wr(1, OpRead, 8), k.wr(2, OpFetchAdd, 8), k.wr(3, OpRead, 8), k.wr(4, OpWrite, 8))
	k.hears("RDMA READ Request +0 dma=8 ask", "FetchAdd +1 ask")
	k.say(pkt{op: bth.RCReadResponseOnly, psn: 0, data: seq(8)})
	k.hears("RDMA READ Request +2 dma=8 ask", "RDMA WRITE Only +3 dma=8 ask 8B")
}
