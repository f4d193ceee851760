package qp

import (
	"fmt"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
)

// sayMarked passes a packet with an ECN mark to the QP.
func (k *talk) sayMarked(p pkt) {
	k.t.Helper()
	k.sayRaw(p.wire(k.q, k.base), func(p *bth.Packet) { p.TrafficClass = 0x20 | ecnCE })
}

func (k *talk) cnps(marked, sent uint64) {
	k.t.Helper()
	k.equal("marked packets", k.Counters().MarkedPkts, marked)
	k.equal("CNPs sent", k.Counters().SentCNPs, sent)
}

// Marked data is answered with one CNP per cnpInterval and QP (IBA A17.9.3), before the ACK.
func TestMarkedDataCausesCNPs(t *testing.T) {
	k := newTalk(t, RC)
	k.sayMarked(k.write(0, seq(8)))
	got := append(k.listen(), k.listen()...)
	if len(got) != 2 || got[0].Info.Op != bth.OpCNP || k.heard(got[1]) != "ACK +0 msn=1" {
		t.Fatalf("heard %d packets, want a CNP and an ACK", len(got))
	}
	if f := got[0].BTH.Fields(); !f.BECN || f.DestQP != peerQPN || f.PSN != 0 ||
		f.PKey != bth.DefaultPKey || len(got[0].Payload) != 16 {
		t.Errorf("CNP %+v with %d bytes", f, len(got[0].Payload))
	}
	since := k.now
	for i := 1; k.now < since+cnpInterval-1000; i++ {
		k.sayMarked(k.write(i, seq(8)))
		for _, p := range k.listen() {
			if p.Info.Op == bth.OpCNP {
				t.Fatalf("second CNP after %d ns", k.now-since)
			}
		}
	}
	k.now = since + cnpInterval + cnpUnit
	marked := k.Counters().MarkedPkts
	k.sayMarked(send(int(marked), nil)) // no receive is posted
	k.hears("CNP", fmt.Sprintf("RNR NAK timer 12 %+d msn=%d", marked, marked))
	k.cnps(marked+1, 2)
}

// READ responses carry data too. They also slow down the QP that requested them.
func TestMarkedResponsesCauseCNPs(t *testing.T) {
	k := newTalk(t, RC)
	k.post(k.wr(1, OpRead, 8))
	k.listen()
	k.sayMarked(pkt{op: bth.RCReadResponseOnly, psn: 0, data: seq(8)})
	k.completes("1 success RDMA_READ 8B")
	k.hears("CNP")
	k.cnps(1, 1)
}

// A mark is answered even if the packet is out of order or a duplicate, because it says something
// about the network.
func TestMarkedPacketsOutOfOrderCauseCNPs(t *testing.T) {
	k := newTalk(t, RC)
	k.sayMarked(k.write(3, seq(8)))
	k.hears("CNP", "NAK PSN sequence error +0 msn=0")
	k.now += 2 * cnpInterval
	k.sayMarked(k.write(-1, seq(8)))
	k.hears("CNP", "ACK -1 msn=0")
	k.cnps(2, 2)
}

// Requests without payload, ACKs, other ECN values and other transports cause no CNP.
func TestNoCNP(t *testing.T) {
	k := newTalk(t, RC)
	k.post(k.wr(1, OpWrite, 8))
	k.listen()
	k.sayMarked(ack(0))
	k.completes("1 success RDMA_WRITE 8B")
	k.sayMarked(k.read(0, 0, 8))
	k.hears("RDMA READ response Only +0 msn=1 8B")
	k.cnps(2, 0)
	for ecn := range uint8(ecnCE) {
		p := k.write(1+int(ecn), seq(8))
		k.sayRaw(p.wire(k.q, k.base), func(p *bth.Packet) { p.TrafficClass = 0xfc | ecn })
	}
	k.hears("ACK +3 msn=4")
	k.cnps(2, 0)

	k = newTalk(t, UC)
	k.sayMarked(k.ucWrite(bth.UCWriteOnly, 0, 8, seq(8)))
	k.hears()
	k.cnps(0, 0)
}

// A QP in ERR answers no marks, and reset forgets a pending CNP.
func TestNoCNPInOtherStates(t *testing.T) {
	k := newTalk(t, RC)
	must(t, k.modify(Err))
	k.hears()
	k.sayMarked(k.write(0, seq(8)))
	k.hears()
	k.cnps(1, 0)

	k = newTalk(t, RC)
	k.sayMarked(k.write(0, seq(8)))
	must(t, k.modify(Reset))
	k.hears()
	k.cnps(1, 0)
}

// A QP that only receives marked data stays idle between CNPs: nothing keeps it scheduled.
func TestIdleAfterCNP(t *testing.T) {
	k := newTalk(t, RC)
	quiet := k.write(0, seq(8))
	quiet.noAck = true
	k.sayMarked(quiet)
	k.hears("CNP")
	if k.HasTransmit(k.now) {
		t.Error("HasTransmit() = true after the CNP, want false")
	}
	k.now += ackLate
	k.hears("ACK +0 msn=1")
	k.hears()
	if !k.Idle() {
		t.Error("Idle() = false, want true")
	}
}

// The time of the last CNP is stored in 32 bits. Whatever the clock, the next one is possible after
// cnpInterval, and not before.
func TestCNPTime(t *testing.T) {
	const wrap = Time(1<<32) * cnpUnit
	for _, at := range []Time{0, 1, cnpUnit, 12345678, wrap - 2*cnpUnit, wrap - cnpUnit, wrap - 1,
		wrap, 5*wrap + 3} {
		c := cnpTimeOf(at)
		for _, d := range []Time{0, 1, cnpInterval - 1, cnpInterval} {
			if d < cnpInterval && !c.recent(at+d) {
				t.Errorf("a CNP at %d is not recent %d ns later", at, d)
			}
		}
		for _, d := range []Time{cnpInterval + 2*cnpUnit, second, 1000 * second, wrap / 2} {
			if c.recent(at + d) {
				t.Errorf("a CNP at %d is recent %d ns later", at, d)
			}
		}
	}
	if cnpTime(0).recent(0) || cnpTime(0).recent(wrap) {
		t.Error("a CNP is recent although none was sent")
	}
}

// CNPs from the QP's peer are counted, those from others are dropped.
func TestReceivedCNPs(t *testing.T) {
	cnp := func(k *talk, key bth.PKey) []byte {
		b := make([]byte, bth.CNPLen)
		bth.PutCNP(b, key, k.q.qpn)
		return b
	}
	k := newTalk(t, RC)
	for range 3 {
		k.sayRaw(cnp(k, bth.DefaultPKey), nil)
	}
	k.hears()
	k.is(RTS)
	k.equal("CNPs received", k.Counters().RcvdCNPs, uint64(3))
	k.sayRaw(cnp(k, bth.DefaultPKey), func(p *bth.Packet) { p.Src = bth.GID{15: 9} })
	k.equal("dropped by address", k.Counters().DropAddress, uint64(1))
	k.sayRaw(cnp(k, 0x8001), nil)
	k.equal("dropped by partition", k.Counters().DropPKey, uint64(1))
	k.equal("CNPs received", k.Counters().RcvdCNPs, uint64(3))

	k = newTalk(t, UC)
	k.sayRaw(cnp(k, bth.DefaultPKey), nil)
	k.equal("dropped by type", k.Counters().DropType, uint64(1))
	k.equal("CNPs received", k.Counters().RcvdCNPs, uint64(0))
}

// RC packets are sent with ECT(0), unless the user's traffic class has ECN bits. Other transports
// keep the traffic class.
func TestECT(t *testing.T) {
	for _, c := range []struct {
		typ         Type
		class, want uint8
	}{
		{RC, 0, 2}, {RC, 0x68, 0x6a}, {RC, 0x69, 0x69}, {RC, 0x6a, 0x6a}, {RC, 0x6b, 0x6b},
		{UC, 0x68, 0x68},
	} {
		k := newTalk(t, c.typ)
		path := k.q.fullPath()
		a := path.Address()
		a.TrafficClass = c.class
		must(t, k.q.Modify(k.now, &Attr{Path: frame.NewPath(&a)}, AttrPath))
		got := k.q.fullPath()
		if got.Address().TrafficClass != c.want {
			t.Errorf("%v: traffic class %#x becomes %#x, want %#x", c.typ, c.class,
				got.Address().TrafficClass, c.want)
		}
		a.TrafficClass = c.want
		if got != frame.NewPath(&a) {
			t.Errorf("%v: the headers do not have traffic class %#x", c.typ, c.want)
		}
	}
}

// Packets are not ECN-capable while a QP has no congestion control.
func TestECTFollowsCongestionControl(t *testing.T) {
	class := func(k *talk) uint8 {
		p := k.q.fullPath()
		b := make([]byte, bth.MaxNetHeader)
		p.Put(b)
		if got := b[14]<<4 | b[15]>>4; got != p.Address().TrafficClass {
			t.Errorf("traffic class of the headers = %#x, want %#x", got, p.Address().TrafficClass)
		}
		return p.Address().TrafficClass
	}
	k := newTalk(t, RC)
	k.equal("traffic class", class(k), uint8(2))
	for _, c := range []struct {
		a    Congestion
		want uint8
	}{{CongestionNone, 0}, {CongestionDCQCN, 2}, {CongestionAdaptive, 2}, {CongestionNone, 0}} {
		must(t, k.q.Modify(k.now, &Attr{Congestion: c.a}, AttrCongestion))
		k.equal("traffic class", class(k), c.want)
	}
	path := k.q.fullPath()
	must(t, k.q.Modify(k.now, &Attr{Path: path}, AttrPath))
	k.equal("traffic class of a new path", class(k), uint8(0))
	k.post(k.wr(1, OpWrite, 8))
	if got := k.listen(); len(got) != 1 {
		t.Errorf("%d packets, want the WRITE", len(got))
	}
}

// Marks and CNPs cause no allocations.
func TestMarksAllocateNothing(t *testing.T) {
	c := newCable(t, RC, 1024)
	c.pkt.TrafficClass = ecnCE
	tr := &hotTraffic(c, 20_000)[0]
	run := func() {
		c.now += 2 * cnpInterval
		c.once(tr, nil)
	}
	run()
	if n := testing.AllocsPerRun(50, run); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
	if n := c.ends[0].Counters().RcvdCNPs; n < 50 {
		t.Errorf("%d CNPs received, want at least 50", n)
	}
}
