package qp

import (
	"math"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

// refused checks a fatal refusal: the NAK, the event at the responder, its state.
func (k *talk) refused(nak, event string) {
	k.t.Helper()
	k.hears(nak)
	k.raises(event)
	k.is(Err)
}

const (
	invalid = "NAK invalid request +0 msn=0"
	access  = "NAK remote access error +0 msn=0"
)

// IBA 9.7.4.1.3: a message is an ONLY, or a FIRST, any number of MIDDLE and a LAST of one
// operation. Anything else is an invalid request (IBA 9.7.5.2.3). The table is every pair of
// opcodes: the message in progress, and the next packet.
func TestOpcodeSequence(t *testing.T) {
	for _, before := range []struct {
		name string
		op   bth.Opcode // sent first; a FIRST leaves its message in progress
		msn  string
	}{{"nothing", bth.RCWriteOnly, "1"}, {"a SEND", bth.RCSendFirst, "0"},
		{"a WRITE", bth.RCWriteFirst, "0"}} {
		for i := range 256 {
			info := bth.Opcode(i).Info()
			if info.Transport != bth.RC || !info.Request {
				continue
			}
			var ok bool
			switch before.op {
			case bth.RCSendFirst:
				ok = !info.Start && info.Op == bth.OpSend
			case bth.RCWriteFirst:
				ok = !info.Start && info.Op == bth.OpWrite
			default:
				ok = info.Start
			}
			k := newTalk(t, RC)
			k.recvs(2000, 2000)
			first := pkt{op: before.op, noAck: true, va: k.at(0), key: k.rkey()}
			if before.op != bth.RCWriteOnly {
				first.data, first.n = seq(talkMTU), 2*talkMTU
			}
			next := pkt{op: info.Opcode, psn: 1, va: k.at(0), key: k.rkey(), n: 2 * talkMTU,
				placement: PlaceGlobal}
			switch {
			case info.Op == bth.OpAtomicWrite:
				next.data, next.n = seq(8), 8
			case info.HasPayload:
				next.data = seq(talkMTU)
				if !info.End && len(first.data) > 0 {
					first.n = 3 * talkMTU
				}
				if info.Start && info.End {
					next.n = talkMTU
				}
			}
			if info.HasInv {
				next.inv = invalidable(k)
			}
			k.say(first, next)
			if got := k.q.State() == RTS; got != ok {
				t.Errorf("%s after %s: accepted %v, want %v", info.Name, before.name, got, ok)
			} else if !ok {
				k.hears("NAK invalid request +1 msn=" + before.msn)
			}
		}
	}
}

func invalidable(k *talk) bth.RKey {
	m, _ := k.region(k.pd, 64, mr.LocalWrite|mr.RemoteWrite|mr.RemoteInvalidate)
	return bth.RKey(m.RKey())
}

// IBA 9.7.4.1.6: FIRST and MIDDLE carry exactly the path MTU, LAST 1 byte to the path MTU, ONLY 0
// bytes to the path MTU. A WRITE's packets add up to its DMALen. Anything else is an invalid
// request, and the refused packet changes no memory.
func TestLengthRules(t *testing.T) {
	const mtu = talkMTU
	for _, c := range []struct {
		name    string
		op      bth.Opcode
		dma     uint32
		first   int // bytes of a FIRST sent before; -1: none
		payload int
		ok      bool
	}{
		{"WRITE FIRST of an MTU", bth.RCWriteFirst, 2 * mtu, -1, mtu, true},
		{"WRITE FIRST short", bth.RCWriteFirst, 2 * mtu, -1, mtu - 1, false},
		{"WRITE FIRST empty", bth.RCWriteFirst, 2 * mtu, -1, 0, false},
		{"WRITE FIRST long", bth.RCWriteFirst, 2 * mtu, -1, mtu + 4, false},
		{"WRITE FIRST beyond DMALen", bth.RCWriteFirst, mtu - 1, -1, mtu, false},
		{"WRITE MIDDLE of an MTU", bth.RCWriteMiddle, 3 * mtu, mtu, mtu, true},
		{"WRITE MIDDLE short", bth.RCWriteMiddle, 3 * mtu, mtu, mtu - 4, false},
		{"WRITE MIDDLE long", bth.RCWriteMiddle, 3 * mtu, mtu, mtu + 4, false},
		{"WRITE MIDDLE beyond DMALen", bth.RCWriteMiddle, 2*mtu - 1, mtu, mtu, false},
		{"WRITE LAST of an MTU", bth.RCWriteLast, 2 * mtu, mtu, mtu, true},
		{"WRITE LAST of a byte", bth.RCWriteLast, mtu + 1, mtu, 1, true},
		{"WRITE LAST empty", bth.RCWriteLast, mtu, mtu, 0, false},
		{"WRITE LAST less than DMALen", bth.RCWriteLast, 2 * mtu, mtu, mtu - 1, false},
		{"WRITE LAST more than DMALen", bth.RCWriteLast, mtu + 10, mtu, 11, false},
		{"WRITE LAST long", bth.RCWriteLast, 2*mtu + 4, mtu, mtu + 4, false},
		{"WRITE ONLY empty", bth.RCWriteOnly, 0, -1, 0, true},
		{"WRITE ONLY of an MTU", bth.RCWriteOnly, mtu, -1, mtu, true},
		{"WRITE ONLY long", bth.RCWriteOnly, mtu + 1, -1, mtu + 1, false},
		{"WRITE ONLY less than DMALen", bth.RCWriteOnly, 32, -1, 30, false},
		{"WRITE ONLY more than DMALen", bth.RCWriteOnly, 30, -1, 32, false},
		{"WRITE ONLY, DMALen over 2^31", bth.RCWriteOnly, 1<<31 + 1, -1, 32, false},
		{"SEND FIRST of an MTU", bth.RCSendFirst, 0, -1, mtu, true},
		{"SEND FIRST short", bth.RCSendFirst, 0, -1, mtu - 1, false},
		{"SEND FIRST long", bth.RCSendFirst, 0, -1, mtu + 1, false},
		{"SEND MIDDLE of an MTU", bth.RCSendMiddle, 0, mtu, mtu, true},
		{"SEND MIDDLE short", bth.RCSendMiddle, 0, mtu, 1, false},
		{"SEND LAST of an MTU", bth.RCSendLast, 0, mtu, mtu, true},
		{"SEND LAST of a byte", bth.RCSendLast, 0, mtu, 1, true},
		{"SEND LAST empty", bth.RCSendLast, 0, mtu, 0, false},
		{"SEND LAST long", bth.RCSendLast, 0, mtu, mtu + 1, false},
		{"SEND ONLY empty", bth.RCSendOnly, 0, -1, 0, true},
		{"SEND ONLY of an MTU", bth.RCSendOnly, 0, -1, mtu, true},
		{"SEND ONLY long", bth.RCSendOnly, 0, -1, mtu + 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newTalk(t, RC)
			k.recvs(2000)
			psn := 0
			if c.first >= 0 {
				op := bth.RCWriteFirst
				if c.op.Info().Op == bth.OpSend {
					op = bth.RCSendFirst
				}
				k.say(pkt{op: op, psn: 0, noAck: true, va: k.at(0), key: k.rkey(), n: c.dma,
					data: seq(c.first)})
				psn = 1
			}
			k.snapshot()
			k.say(pkt{op: c.op, psn: psn, va: k.at(0), key: k.rkey(), n: c.dma,
				data: seq(c.payload)})
			answers := k.listen()
			want := bth.SyndromeACK
			if !c.ok {
				want = bth.SyndromeNAK
				k.unchanged()
				k.is(Err)
				k.raises("QP_REQ_ERR")
				k.equal("NAK code", answers[0].AETH().Syndrome().NAKCode(), bth.NAKInvalidRequest)
			}
			k.equal("answers", len(answers), 1)
			k.equal("syndrome", answers[0].AETH().Syndrome().Kind(), want)
			k.equal("PSN", answers[0].BTH.PSN(), k.base.Add(uint32(psn)))
		})
	}
}

// IBA 9.7.4.1.5: key, PD, range and access are checked for every operation that has a key. A
// violation is a remote access error (IBA 9.7.5.2.4).
func TestRemoteAccess(t *testing.T) {
	const all = mr.LocalWrite | mr.RemoteWrite | mr.RemoteRead | mr.RemoteAtomic
	ops := []struct {
		name string
		op   bth.Opcode
		need mr.Access
	}{
		{"WRITE ONLY", bth.RCWriteOnly, mr.RemoteWrite},
		{"WRITE FIRST", bth.RCWriteFirst, mr.RemoteWrite},
		{"READ", bth.RCReadRequest, mr.RemoteRead},
		{"CMP_SWAP", bth.RCCmpSwap, mr.RemoteAtomic},
		{"FETCH_ADD", bth.RCFetchAdd, mr.RemoteAtomic},
	}
	const size = 4 * talkMTU
	for _, c := range []struct {
		name string
		edit func(k *talk, p *pkt, m *mr.MR, other *mr.MR)
		a    func(need mr.Access) mr.Access
		ok   bool
	}{
		{"valid", nil, nil, true},
		{"the last bytes", func(_ *talk, p *pkt, m,
			_ *mr.MR) {
			p.va = m.Addr() + size - uint64(opBytes(p))
		}, nil, true},
		{"key 0", func(_ *talk, p *pkt, _, _ *mr.MR) { p.key = 0 }, nil, false},
		{"unknown key", func(_ *talk, p *pkt, _, _ *mr.MR) { p.key ^= 0x5a5a }, nil, false},
		{"L_Key instead", func(_ *talk, p *pkt, m, _ *mr.MR) { p.key = bth.RKey(m.LKey()) }, nil,
			false},
		{"stale key", func(k *talk, _ *pkt, m, _ *mr.MR) { must(k.t, k.mrs.Deregister(m)) }, nil,
			false},
		{"key of another PD",
			func(_ *talk, p *pkt, _, o *mr.MR) {
				p.key, p.va = bth.RKey(o.RKey()),
					o.Addr()
			}, nil, false},
		{"8 bytes below", func(_ *talk, p *pkt, m, _ *mr.MR) { p.va = m.Addr() - 8 }, nil, false},
		{"8 bytes too far", func(_ *talk, p *pkt, m,
			_ *mr.MR) {
			p.va = m.Addr() + size - uint64(opBytes(p)) + 8
		}, nil, false},
		{"at the end", func(_ *talk, p *pkt, m, _ *mr.MR) { p.va = m.Addr() + size }, nil, false},
		{"address wraps to the region",
			func(_ *talk, p *pkt, m, _ *mr.MR) { p.va = math.MaxUint64 - 7 }, nil, false},
		{"right not granted", nil, func(need mr.Access) mr.Access { return all &^ need }, false},
	} {
		for _, o := range ops {
			t.Run(c.name+"/"+o.name, func(t *testing.T) {
				k := newTalk(t, RC)
				grant := mr.Access(all)
				if c.a != nil {
					grant = c.a(o.need)
				}
				m, mem := k.region(k.pd, size, grant)
				pd2, err := k.mrs.AllocPD()
				must(t, err)
				other, otherMem := k.region(pd2, size, all)
				p := pkt{op: o.op, va: m.Addr(), key: bth.RKey(m.RKey()), n: 64, swap: 1}
				switch o.op {
				case bth.RCWriteOnly:
					p.data = seq(64)
				case bth.RCWriteFirst:
					p.n, p.data = 2*talkMTU, seq(talkMTU)
				}
				if c.edit != nil {
					c.edit(k, &p, m, other)
				}
				k.snapshot()
				k.say(p)
				k.unchanged()
				for i, b := range otherMem {
					if b != 0 {
						t.Fatalf("byte %d of another PD's memory changed", i)
					}
				}
				if c.ok {
					k.is(RTS)
					return
				}
				k.refused(access, "QP_ACCESS_ERR")
				for i, b := range mem {
					if b != 0 {
						t.Fatalf("byte %d changed although the request was refused", i)
					}
				}
			})
		}
	}
}

func opBytes(p *pkt) uint32 {
	if p.op.Info().AtomicETH != 0 {
		return atomicLen
	}
	return p.n
}

// An address plus length that wraps 64 bits, on a region that would contain the sum. This is a
// known bug in other stacks.
func TestRangeWrapping64Bits(t *testing.T) {
	k := newTalk(t, RC)
	mem := make([]byte, 4096)
	m, err := k.mrs.Register(k.pd, mem, math.MaxUint64-8191, mr.LocalWrite|mr.RemoteWrite)
	must(t, err)
	k.say(pkt{op: bth.RCWriteFirst, va: m.Addr() + 4000, key: bth.RKey(m.RKey()), n: 1 << 31,
		data: seq(talkMTU)})
	k.refused(access, "QP_ACCESS_ERR")
	k = newTalk(t, RC)
	m, err = k.mrs.Register(k.pd, mem, 0, mr.LocalWrite|mr.RemoteWrite|mr.ZeroBased)
	must(t, err)
	k.say(pkt{op: bth.RCWriteOnly, va: math.MaxUint64 - 3, key: bth.RKey(m.RKey()), n: 64,
		data: seq(64)})
	k.refused(access, "QP_ACCESS_ERR")
}

// IBA 9.7.4.1.4: an operation that the QP's access flags do not allow is an invalid request,
// whatever its key.
func TestQPAccessFlags(t *testing.T) {
	for _, c := range []struct {
		flags mr.Access
		p     func(k *talk) pkt
	}{
		{mr.RemoteRead | mr.RemoteAtomic, func(k *talk) pkt { return k.write(0, seq(8)) }},
		{mr.RemoteRead | mr.RemoteAtomic, func(k *talk) pkt { return k.write(0, nil) }},
		{mr.RemoteWrite | mr.RemoteAtomic, func(k *talk) pkt { return k.read(0, 0, 8) }},
		{mr.RemoteWrite | mr.RemoteRead, func(k *talk) pkt { return k.fetchAdd(0, 0, 1) }},
	} {
		k := newTalk(t, RC, func(_ *InitAttr, a *Attr) { a.Access = c.flags })
		k.snapshot()
		k.say(c.p(k))
		k.refused(invalid, "QP_REQ_ERR")
		k.unchanged()
	}
	k := newTalk(t, RC, func(_ *InitAttr, a *Attr) { a.Access = 0 })
	k.recvs(8)
	k.say(send(0, seq(8))) // a SEND needs no flag
	k.hears("ACK +0 msn=1")
}

// A READ, atomic or FLUSH request that carries data is an invalid request, and is not executed.
func TestRequestWithUnexpectedPayload(t *testing.T) {
	for _, p := range []func(k *talk) pkt{
		func(k *talk) pkt { return k.read(0, 0, 8) },
		func(k *talk) pkt { return k.fetchAdd(0, 0, 1) },
		func(k *talk) pkt {
			va, key := k.remote(0)
			return pkt{op: bth.RCFlush, va: va, key: key, n: 8, placement: PlaceGlobal}
		},
	} {
		k := newTalk(t, RC)
		k.snapshot()
		x := p(k)
		x.data = seq(8)
		k.say(x)
		k.refused(invalid, "QP_REQ_ERR")
		k.unchanged()
	}
}

// IBA 9.7.4.1.5: an operation of no bytes accesses no memory, so its key and address are not
// checked.
func TestZeroLengthNeedsNoKey(t *testing.T) {
	k := newTalk(t, RC)
	k.recvs(0, 0)
	k.say(pkt{op: bth.RCWriteOnly, psn: 0, va: math.MaxUint64, key: 0xbad})
	k.hears("ACK +0 msn=1")
	k.say(pkt{op: bth.RCReadRequest, psn: 1, va: math.MaxUint64, key: 0})
	k.hears("RDMA READ response Only +1 msn=2")
	k.say(send(2, nil))
	k.hears("ACK +2 msn=3")
	k.say(pkt{op: bth.RCWriteOnlyImm, psn: 3, key: 0xbad, imm: 5})
	k.hears("ACK +3 msn=4")
	k.completes("1 success RECV 0B", "2 success RECV_RDMA_WITH_IMM 0B imm=5")
}

// IBA 9.7.4.1.5: the key is checked for each packet, so a WRITE whose region is deregistered stops
// with a remote access error.
func TestDeregisterDuringWrite(t *testing.T) {
	k := newTalk(t, RC)
	m, mem := k.region(k.pd, 4096, mr.LocalWrite|mr.RemoteWrite)
	part := func(op bth.Opcode, psn int) pkt {
		return pkt{op: op, psn: psn, va: m.Addr(), key: bth.RKey(m.RKey()), n: 3 * talkMTU,
			data: seq(talkMTU)}
	}
	k.say(part(bth.RCWriteFirst, 0))
	k.hears("ACK +0 msn=0")
	must(t, k.mrs.Deregister(m))
	clear(mem)
	k.say(part(bth.RCWriteMiddle, 1))
	k.refused("NAK remote access error +1 msn=0", "QP_ACCESS_ERR")
	for _, b := range mem {
		k.equal("byte of a deregistered region", b, byte(0))
	}
}

// After a fatal NAK all posted requests are flushed and later packets are not answered (IBA 9.9.3
// class C).
func TestFatalNAK(t *testing.T) {
	k := newTalk(t, RC)
	k.recvs(10, 20)
	k.say(pkt{op: bth.RCWriteOnly, va: k.at(0), key: 0xbad, n: 8, data: seq(8)})
	k.hears(access)
	k.completes("1 Work Request Flushed Error", "2 Work Request Flushed Error")
	k.say(k.write(0, seq(8)), k.write(1, seq(8)))
	k.hears()
}

// The NAK acknowledges what was accepted before the refused packet, and earlier READs are answered
// first (IBA 9.7.5.1.1: responses are in PSN order).
func TestResponsesBeforeNAK(t *testing.T) {
	k := newTalk(t, RC)
	k.say(k.write(0, seq(8)), k.read(1, 0, 300),
		pkt{op: bth.RCWriteOnly, psn: 3, va: k.at(0), key: 0xbad, n: 8, data: seq(8)})
	k.hears("RDMA READ response First +1 msn=2 256B", "RDMA READ response Last +2 msn=2 44B",
		"NAK remote access error +3 msn=2")
}
