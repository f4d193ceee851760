package qp

import (
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

// IBA 9.7.5.2.8: a SEND without a receive gets an RNR NAK with the QP's timer code. Further packets
// are dropped until the refused packet arrives again and finds a receive.
func TestRNRNAKThenReceive(t *testing.T) {
	k := newTalk(t, RC, func(_ *InitAttr, a *Attr) { a.MinRNRTimer = 14 })
	k.say(k.write(0, seq(8)), send(1, seq(8)))
	k.hears("RNR NAK timer 14 +1 msn=1")
	k.say(k.write(2, seq(8)), k.write(3, seq(8)), send(4, nil))
	k.hears()
	k.recvs(8)
	k.say(k.write(2, seq(8)))
	k.hears() // a receive alone changes nothing: the SEND must arrive again
	k.say(send(1, seq(8)), k.write(2, seq(8)))
	k.hears("ACK +2 msn=3")
	k.completes("1 success RECV 8B")
	k.is(RTS)
	k.equal("RNR NAKs", k.Counters().SentRNR, uint64(1))
}

// Every refusal of the same SEND is reported: the requester counts them (IBA 9.7.5.2.8).
func TestRNRNAKEachTime(t *testing.T) {
	k := newTalk(t, RC)
	for range 3 {
		k.say(send(0, seq(8)))
		k.hears("RNR NAK timer 12 +0 msn=0")
	}
}

// The last packet of a WRITE with immediate takes a receive; the others need none. If it is
// refused, it does not change memory (IBA 9.7.5.2.8), and the WRITE continues from there.
func TestWriteImmNeedsReceive(t *testing.T) {
	k := newTalk(t, RC)
	data := seq(talkMTU + 8)
	first := pkt{op: bth.RCWriteFirst, va: k.at(0), key: k.rkey(), n: talkMTU + 8,
		data: data[:talkMTU]}
	last := pkt{op: bth.RCWriteLastImm, psn: 1, data: data[talkMTU:], imm: 77}
	k.say(first)
	k.hears("ACK +0 msn=0")
	k.snapshot()
	k.say(last)
	k.hears("RNR NAK timer 12 +1 msn=0")
	k.unchanged()
	k.recvs(0) // its length does not matter: the data goes elsewhere
	k.say(last)
	k.hears("ACK +1 msn=1")
	k.completes("1 success RECV_RDMA_WITH_IMM 264B imm=77")
	k.equal("written", string(k.mem[:len(data)]), string(data))
	k.say(pkt{op: bth.RCWriteOnlyImm, psn: 2, va: k.at(0), key: k.rkey(), n: 8,
		data: make([]byte, 8)})
	k.hears("RNR NAK timer 12 +2 msn=1")
	k.unchanged([2]int{talkMTU, talkMTU + 8})
}

// IBA 9.9.3 class C: a SEND longer than its receive is an error of the sender. The receive ends
// with a local length error, and the requester gets an invalid request NAK.
func TestOversizeSend(t *testing.T) {
	k := newTalk(t, RC)
	k.recvs(7, 100)
	k.snapshot()
	k.say(send(0, seq(8)))
	k.hears(invalid)
	k.completes("1 local length error", "2 Work Request Flushed Error")
	k.unchanged()
	k.is(Err)

	k = newTalk(t, RC) // in the middle of the message
	k.recvs(talkMTU + 10)
	k.say(pkt{op: bth.RCSendFirst, data: seq(talkMTU)},
		pkt{op: bth.RCSendLast, psn: 1, data: seq(11)})
	k.hears("NAK invalid request +1 msn=0")
	k.completes("1 local length error")

	k = newTalk(t, RC) // an exact fit is valid
	k.recvs(8)
	k.say(send(0, seq(8)))
	k.hears("ACK +0 msn=1")
	k.completes("1 success RECV 8B")
}

// IBA 9.9.3 class A: a receive with deregistered memory is a local error: local protection error
// here, remote operational error at the requester.
func TestReceiveMemoryDeregistered(t *testing.T) {
	k := newTalk(t, RC)
	m, _ := k.region(k.pd, 64, mr.LocalWrite)
	k.world.recv(k.q, RecvWR{ID: 5,
		SGEs: []SGE{{Addr: m.Addr(), Length: 64, LKey: bth.LKey(m.LKey())}}})
	must(t, k.mrs.Deregister(m))
	k.say(send(0, seq(8)))
	k.hears("NAK remote operational error +0 msn=0")
	k.completes("5 local protection error")
	k.is(Err)
}

// Receives are scattered over their SGEs in order. Empty SGEs are skipped (IBA 10.7.3).
func TestReceiveScatter(t *testing.T) {
	k := newTalk(t, RC)
	data := seq(600)
	k.world.recv(k.q, RecvWR{ID: 9,
		SGEs: []SGE{k.sge(1000, 100), {}, k.sge(5000, 300), k.sge(3000, 250)}})
	k.snapshot()
	k.say(pkt{op: bth.RCSendFirst, data: data[:256]},
		pkt{op: bth.RCSendMiddle, psn: 1, data: data[256:512]},
		pkt{op: bth.RCSendLast, psn: 2, data: data[512:]})
	k.hears("ACK +2 msn=1")
	k.completes("9 success RECV 600B")
	got := string(k.mem[1000:1100]) + string(k.mem[5000:5300]) + string(k.mem[3000:3200])
	k.equal("received", got, string(data))
	k.unchanged([2]int{1000, 1100}, [2]int{5000, 5300}, [2]int{3000, 3200})
}

// IBA 9.4.1.1: SEND with invalidate invalidates an R_Key of the responder, which the completion
// names. The region itself stays registered.
func TestSendWithInvalidate(t *testing.T) {
	k := newTalk(t, RC)
	m, mem := k.region(k.pd, 64, mr.LocalWrite|mr.RemoteWrite|mr.RemoteInvalidate)
	key := bth.RKey(m.RKey())
	k.recvs(8)
	k.say(pkt{op: bth.RCWriteOnly, psn: 0, va: m.Addr(), key: key, n: 8, data: seq(8)})
	k.hears("ACK +0 msn=1")
	k.equal("written", string(mem[:8]), string(seq(8)))
	k.say(pkt{op: bth.RCSendOnlyInv, psn: 1, data: seq(4), inv: key})
	k.hears("ACK +1 msn=2")
	k.collect()
	k.equal("invalidated key", k.wcs[0].InvKey, key)
	k.completes("1 success RECV 4B inv")
	k.say(pkt{op: bth.RCWriteOnly, psn: 2, va: m.Addr(), key: key, n: 8, data: make([]byte, 8)})
	k.hears("NAK remote access error +2 msn=2")
	k.equal("after the refused WRITE", string(mem[:8]), string(seq(8)))
}

// IBA 9.9.3 class J: a key that cannot be invalidated fails the receive and this QP, without a NAK.
// Peers cannot invalidate keys of another PD, keys without the right, invalid keys or L_Keys.
func TestSendWithInvalidateOfWrongKey(t *testing.T) {
	const grant = mr.LocalWrite | mr.RemoteWrite
	for _, c := range []struct {
		name string
		key  func(k *talk) (bth.RKey, *mr.MR)
	}{
		{"unknown", func(*talk) (bth.RKey, *mr.MR) { return 0xbad, nil }},
		{"without the right", func(k *talk) (bth.RKey, *mr.MR) {
			m, _ := k.region(k.pd, 64, grant)
			return bth.RKey(m.RKey()), m
		}},
		{"another PD's", func(k *talk) (bth.RKey, *mr.MR) {
			pd, err := k.mrs.AllocPD()
			must(k.t, err)
			m, _ := k.region(pd, 64, grant|mr.RemoteInvalidate)
			return bth.RKey(m.RKey()), m
		}},
		{"an L_Key", func(k *talk) (bth.RKey, *mr.MR) {
			m, _ := k.region(k.pd, 64, grant|mr.RemoteInvalidate)
			return bth.RKey(m.LKey()), m
		}},
		{"invalidated before", func(k *talk) (bth.RKey, *mr.MR) {
			m, _ := k.region(k.pd, 64, grant|mr.RemoteInvalidate)
			must(k.t, k.mrs.Invalidate(k.pd, m.RKey()))
			return bth.RKey(m.RKey()), nil
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newTalk(t, RC)
			key, m := c.key(k)
			k.recvs(8, 8)
			k.say(pkt{op: bth.RCSendOnlyInv, data: seq(4), inv: key})
			k.hears()
			k.completes("1 memory management operation error", "2 Work Request Flushed Error")
			k.is(Err)
			if m != nil {
				if _, v := k.mrs.CheckRemote(m.PD(), m.RKey(), m.Addr(), 8,
					mr.RemoteWrite); v != mr.OK {
					t.Errorf("the key no longer works: %v", v)
				}
			}
		})
	}
}

// A duplicate of SEND with invalidate has no effect (IBA 9.7.5.1.3).
func TestDuplicateInvalidate(t *testing.T) {
	k := newTalk(t, RC)
	k.recvs(8)
	p := pkt{op: bth.RCSendOnlyInv, data: seq(4), inv: invalidable(k)}
	k.say(p)
	k.hears("ACK +0 msn=1")
	k.say(p)
	k.hears("ACK +0 msn=1")
	k.completes("1 success RECV 4B inv")
	k.is(RTS)
}

// Both sides of each refusal: the statuses of the responder's receive and the requester's send (IBA
// 9.9.2, 9.9.3, 11.6.2). The request after the failed one is flushed.
func TestStatusesOnBothSides(t *testing.T) {
	for _, c := range []struct {
		name       string
		wr         func(a, b *end) SendWR
		recv       int // bytes of b's receive; -1: none
		send, want string
	}{
		{"SEND too long", func(a,
			_ *end) SendWR {
			return SendWR{Op: OpSend, SGEs: []SGE{a.sge(0, 100)}}
		}, 99,
			"remote invalid request error", "local length error"},
		{"bad R_Key", func(a, b *end) SendWR {
			return SendWR{Op: OpWrite, SGEs: []SGE{a.sge(0, 100)}, RemoteAddr: b.mr.Addr(), RKey: 1}
		}, 99, "remote access error", "Work Request Flushed Error"},
		{"READ with bad R_Key", func(a, b *end) SendWR {
			return SendWR{Op: OpRead, SGEs: []SGE{a.sge(0, 100)}, RemoteAddr: b.mr.Addr(), RKey: 1}
		}, 99, "remote access error", "Work Request Flushed Error"},
		{"misaligned atomic", func(a, b *end) SendWR {
			return SendWR{Op: OpFetchAdd, SGEs: []SGE{a.sge(0, 8)}, RemoteAddr: b.mr.Addr() + 4,
				RKey: bth.RKey(b.mr.RKey())}
		}, 99, "remote invalid request error", "Work Request Flushed Error"},
		{"no receive", func(a,
			_ *end) SendWR {
			return SendWR{Op: OpSend, SGEs: []SGE{a.sge(0, 100)}}
		}, -1,
			"RNR retry counter exceeded", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 1)
			a, b := w.pair(RC, func(_ *InitAttr, at *Attr) { at.RNRRetry, at.MinRNRTimer = 2, 1 })
			if c.recv >= 0 {
				w.recv(b, RecvWR{ID: 1, SGEs: []SGE{w.ends[1].sge(0, c.recv)}})
			}
			wr := c.wr(w.ends[0], w.ends[1])
			wr.ID = 7
			w.post(a, wr, SendWR{ID: 8, Op: OpSend})
			if wc := w.wc(0); wc.ID != 7 || wc.Status.String() != c.send {
				t.Errorf("send completes as %s, want %s", wc.short(), c.send)
			}
			if wc := w.wc(0); wc.ID != 8 || wc.Status != WRFlushErr {
				t.Errorf("the next send completes as %s", wc.short())
			}
			if a.State() != Err {
				t.Errorf("requester is in %s", a.State())
			}
			if c.want != "" {
				if wc := w.wc(1); wc.Status.String() != c.want || b.State() != Err {
					t.Errorf("receive completes as %s, want %s; responder in %s", wc.short(),
						c.want, b.State())
				}
			} else if b.State() != RTS {
				t.Errorf("an RNR NAK failed the responder: %s", b.State())
			}
		})
	}
}
