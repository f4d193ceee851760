package qp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

func (k *talk) flush(psn, off, n int) pkt {
	return pkt{op: bth.RCFlush, psn: psn, va: k.at(off), key: k.rkey(), n: uint32(n),
		placement: PlaceGlobal}
}

func (k *talk) atomicWrite(psn, off int, v uint64) pkt {
	return pkt{op: bth.RCAtomicWrite, psn: psn, va: k.at(off), key: k.rkey(), n: 8,
		data: binary.NativeEndian.AppendUint64(nil, v)}
}

// IBA annex A19: FLUSH and ATOMIC WRITE are each answered by a READ response ONLY without payload,
// at their own PSN, and count as a message (MSN).
func TestFlushAndAtomicWriteAnswers(t *testing.T) {
	k := newTalk(t, RC)
	k.snapshot()
	k.say(k.write(0, seq(16)), k.flush(1, 0, 16), k.atomicWrite(2, 64, 77))
	k.hears("RDMA READ response Only +1 msn=2", "RDMA READ response Only +2 msn=3")
	k.equal("word", k.word(64), uint64(77))
	k.unchanged([2]int{0, 16}, [2]int{64, 72})
	whole := k.flush(3, 0, 0)
	whole.level, whole.va, whole.n = FlushRegion, 0, 1<<32-1 // address and length are ignored
	k.say(whole, k.flush(4, 1<<20, 0), k.flush(5, 0, 1<<20))
	k.hears("RDMA READ response Only +3 msn=4", "RDMA READ response Only +4 msn=5",
		"RDMA READ response Only +5 msn=6")
}

// Reasons for refusing FLUSH and ATOMIC WRITE (IBA 9.7.4.1, annex A19). Nothing is written then.
func TestFlushAndAtomicWriteRefusals(t *testing.T) {
	noFlush := func(a *Attr) { a.Access = mr.RemoteWrite | mr.RemoteRead | mr.RemoteAtomic }
	persist := func(a *Attr) { a.Access |= mr.FlushPersistent }
	noWrite := func(a *Attr) { a.Access = mr.RemoteRead | mr.RemoteAtomic | mr.FlushGlobal }
	noDepth := func(a *Attr) { a.MaxDestRdAtomic = 0 }
	both := func(p *pkt) { p.placement = PlaceGlobal | PlacePersistent }
	for _, c := range []struct {
		name   string
		attr   func(*Attr)
		p      func(k *talk) pkt
		change func(p *pkt)
		want   string
	}{
		{"FLUSH through a QP without the right", noFlush,
			func(k *talk) pkt { return k.flush(0, 0, 8) }, nil, invalid},
		{"FLUSH, persistent, through a QP without the right", nil,
			func(k *talk) pkt { return k.flush(0, 0, 8) }, both, invalid},
		{"FLUSH, persistent, of memory that is not", persist,
			func(k *talk) pkt { return k.flush(0, 0, 8) }, both, access},
		{"FLUSH to nowhere", nil, func(k *talk) pkt { return k.flush(0, 0, 8) },
			func(p *pkt) { p.placement = 0 }, invalid},
		{"FLUSH of a reserved placement", nil, func(k *talk) pkt { return k.flush(0, 0, 8) },
			func(p *pkt) { p.placement = PlaceGlobal | 4 }, invalid},
		{"FLUSH of a reserved level", nil, func(k *talk) pkt { return k.flush(0, 0, 8) },
			func(p *pkt) { p.level = 2 }, invalid},
		{"FLUSH of more than 2^31 bytes", nil,
			func(k *talk) pkt { return k.flush(0, 0, MaxMessage+1) }, nil, invalid},
		{"FLUSH out of bounds", nil, func(k *talk) pkt { return k.flush(0, 1<<20-8, 9) }, nil,
			access},
		{"FLUSH with a wrong key", nil, func(k *talk) pkt { return k.flush(0, 0, 8) },
			func(p *pkt) { p.key ^= 1 }, access},
		{"FLUSH of nothing with a wrong key", nil, func(k *talk) pkt { return k.flush(0, 0, 0) },
			func(p *pkt) { p.key ^= 1 }, access},
		{"FLUSH of all with a wrong key", nil, func(k *talk) pkt { return k.flush(0, 0, 0) },
			func(p *pkt) { p.key ^= 1; p.level = FlushRegion }, access},
		{"FLUSH with none agreed on", noDepth, func(k *talk) pkt { return k.flush(0, 0, 8) }, nil,
			invalid},

		{"ATOMIC WRITE through a QP without the right", noWrite,
			func(k *talk) pkt { return k.atomicWrite(0, 0, 1) }, nil, invalid},
		{"ATOMIC WRITE, misaligned", nil, func(k *talk) pkt { return k.atomicWrite(0, 4, 1) }, nil,
			invalid},
		{"ATOMIC WRITE with another length in its RETH", nil,
			func(k *talk) pkt {
				return k.atomicWrite(0, 0,
					1)
			}, func(p *pkt) { p.n = 16 }, invalid},
		{"ATOMIC WRITE with length 0 in its RETH", nil,
			func(k *talk) pkt { return k.atomicWrite(0, 0, 1) }, func(p *pkt) { p.n = 0 }, invalid},
		{"ATOMIC WRITE of 16 bytes", nil, func(k *talk) pkt { return k.atomicWrite(0, 0, 1) },
			func(p *pkt) { p.data, p.n = seq(16), 16 }, invalid},
		{"ATOMIC WRITE of 9 bytes", nil, func(k *talk) pkt { return k.atomicWrite(0, 0, 1) },
			func(p *pkt) { p.data = seq(9) }, invalid},
		{"ATOMIC WRITE out of bounds", nil, func(k *talk) pkt { return k.atomicWrite(0, 1<<20, 1) },
			nil, access},
		{"ATOMIC WRITE with a wrong key", nil, func(k *talk) pkt { return k.atomicWrite(0, 0, 1) },
			func(p *pkt) { p.key ^= 1 }, access},
		{"ATOMIC WRITE with none agreed on", noDepth,
			func(k *talk) pkt { return k.atomicWrite(0, 0, 1) }, nil, invalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newTalk(t, RC, func(_ *InitAttr, a *Attr) {
				if c.attr != nil {
					c.attr(a)
				}
			})
			k.snapshot()
			p := c.p(k)
			if c.change != nil {
				c.change(&p)
			}
			k.say(p)
			event := "QP_REQ_ERR"
			if c.want == access {
				event = "QP_ACCESS_ERR"
			}
			k.refused(c.want, event)
			k.unchanged()
		})
	}
}

// The 8 bytes are stored atomically, so the memory must be aligned like the addresses. Only the
// owner of the region can violate this.
func TestAtomicWriteToMisalignedMemory(t *testing.T) {
	k := newTalk(t, RC)
	mem := make([]byte, 72)
	skip := int(-mr.AddrOf(mem) & 7)
	m, err := k.mrs.Register(k.pd, mem[skip+4:], 0x1000, mr.LocalWrite|mr.RemoteWrite)
	must(t, err)
	p := k.atomicWrite(0, 0, 1)
	p.va, p.key = 0x1000, bth.RKey(m.RKey())
	k.say(p)
	k.refused(invalid, "QP_REQ_ERR")
}

// An ATOMIC WRITE with less than 8 bytes of payload, or with half a header, has crashed other
// stacks. Here it does not parse.
func TestShortAtomicWrite(t *testing.T) {
	k := newTalk(t, RC)
	p := k.atomicWrite(0, 0, 1)
	full := p.wire(k.q, k.base)
	for n := range len(full) {
		if err := new(bth.Packet).Parse(full[:n]); err == nil {
			t.Errorf("%d of %d bytes parse", n, len(full))
		}
	}
	for pad := uint8(1); pad < 4; pad++ {
		b := append([]byte{}, full...)
		b[1] |= pad << 4
		if err := new(bth.Packet).Parse(b); err == nil {
			t.Errorf("with a pad of %d, %d bytes of payload parse", pad, 8-pad)
		}
	}
}

// IBA 9.7.5.1.3: a duplicate ATOMIC WRITE is answered but not executed again, because the word may
// have a newer value. Its age does not matter, because no result is saved.
func TestAtomicWriteExactlyOnce(t *testing.T) {
	k := newTalk(t, RC) // 4 outstanding
	p := k.atomicWrite(0, 0, 100)
	k.say(p, p, p)
	k.hears("RDMA READ response Only +0 msn=1") // the answer was still queued: one answers all
	for i := 1; i < 7; i++ {
		k.say(k.atomicWrite(i, 0, uint64(100+i)))
		k.hears(fmt.Sprintf("RDMA READ response Only +%d msn=%d", i, i+1))
	}
	k.setWord(0, 5000)
	k.say(p)
	k.hears("RDMA READ response Only +0 msn=7")
	k.say(k.atomicWrite(6, 0, 106), k.atomicWrite(5, 0, 105))
	k.hears("RDMA READ response Only +5 msn=7", "RDMA READ response Only +6 msn=7")
	k.equal("word", k.word(0), uint64(5000))
}

// IBA 9.7.4.1: ATOMIC WRITEs count as outstanding READs.
func TestTooManyAtomicWrites(t *testing.T) {
	k := newTalk(t, RC)
	for i := range 5 {
		k.say(k.atomicWrite(i, 8*i, 1))
	}
	k.equal("the excess one", k.word(32), uint64(0))
	k.hears("RDMA READ response Only +0 msn=1", "RDMA READ response Only +1 msn=2",
		"RDMA READ response Only +2 msn=3",
		"RDMA READ response Only +3 msn=4", "NAK invalid request +4 msn=4")
}

// FLUSHes do not count, because not every requester counts them. If there is no space for their
// answers, they are dropped.
func TestManyFlushes(t *testing.T) {
	k := newTalk(t, RC) // 4 outstanding, space for 8 answers
	var want []string
	for i := range 10 {
		k.say(k.flush(i, 0, 8))
		if i < 8 {
			want = append(want, fmt.Sprintf("RDMA READ response Only +%d msn=%d", i, i+1))
		}
	}
	k.hears(append(want, "NAK PSN sequence error +8 msn=8")...)
	k.say(k.flush(8, 0, 8), k.flush(9, 0, 8))
	k.hears("RDMA READ response Only +8 msn=9", "RDMA READ response Only +9 msn=10")
	k.is(RTS)
}

// The persist function runs once per FLUSH, however often the request arrives. If it fails, the
// requester gets a NAK.
func TestPersistentFlush(t *testing.T) {
	k := newTalk(t, RC, func(_ *InitAttr, a *Attr) { a.Access |= mr.FlushPersistent })
	runs, fails := 0, error(nil)
	mem := make([]byte, 64)
	m, err := k.mrs.RegisterPersistent(k.pd, mem, 0x1000, mr.LocalWrite|mr.RemoteWrite,
		func(b []byte) error {
			if len(b) != 16 || &b[0] != &mem[8] {
				t.Errorf("%d bytes", len(b))
			}
			runs++
			return fails
		})
	must(t, err)
	p := pkt{op: bth.RCFlush, va: 0x1008, key: bth.RKey(m.RKey()), n: 16,
		placement: PlacePersistent}
	k.say(p, p)
	k.hears("RDMA READ response Only +0 msn=1")
	k.say(p)
	k.hears("RDMA READ response Only +0 msn=1")
	k.equal("runs", runs, 1)
	fails = errors.New("no")
	p.psn = 1
	k.say(p)
	k.refused("NAK remote operational error +1 msn=1", "QP_FATAL")
}

// A duplicate of an operation that this QP does not allow cannot have been executed: it is dropped.
func TestDuplicateOfRefusedOperation(t *testing.T) {
	k := newTalk(t, RC, func(_ *InitAttr, a *Attr) { a.Access = mr.RemoteRead })
	none := k.flush(-3, 0, 8)
	none.placement = 0
	k.say(k.flush(-3, 0, 8), k.atomicWrite(-2, 0, 1), none)
	k.hears()
	k.is(RTS)
	k.equal("drops", k.Counters().DropReplay, uint64(3))
}

func (k *talk) postFlushAndWrite() {
	k.post(
		SendWR{ID: 1, Op: OpFlush, Flags: Signaled, RemoteAddr: 0x1000, RKey: 9, Length: 4096,
			Placement: PlaceGlobal | PlacePersistent, Level: FlushRegion},
		SendWR{ID: 2, Op: OpAtomicWrite, Flags: Signaled, RemoteAddr: 0x2000, RKey: 8,
			SGEs: []SGE{k.sge(0, 3), k.sge(8, 5)}},
		SendWR{ID: 3, Op: OpAtomicWrite, Flags: Signaled, RemoteAddr: 0x2008, RKey: 8,
			Inline: seq(8)},
	)
}

func emptyResponse(psn int) pkt {
	return pkt{op: bth.RCReadResponseOnly, psn: psn, syndrome: bth.ACKNoLimit}
}

// At the requester: the content of the packets, and that only their own responses complete them.
func TestFlushAndAtomicWriteAtRequester(t *testing.T) {
	k := newTalk(t, RC)
	copy(k.mem, seq(16))
	k.postFlushAndWrite()
	ps := k.listen()
	k.equal("packets", len(ps), 3)
	f, h := ps[0].FETH(), ps[0].RETH()
	k.equal("FLUSH", fmt.Sprint(ps[0].Info.Opcode, f.Placement(), f.Selectivity(), h.VA(), h.RKey(),
		h.DMALen(), len(ps[0].Payload), ps[0].BTH.AckReq()),
		fmt.Sprint(bth.RCFlush, 3, 1, 0x1000, 9, 4096, 0, true))
	h = ps[1].RETH()
	k.equal("ATOMIC WRITE",
		fmt.Sprint(ps[1].Info.Opcode, h.VA(), h.RKey(), h.DMALen(), ps[1].BTH.AckReq()),
		fmt.Sprint(bth.RCAtomicWrite, 0x2000, 8, 8, true))
	k.equal("data", string(ps[1].Payload), string(seq(16)[:3])+string(seq(16)[8:13]))
	k.equal("inline data", string(ps[2].Payload), string(seq(8)))
	k.say(emptyResponse(0))
	k.completes("1 success FLUSH 4096B")
	k.say(ack(2)) // an ACK does not complete it: its response was lost
	k.completes()
	k.hears("ATOMIC WRITE +1 dma=8 ask 8B", "ATOMIC WRITE +2 dma=8 ask 8B")
	k.say(emptyResponse(1), emptyResponse(2))
	k.completes("2 success ATOMIC_WRITE 8B", "3 success ATOMIC_WRITE 8B")
}

// They count as outstanding READs, and a fence waits for them.
func TestFlushCountsAsRead(t *testing.T) {
	k := newTalk(t, RC, func(_ *InitAttr, a *Attr) { a.MaxRdAtomic = 2 })
	fenced := k.sends(4)
	fenced.Flags |= Fence
	k.postFlushAndWrite()
	k.post(fenced)
	k.hears("FLUSH +0 dma=4096 ask", "ATOMIC WRITE +1 dma=8 ask 8B")
	k.say(emptyResponse(0))
	k.hears("ATOMIC WRITE +2 dma=8 ask 8B")
	k.say(emptyResponse(1))
	k.hears()
	k.say(emptyResponse(2))
	k.hears("SEND Only +3 ask 4B")

	k = newTalk(t, RC, func(_ *InitAttr, a *Attr) { a.MaxRdAtomic = 0 })
	k.postFlushAndWrite()
	k.hears()
	k.completes("1 local QP operation error", "2 Work Request Flushed Error",
		"3 Work Request Flushed Error")
}

// A response with payload is invalid (IBA 9.9.2 "bad response").
func TestFlushResponseWithPayload(t *testing.T) {
	k := newTalk(t, RC)
	k.postFlushAndWrite()
	k.listen()
	p := emptyResponse(0)
	p.data = seq(8)
	k.say(p)
	k.completes("1 bad response error", "2 Work Request Flushed Error",
		"3 Work Request Flushed Error")
}

// The memory of an ATOMIC WRITE is looked up when the packet is built.
func TestAtomicWriteFromDeregisteredMemory(t *testing.T) {
	k := newTalk(t, RC)
	m, _ := k.region(k.pd, 8, 0)
	k.post(SendWR{ID: 1, Op: OpAtomicWrite,
		SGEs: []SGE{{Addr: m.Addr(), Length: 8, LKey: bth.LKey(m.LKey())}}})
	must(t, k.mrs.Deregister(m))
	k.hears()
	k.completes("1 local protection error")
	k.is(Err)
}

// A window that only grants flushing works, and only through the QP that it is bound to.
func TestFlushThroughWindow(t *testing.T) {
	k := newTalk(t, RC)
	key := k.nextKey(k.window(mr.Type2))
	b := k.bind(1, key)
	b.Access = mr.FlushGlobal
	k.post(b)
	k.hears()
	p := k.flush(0, 0, 64)
	p.key = key
	k.say(p)
	k.hears("RDMA READ response Only +0 msn=1")
	p.psn, p.n = 1, 65
	k.say(p)
	k.refused("NAK remote access error +1 msn=1", "QP_ACCESS_ERR")
}
