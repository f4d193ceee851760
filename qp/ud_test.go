package qp

import (
	"bytes"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
)

const talkQKey = bth.QKey(0x1234) // set by connect

// IBA 9.8.3, 11.4.1.2: a received datagram starts with 40 bytes for the GRH: an IPv6 header fills
// them, an IPv4 header the last 20 (RoCEv2 A17.4.5.2). The completion names the sender.
func TestUDReceive(t *testing.T) {
	for _, c := range []struct {
		name string
		ipv4 bool
		grh  []byte
	}{
		{"IPv6", false, bytes.Repeat([]byte{0x60}, 40)},
		{"IPv4", true, append(make([]byte, 20), bytes.Repeat([]byte{0x45}, 20)...)},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newTalk(t, UD)
			// the split is within the GRH
			k.world.recv(k.q, RecvWR{ID: 1, SGEs: []SGE{k.sge(0, 10), k.sge(100, 90)}})
			for i := range k.mem[:200] {
				k.mem[i] = 0xaa
			}
			k.snapshot()
			k.say(pkt{op: bth.UDSendOnlyImm, data: seq(60), qkey: talkQKey, src: 0x4711, imm: 6,
				ipv4: c.ipv4, from: bth.GID{3: 4}})
			k.hears()
			k.collect()
			wc := k.wcs[0]
			k.equal("SrcQP", wc.SrcQP, bth.QPN(0x4711))
			flags := WCWithImm | WCGRH
			if c.ipv4 {
				flags |= WCIPv4 // RoCEv2 A17.4.5.1
			}
			k.equal("flags", wc.Flags, flags)
			k.completes("1 success RECV 100B imm=6")
			got := append(bytes.Clone(k.mem[:10]), k.mem[100:190]...)
			k.equal("GRH", string(got[:40]), string(c.grh))
			k.equal("payload", string(got[40:]), string(seq(60)))
			k.unchanged([2]int{0, 10}, [2]int{100, 190})
		})
	}
}

// IBA 9.6.1.4, 9.8.3: a datagram with a wrong Q_Key, without a receive, or too long for it is
// dropped and counted. It uses up no receive and changes nothing.
func TestUDDrops(t *testing.T) {
	good := pkt{op: bth.UDSendOnly, data: seq(60), qkey: talkQKey}
	for _, c := range []struct {
		name string
		p    pkt
		n    func(c *Counters) uint64
	}{
		{"wrong Q_Key", pkt{op: bth.UDSendOnly, data: seq(8), qkey: talkQKey + 1},
			func(c *Counters) uint64 { return c.DropQKey }},
		{"too long by one", pkt{op: bth.UDSendOnly, data: seq(61), qkey: talkQKey},
			func(c *Counters) uint64 { return c.DropLength }},
	} {
		k := newTalk(t, UD)
		k.recvs(100)
		k.snapshot()
		k.say(c.p)
		k.hears()
		k.completes()
		k.unchanged()
		k.equal(c.name, c.n(k.Counters()), uint64(1))
		k.say(good)
		k.completes("1 success RECV 100B")
		k.say(good)
		k.completes()
		k.equal("no receive", k.Counters().DropNoRecv, uint64(1))
		k.is(RTS)
	}
	k := newTalk(t, UD) // a receive without space for the GRH accepts nothing, not even 0 bytes
	k.recvs(39)
	k.say(pkt{op: bth.UDSendOnly, qkey: talkQKey})
	k.completes()
	k = newTalk(t, UD)
	k.recvs(40)
	k.say(pkt{op: bth.UDSendOnly, qkey: talkQKey})
	k.completes("1 success RECV 40B")
}

// IBA 10.2.5: the request's Q_Key is sent, unless its high bit is set: then the QP's own is. PSNs
// count up although no receiver checks them. Each request goes to the path of its AH.
func TestUDSend(t *testing.T) {
	k := newTalk(t, UD)
	p := k.path(1)
	far := frame.NewPath(&frame.Address{DstMAC: bth.MAC{99},
		Src: bth.GIDFromIPv4([4]byte{10, 0, 0, 1}), Dst: bth.GIDFromIPv4([4]byte{10, 0, 0, 2})})
	k.post(SendWR{ID: 1, Op: OpSend, Flags: Signaled, Inline: seq(9), AH: NewAH(&p, nil),
		RemoteQPN: 5, RemoteQKey: 77},
		SendWR{ID: 2, Op: OpSendImm, Flags: Signaled, SGEs: []SGE{k.sge(0, 1024)},
			AH: NewAH(&far, nil), RemoteQPN: 6, RemoteQKey: 0x80000000, Imm: 3})
	k.HandleDoorbells(k.now)
	var buf [2048]byte
	for i, want := range []struct {
		netLen int
		mark   byte
		dest   bth.QPN
		qkey   bth.QKey
		size   int
	}{{62, 0, 5, 77, 9}, {42, 99, 6, talkQKey, 1024}} {
		tx := k.PollTransmit(k.now, buf[:])
		var got bth.Packet
		must(t, got.Parse(buf[tx.NetLen:tx.Len]))
		k.equal("net header", tx.NetLen, want.netLen)
		k.equal("destination MAC", buf[0], want.mark)
		k.equal("DestQP", got.BTH.DestQP(), want.dest)
		k.equal("Q_Key", got.DETH().QKey(), want.qkey)
		k.equal("SrcQP", got.DETH().SrcQP(), k.q.qpn)
		k.equal("payload", len(got.Payload), want.size)
		k.equal("PSN", got.BTH.PSN(), k.base.Add(uint32(i)))
	}
	k.completes("1 success SEND 9B", "2 success SEND 1024B")
}

// The Q_Key of a QP can change in RTS (IBA 11.2.4.2).
func TestUDQKeyChanges(t *testing.T) {
	k := newTalk(t, UD)
	k.recvs(100, 100)
	must(t, k.q.Modify(k.now, &Attr{QKey: 9}, AttrQKey))
	k.say(pkt{op: bth.UDSendOnly, qkey: talkQKey}, pkt{op: bth.UDSendOnly, qkey: 9})
	k.completes("1 success RECV 40B")
}

// States in which nothing is received (IBA 10.3.1).
func TestUDStates(t *testing.T) {
	for _, st := range []State{Reset, Init, Err} {
		k := newTalk(t, UD)
		k.recvs(100)
		k.q.setState(st)
		k.say(pkt{op: bth.UDSendOnly, qkey: talkQKey})
		k.completes()
		k.equal("drops", k.Counters().DropNoQP, uint64(1))
	}
}
