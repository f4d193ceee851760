package qp

import (
	"errors"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

func (k *talk) window(typ mr.WindowType) *mr.Window {
	k.t.Helper()
	w, err := k.mrs.AllocWindow(k.pd, typ)
	must(k.t, err)
	return w
}

func (k *talk) nextKey(w *mr.Window) bth.RKey {
	k.t.Helper()
	key, err := k.mrs.NextRKey(w)
	must(k.t, err)
	return bth.RKey(key)
}

// bind binds a window to the first 64 bytes of the memory, for WRITEs.
func (k *talk) bind(id uint64, key bth.RKey) SendWR {
	return SendWR{ID: id, Op: OpBindMW, Flags: Signaled, RKey: key, SGEs: []SGE{k.sge(0, 64)},
		Access: mr.RemoteWrite}
}

func localInv(id uint64, key bth.RKey) SendWR {
	return SendWR{ID: id, Op: OpLocalInv, Flags: Signaled, InvKey: key}
}

func regMR(id uint64, m *mr.MR) SendWR {
	return SendWR{ID: id, Op: OpRegMR, Flags: Signaled, RKey: bth.RKey(m.RKey())}
}

// opens reports whether this QP would accept a WRITE with the key.
func (k *talk) opens(key bth.RKey) bool {
	_, v := k.mrs.CheckScope(k.pd, k.q.scope, mr.Key(key), k.at(0), 8, mr.RemoteWrite)
	return v == mr.OK
}

func (k *talk) through(psn int, key bth.RKey) pkt {
	p := k.write(psn, seq(8))
	p.key = key
	return p
}

func (k *talk) sends(id uint64) SendWR {
	return SendWR{ID: id, Op: OpSend, Flags: Signaled, Inline: seq(4)}
}

// IBA 10.6.7: BIND_MW is a work request that sends no packet. Later ones may use its result, such
// as a SEND that tells the peer the key.
func TestBindThenUse(t *testing.T) {
	for _, typ := range []mr.WindowType{mr.Type1, mr.Type2} {
		k := newTalk(t, RC)
		key := k.nextKey(k.window(typ))
		k.post(k.bind(1, key), k.sends(2))
		k.equal("valid before the bind has run", k.opens(key), false)
		k.hears("SEND Only +0 ask 4B")
		k.completes("1 success BIND_MW 64B")
		k.say(ack(0))
		k.completes("2 success SEND 4B")
		k.say(k.through(0, key))
		k.hears("ACK +0 msn=1")
		k.equal("written", string(k.mem[:8]), string(seq(8)))
		beyond := k.through(1, key)
		beyond.va = k.at(60)
		k.say(beyond)
		k.refused("NAK remote access error +1 msn=1", "QP_ACCESS_ERR")
	}
}

// A local operation runs when everything before it has been sent, and completes in order (IBA
// 10.8.3.3).
func TestLocalCompletesInOrder(t *testing.T) {
	k := newTalk(t, RC)
	key := k.nextKey(k.window(mr.Type2))
	quiet := k.wr(1, OpWrite, 8)
	quiet.Flags = 0
	k.post(quiet, k.bind(2, key))
	k.hears("RDMA WRITE Only +0 dma=8 ask 8B") // the bind's completion waits for the ACK
	k.equal("open", k.opens(key), true)
	k.completes()
	k.say(ack(0))
	k.completes("2 success BIND_MW 64B")
	k.equal("outstanding", k.q.SQLen(), 0)

	unsignaled := localInv(3, key)
	unsignaled.Flags = 0
	k.post(unsignaled, k.sends(4))
	k.hears("SEND Only +1 ask 4B")
	k.completes()
	k.equal("open", k.opens(key), false)
	k.say(ack(1))
	k.completes("4 success SEND 4B")
}

// LOCAL_INV waits until everything before it is complete (IBA 10.6.5, the local invalidate fence):
// a retransmitted packet needs its memory.
func TestLocalInvWaits(t *testing.T) {
	k := newTalk(t, RC)
	key := k.nextKey(k.window(mr.Type2))
	k.post(k.bind(1, key), k.wr(2, OpWrite, 8), localInv(3, key), k.wr(4, OpWrite, 8))
	k.hears("RDMA WRITE Only +0 dma=8 ask 8B")
	k.equal("open", k.opens(key), true)
	k.completes("1 success BIND_MW 64B")
	k.hears()
	k.say(nak(0, bth.NAKPSNSequence))
	k.now += second / 1000
	k.say(nak(0, bth.NAKPSNSequence))
	k.hears("RDMA WRITE Only +0 dma=8 ask 8B")
	k.equal("still valid", k.opens(key), true)
	k.say(ack(0))
	k.hears("RDMA WRITE Only +1 dma=8 ask 8B")
	k.equal("open", k.opens(key), false)
	k.completes("2 success RDMA_WRITE 8B", "3 success LOCAL_INV 0B")
}

// IBA 11.4.1.1: with Fence a local operation waits for earlier READs.
func TestFencedBind(t *testing.T) {
	k := newTalk(t, RC)
	key := k.nextKey(k.window(mr.Type1))
	b := k.bind(2, key)
	b.Flags |= Fence
	k.post(k.wr(1, OpRead, 8), b)
	k.hears("RDMA READ Request +0 dma=8 ask")
	k.equal("open", k.opens(key), false)
	k.say(pkt{op: bth.RCReadResponseOnly, psn: 0, data: seq(8)})
	k.hears()
	k.completes("1 success RDMA_READ 8B", "2 success BIND_MW 64B")
}

// Going back over a local operation does not run it again: a second bind of the same key would
// fail.
func TestLocalRunsOnce(t *testing.T) {
	k := newTalk(t, RC)
	w := k.window(mr.Type1)
	k1, k2 := k.nextKey(w), k.nextKey(w)
	k.post(k.wr(1, OpWrite, 8), k.bind(2, k1), k.bind(3, k2), k.wr(4, OpWrite, 8),
		k.bind(5, k.nextKey(w)), k.wr(6, OpWrite, 8))
	want := []string{"RDMA WRITE Only +0 dma=8 ask 8B", "RDMA WRITE Only +1 dma=8 ask 8B",
		"RDMA WRITE Only +2 dma=8 ask 8B"}
	k.hears(want...)
	for range 3 {
		k.now += second / 100
		k.say(nak(0, bth.NAKPSNSequence))
		k.hears(want...)
	}
	k.completes()
	k.say(ack(0)) // the cursor is after all of them
	k.completes("1 success RDMA_WRITE 8B", "2 success BIND_MW 64B", "3 success BIND_MW 64B")
	k.now += second / 100
	k.say(nak(1, bth.NAKPSNSequence))
	k.say(ack(1)) // here the cursor went back, and no packet was sent since
	k.hears(want[2])
	k.completes("4 success RDMA_WRITE 8B", "5 success BIND_MW 64B")
	k.say(ack(2))
	k.completes("6 success RDMA_WRITE 8B")
	k.is(RTS)
	must(t, k.q.invariants())
}

// The oldest packet is sent again alone, and its ACK retires the local operation at the cursor.
func TestLocalAtCursor(t *testing.T) {
	k := newTalk(t, RC)
	key := k.nextKey(k.window(mr.Type1))
	k.post(k.wr(1, OpWrite, 8), k.bind(2, key), k.wr(3, OpWrite, 8))
	k.hears("RDMA WRITE Only +0 dma=8 ask 8B", "RDMA WRITE Only +1 dma=8 ask 8B")
	k.now += initialRTO + second/1000
	k.HandleTimeout(k.now)
	var buf [1024]byte
	if tx := k.PollTransmit(k.now, buf[:]); tx == nil {
		t.Fatal("nothing to send")
	}
	k.say(ack(0)) // before the next packet is polled
	k.completes("1 success RDMA_WRITE 8B", "2 success BIND_MW 64B")
	k.equal("cursor", k.q.sq.cur, k.q.sq.tail.Load())
	k.hears("RDMA WRITE Only +1 dma=8 ask 8B")
	k.say(ack(1))
	k.completes("3 success RDMA_WRITE 8B")
}

// IBA 11.6.2: a local operation that fails completes with a memory management operation error,
// after everything before it, and moves the QP to ERR.
func TestLocalFails(t *testing.T) {
	bad := func(k *talk) *mr.Window { return k.window(mr.Type2) }
	for _, c := range []struct {
		name string
		wr   func(k *talk) SendWR
	}{
		{"BIND_MW of an unknown key", func(k *talk) SendWR { return k.bind(2, 0xbad) }},
		{"BIND_MW to an unknown region", func(k *talk) SendWR {
			b := k.bind(2, k.nextKey(bad(k)))
			b.SGEs[0].LKey ^= 1
			return b
		}},
		{"BIND_MW of type 2 to nothing", func(k *talk) SendWR {
			b := k.bind(2, k.nextKey(bad(k)))
			b.SGEs = nil
			return b
		}},
		{"BIND_MW beyond the region", func(k *talk) SendWR {
			b := k.bind(2, k.nextKey(bad(k)))
			b.SGEs[0].Addr += 1 << 20
			return b
		}},
		{"LOCAL_INV of an unknown key", func(*talk) SendWR { return localInv(2, 0xbad) }},
		{"LOCAL_INV of a plain region", func(k *talk) SendWR { return localInv(2, k.rkey()) }},
		{"LOCAL_INV of a prepared key",
			func(k *talk) SendWR { return localInv(2, k.nextKey(bad(k))) }},
		{"REG_MR of an unknown key",
			func(*talk) SendWR { return SendWR{ID: 2, Op: OpRegMR, RKey: 0xbad} }},
		{"REG_MR of a window's key",
			func(k *talk) SendWR { return SendWR{ID: 2, Op: OpRegMR, RKey: k.nextKey(bad(k))} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newTalk(t, RC)
			k.post(k.wr(1, OpWrite, 8), c.wr(k), k.wr(3, OpWrite, 8))
			k.hears("RDMA WRITE Only +0 dma=8 ask 8B")
			k.completes()
			k.now += second / 100
			k.say(nak(0, bth.NAKPSNSequence)) // goes back over the failed one
			k.hears("RDMA WRITE Only +0 dma=8 ask 8B")
			k.is(RTS)
			k.say(ack(0))
			k.hears()
			k.completes("1 success RDMA_WRITE 8B", "2 memory management operation error",
				"3 Work Request Flushed Error")
			k.is(Err)
		})
	}
}

// The same on UC, where an error of the send queue stops only that queue (SQE).
func TestLocalOnUC(t *testing.T) {
	k := newTalk(t, UC)
	key := k.nextKey(k.window(mr.Type2))
	k.post(k.sends(1), k.bind(2, key), k.sends(3))
	k.hears("SEND Only +0 4B", "SEND Only +1 4B")
	k.completes("1 success SEND 4B", "2 success BIND_MW 64B", "3 success SEND 4B")
	k.say(pkt{op: bth.UCWriteOnly, va: k.at(0), key: key, n: 8, data: seq(8)})
	k.equal("written", string(k.mem[:8]), string(seq(8)))
	k.post(localInv(4, key), localInv(5, key), k.sends(6))
	k.hears()
	k.completes("4 success LOCAL_INV 0B", "5 memory management operation error",
		"6 Work Request Flushed Error")
	k.is(SQE)
	must(t, k.modify(RTS))
	k.post(k.sends(7))
	k.hears("SEND Only +2 4B")
	k.completes("7 success SEND 4B")
}

// In SQD nothing new starts, including local operations (IBA 10.3.1.5).
func TestLocalInSQD(t *testing.T) {
	k := newTalk(t, RC)
	key := k.nextKey(k.window(mr.Type1))
	must(t, k.modify(SQD))
	k.post(k.bind(1, key))
	k.hears()
	k.equal("open", k.opens(key), false)
	must(t, k.modify(RTS))
	k.hears()
	k.completes("1 success BIND_MW 64B")
	k.equal("open", k.opens(key), true)
}

// A QP that ends its connection loses its windows of type 2: the next peer cannot use them.
func TestWindowsEndWithQP(t *testing.T) {
	k := newTalk(t, RC)
	w1, w2 := k.window(mr.Type1), k.window(mr.Type2)
	key1, key2 := k.nextKey(w1), k.nextKey(w2)
	k.post(k.bind(1, key1), k.bind(2, key2))
	k.hears()
	k.completes("1 success BIND_MW 64B", "2 success BIND_MW 64B")
	must(t, k.modify(Reset))
	k.connect(k.q, func() Attr {
		a := connectAttr()
		a.PathMTU, a.RQPSN, a.SQPSN = talkMTU, k.base,
			k.base
		return a
	}(), 1, peerQPN)
	k.hears()
	k.equal("window of type 1", k.opens(key1), true)
	k.equal("window of type 2", k.opens(key2), false)
	key2 = k.nextKey(w2)
	k.post(k.bind(3, key2))
	k.hears()
	k.completes("3 success BIND_MW 64B")
	k.equal("window of type 2", k.opens(key2), true)
	k.DestroyQP(k.q)
	k.equal("window of a destroyed QP", w2.RKey(), mr.Key(0))
	must(t, k.mrs.FreeWindow(w1))
	must(t, k.mrs.FreeWindow(w2))
	must(t, k.mrs.Deregister(k.mr))
}

// IBA 9.4.1.1: the peer's SEND with invalidate invalidates a window of type 2, which can be bound
// again.
func TestSendInvalidatesWindow(t *testing.T) {
	k := newTalk(t, RC)
	k.recvs(8)
	w := k.window(mr.Type2)
	key := k.nextKey(w)
	k.post(k.bind(1, key))
	k.hears()
	k.completes("1 success BIND_MW 64B")
	k.say(pkt{op: bth.RCSendOnlyInv, data: seq(4), inv: key})
	k.hears("ACK +0 msn=1")
	k.completes("1 success RECV 4B inv")
	k.equal("open", k.opens(key), false)
	key = k.nextKey(w)
	k.post(k.bind(2, key))
	k.hears()
	k.completes("2 success BIND_MW 64B")
	k.say(k.through(1, key))
	k.hears("ACK +1 msn=2")
	k.say(k.through(2, key^1))
	k.refused("NAK remote access error +2 msn=2", "QP_ACCESS_ERR")
}

// IBA 9.9.3 class J: what a peer may not invalidate.
func TestSendCannotInvalidate(t *testing.T) {
	for _, c := range []struct {
		name string
		key  func(k *talk) bth.RKey
	}{
		{"a window of type 1", func(k *talk) bth.RKey {
			key := k.nextKey(k.window(mr.Type1))
			k.post(k.bind(9, key))
			return key
		}},
		{"another QP's window", func(k *talk) bth.RKey {
			key := k.nextKey(k.window(mr.Type2))
			must(k.t, k.mrs.Bind(k.pd, new(mr.Scope),
				&mr.Bind{RKey: mr.Key(key), LKey: k.mr.LKey(), Addr: k.at(0), Len: 64}))
			return key
		}},
		{"a window that is not bound",
			func(k *talk) bth.RKey { return k.nextKey(k.window(mr.Type2)) }},
		{"a fast MR with a window bound to it", func(k *talk) bth.RKey {
			m := k.fast(64, mr.MWBind)
			key := k.nextKey(k.window(mr.Type2))
			b := k.bind(9, key)
			b.SGEs[0], b.Access = SGE{Addr: m.Addr(), Length: 8,
				LKey: bth.LKey(m.LKey())}, mr.RemoteRead
			reg := regMR(8, m)
			reg.Flags = 0
			k.post(reg, b)
			return bth.RKey(m.RKey())
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newTalk(t, RC)
			k.recvs(8)
			key := c.key(k)
			k.hears()
			k.collect()
			k.wcs = nil
			k.say(pkt{op: bth.RCSendOnlyInv, data: seq(4), inv: key})
			k.hears()
			k.completes("1 memory management operation error")
			k.is(Err)
		})
	}
}

// IBA 9.7.4.1.5: the key is checked for each packet, so invalidating a window stops a WRITE in
// progress.
func TestWindowInvalidatedDuringWrite(t *testing.T) {
	k := newTalk(t, RC)
	key := k.nextKey(k.window(mr.Type2))
	b := k.bind(1, key)
	b.SGEs[0].Length = 1024
	k.post(b)
	k.hears()
	first := pkt{op: bth.RCWriteFirst, va: k.at(0), key: key, n: 2 * talkMTU, data: seq(talkMTU)}
	k.say(first)
	k.hears("ACK +0 msn=0")
	k.post(localInv(2, key))
	k.hears()
	k.snapshot()
	k.say(pkt{op: bth.RCWriteLast, psn: 1, data: seq(talkMTU)})
	k.refused("NAK remote access error +1 msn=0", "QP_ACCESS_ERR")
	k.unchanged()
}

// Invalid work requests are rejected when they are posted.
func TestPostLocalRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		typ  Type
		wr   func(k *talk) SendWR
		want string
	}{
		{"BIND_MW on UD", UD, func(k *talk) SendWR { return k.bind(1, 1) },
			"not an operation of UD"},
		{"LOCAL_INV on UD", UD, func(*talk) SendWR { return localInv(1, 1) },
			"not an operation of UD"},
		{"REG_MR on UD", UD, func(*talk) SendWR { return SendWR{Op: OpRegMR} },
			"not an operation of UD"},
		{"FLUSH on UC", UC, func(*talk) SendWR {
			return SendWR{Op: OpFlush,
				Placement: PlaceGlobal}
		}, "not an operation of UC"},
		{"ATOMIC_WRITE on UC", UC,
			func(*talk) SendWR { return SendWR{Op: OpAtomicWrite, Inline: seq(8)} },
			"not an operation of UC"},
		{"BIND_MW of two ranges", RC, func(k *talk) SendWR {
			return SendWR{Op: OpBindMW, SGEs: []SGE{k.sge(0, 8), k.sge(8, 8)}}
		}, "one SGE"},
		{"BIND_MW with data", RC,
			func(*talk) SendWR { return SendWR{Op: OpBindMW, Inline: seq(8)} }, "takes no data"},
		{"LOCAL_INV with data", RC,
			func(k *talk) SendWR { return SendWR{Op: OpLocalInv, SGEs: []SGE{k.sge(0, 8)}} },
			"takes no data"},
		{"FLUSH with data", RC, func(k *talk) SendWR {
			return SendWR{Op: OpFlush, Placement: PlaceGlobal, SGEs: []SGE{k.sge(0, 8)}}
		}, "takes no data"},
		{"FLUSH to nowhere", RC, func(*talk) SendWR { return SendWR{Op: OpFlush} }, "placement 0"},
		{"FLUSH of a reserved placement", RC,
			func(*talk) SendWR { return SendWR{Op: OpFlush, Placement: 4} }, "placement 4"},
		{"FLUSH of a reserved level", RC,
			func(*talk) SendWR { return SendWR{Op: OpFlush, Placement: 1, Level: 2} }, "level 2"},
		{"FLUSH of too much", RC,
			func(*talk) SendWR { return SendWR{Op: OpFlush, Placement: 1, Length: MaxMessage + 1} },
			"2^31"},
		{"ATOMIC_WRITE of 4 bytes", RC,
			func(*talk) SendWR { return SendWR{Op: OpAtomicWrite, Inline: seq(4)} }, "8 bytes"},
		{"ATOMIC_WRITE of nothing", RC, func(*talk) SendWR { return SendWR{Op: OpAtomicWrite} },
			"8 bytes"},
	} {
		k := newTalk(t, c.typ)
		_, err := k.q.PostSend([]SendWR{c.wr(k)})
		if !errors.Is(err, ErrInvalidWR) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// Local operations are part of the data path: running and completing them does not allocate.
func TestLocalAllocatesNothing(t *testing.T) {
	k := newTalk(t, RC)
	w := k.window(mr.Type2)
	const n = 14
	var wrs [][]SendWR
	for range n + 1 {
		key := k.nextKey(w)
		wrs = append(wrs, []SendWR{k.bind(1, key), localInv(2, key)})
	}
	var buf [2048]byte
	var wcs [8]WC
	i := 0
	once := func() {
		if _, err := k.q.PostSend(wrs[i]); err != nil {
			t.Fatal(err)
		}
		i++
		k.HandleDoorbells(k.now)
		k.PollTransmit(k.now, buf[:])
		if k.cq.Poll(wcs[:]) != 2 || wcs[0].Opcode != WCBindMW || wcs[1].Opcode != WCLocalInv ||
			wcs[1].Status != Success {
			t.Fatal("completions")
		}
	}
	once() // the first bind of a QP allocates its scope
	if a := testing.AllocsPerRun(n-1, once); a != 0 {
		t.Errorf("%v allocations", a)
	}
}
