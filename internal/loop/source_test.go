package loop

import (
	"net/netip"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/qp"
)

func prefixes(list ...string) (p []netip.Prefix) {
	for _, s := range list {
		p = append(p, netip.MustParsePrefix(s))
	}
	return p
}

func TestSources(t *testing.T) {
	subnets := prefixes("10.77.0.1/24", "192.0.2.1/31", "198.51.100.7/32", "fd77::1/64", "fe80::1/64")
	local := NewSources(subnets, prefixes("10.77.0.0/24", "10.78.0.0/16", "fe80::/64", "fd78::/32",
		"fd78:0:8000::/33"))
	for _, c := range []struct {
		addr          string
		any, withOnly bool // without known routes, and with the routes above
	}{
		{"10.77.0.2", true, true},
		{"10.77.0.254", true, true},
		{"10.78.255.255", true, true},
		{"10.79.0.0", true, false},
		{"10.76.255.255", true, false},
		{"8.8.8.8", true, false},
		{"192.0.2.0", true, true},
		{"198.51.100.8", true, false},
		{"fd77::2", true, true},
		{"fe80::2", true, true},
		{"fd78:0:ffff::1", true, true},
		{"fd79::1", true, false},
		{"::2", true, false},
		{"0.0.0.0", false, false},
		{"0.1.2.3", false, false},
		{"127.0.0.1", false, false},
		{"127.255.255.255", false, false},
		{"224.0.0.1", false, false},
		{"239.1.1.1", false, false},
		{"240.0.0.1", false, false},
		{"255.255.255.255", false, false},
		{"10.77.0.1", false, false},
		{"10.77.0.255", false, false},
		{"10.77.0.0", false, false},
		{"192.0.2.1", false, false},
		{"198.51.100.7", false, false},
		{"::", false, false},
		{"::1", false, false},
		{"ff02::1", false, false},
		{"fd77::1", false, false},
		{"fe80::1", false, false},
	} {
		g := bth.GIDFromAddr(netip.MustParseAddr(c.addr))
		if got := NewSources(subnets, nil).accept(&g); got != c.any {
			t.Errorf("accept(%s) = %v without routes, want %v", c.addr, got, c.any)
		}
		if got := local.accept(&g); got != c.withOnly {
			t.Errorf("accept(%s) = %v, want %v", c.addr, got, c.withOnly)
		}
	}
	everywhere := NewSources(subnets, prefixes("0.0.0.0/0", "10.0.0.0/8"))
	for addr, want := range map[string]bool{"8.8.8.8": true, "10.9.9.9": true, "127.0.0.1": false,
		"2001:db8::1": false, "::1.2.3.4": false} {
		g := bth.GIDFromAddr(netip.MustParseAddr(addr))
		if got := everywhere.accept(&g); got != want {
			t.Errorf("with an IPv4 default route: accept(%s) = %v, want %v", addr, got, want)
		}
	}
	none := NewSources(nil, []netip.Prefix{})
	if g := bth.GIDFromAddr(netip.MustParseAddr("10.1.1.1")); none.accept(&g) {
		t.Error("an address was accepted without any route")
	}
	g := bth.GIDFromIPv4([4]byte{10, 78, 1, 1})
	if n := testing.AllocsPerRun(100, func() { local.accept(&g) }); n != 0 {
		t.Errorf("accept allocates %v times", n)
	}
}

// qp1Host counts the packets to QP1.
type qp1Host struct {
	noHost
	packets int
}

func (h *qp1Host) HandleQP1(qp.Time, *bth.Packet) { h.packets++ }

// datagram returns a frame with a UD packet.
func datagram(a *frame.Address, dest bth.QPN) []byte {
	var enc frame.Encoder
	b := make([]byte, 512)
	p := frame.NewPath(a)
	n := p.Put(b)
	netLen := n
	info := bth.UDSendOnly.Info()
	bth.PutBTH(b[n:], &bth.BTHFields{Opcode: bth.UDSendOnly, PKey: bth.DefaultPKey, DestQP: dest})
	bth.PutDETH(b[n+int(info.DETH):], bth.QKeyGSI, bth.QPNGSI)
	n += int(info.HeaderLen) + 256 + bth.ICRCLen
	enc.Finish(b[:n], netLen)
	return b[:n]
}

// Datagrams that no peer can have sent are dropped before the engine and QP1, and counted.
func TestImpossibleDatagramsAreDropped(t *testing.T) {
	a, b := newPair(t, pairConfig{})
	local := netip.MustParseAddr("10.77.0.2")
	remote := netip.MustParseAddr("10.77.0.1")
	group := netip.MustParseAddr("239.1.2.3")
	groupMAC := bth.MAC{1, 0, 0x5e, 1, 2, 3}
	b.SetLocal([]bth.GID{bth.GIDFromAddr(local)}, NewSources(prefixes("10.77.0.2/24"), nil))
	ud, err := b.eng.CreateQP(qp.InitAttr{Type: qp.UD, PD: b.mr.PD(), SendCQ: b.cq, RecvCQ: b.cq,
		SQDepth: 1, RQDepth: 1, MaxSendSGE: 1, MaxRecvSGE: 1})
	must(t, err)
	must(t, b.eng.AttachMulticast(ud, bth.GIDFromAddr(group)))
	h := &qp1Host{}
	b.host = h
	from, to := a.port.Info().MAC, b.port.Info().MAC
	type counters struct{ local, mac, vlan, source, qp1, engine uint64 }
	read := func() counters {
		c := b.Counters()
		return counters{c.NotLocal, c.WrongMAC, c.WrongVLAN, c.BadSource, uint64(h.packets),
			b.eng.Counters().RcvdPkts}
	}
	for _, c := range []struct {
		name     string
		src, dst netip.Addr
		mac      bth.MAC
		vlan     uint16
		dest     bth.QPN
		want     counters
	}{
		{"QP1", remote, local, to, 0, bth.QPNGSI, counters{qp1: 1}},
		{"priority tag", remote, local, to, 5 << 13, bth.QPNGSI, counters{qp1: 1}},
		{"UD QP", remote, local, to, 0, ud.QPN(), counters{engine: 1}},
		{"group", remote, group, groupMAC, 0, bth.QPNMulticast, counters{engine: 1}},
		{"VLAN", remote, local, to, 7, bth.QPNGSI, counters{vlan: 1}},
		{"VLAN with priority", remote, local, to, 5<<13 | 7, ud.QPN(), counters{vlan: 1}},
		{"group in a VLAN", remote, group, groupMAC, 7, bth.QPNMulticast, counters{vlan: 1}},
		{"loopback source", netip.MustParseAddr("127.0.0.1"), local, to, 0, bth.QPNGSI,
			counters{source: 1}},
		{"unspecified source", netip.IPv4Unspecified(), local, to, 0, bth.QPNGSI,
			counters{source: 1}},
		{"broadcast source", netip.MustParseAddr("255.255.255.255"), local, to, 0, ud.QPN(),
			counters{source: 1}},
		{"subnet broadcast as source", netip.MustParseAddr("10.77.0.255"), local, to, 0, ud.QPN(),
			counters{source: 1}},
		{"own source", local, local, to, 0, bth.QPNGSI, counters{source: 1}},
		{"multicast source", group, local, to, 0, bth.QPNGSI, counters{source: 1}},
		{"own source to a group", local, group, groupMAC, 0, bth.QPNMulticast, counters{source: 1}},
		{"broadcast MAC", remote, local, bth.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, 0,
			bth.QPNGSI, counters{mac: 1}},
		{"MAC of a group", remote, local, groupMAC, 0, bth.QPNGSI, counters{mac: 1}},
		{"group with unicast MAC", remote, group, to, 0, bth.QPNMulticast, counters{mac: 1}},
		{"group with another group's MAC", remote, group, bth.MAC{1, 0, 0x5e, 1, 2, 4}, 0,
			bth.QPNMulticast, counters{mac: 1}},
		{"another address", remote, local.Next(), to, 0, bth.QPNGSI, counters{local: 1}},
		{"group, but QP1", remote, group, groupMAC, 0, bth.QPNGSI, counters{local: 1}},
	} {
		before := read()
		b.handleFrame(b.now(), datagram(&frame.Address{SrcMAC: from, DstMAC: c.mac, VLAN: c.vlan,
			Src: bth.GIDFromAddr(c.src), Dst: bth.GIDFromAddr(c.dst), SrcPort: 0xc000,
			HopLimit: 64}, c.dest), false)
		got := read()
		got = counters{got.local - before.local, got.mac - before.mac, got.vlan - before.vlan,
			got.source - before.source, got.qp1 - before.qp1, got.engine - before.engine}
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	if n := b.ctr.Drops; n != [frame.NumReasons]uint64{} {
		t.Errorf("the decoder dropped frames: %v", n)
	}
}

// A connected QP accepts only packets in the VLAN of its path. The priority in the tag does not
// matter.
func TestConnectedQPChecksVLAN(t *testing.T) {
	a, b := newPair(t, pairConfig{})
	a.write(t, b, 8, qp.Signaled)
	a.TryStep()
	tag := func(s *side, tci uint16) {
		attr := s.qp.Query()
		addr := attr.Path.Address()
		addr.VLAN = tci
		must(t, s.qp.Modify(s.now(), &qp.Attr{Path: frame.NewPath(&addr)}, qp.AttrPath))
	}
	for _, c := range []struct {
		local, remote uint16 // tags that the sides send
		ok            bool
	}{
		{0, 0, true}, {0, 5 << 13, true}, {0, 7, false}, {7, 7, true}, {7, 5<<13 | 7, true},
		{7, 8, false}, {7, 0, false},
	} {
		tag(a, c.remote)
		tag(b, c.local)
		before := *b.eng.Counters()
		frames := b.ctr.RxFrames
		a.write(t, b, 8, 0)
		driveUntil(t, a, b, func() bool { return b.ctr.RxFrames > frames })
		got := b.eng.Counters().DropAddress == before.DropAddress
		if got != c.ok {
			t.Errorf("path with tag %#x, packet with tag %#x: accepted %v, want %v", c.local,
				c.remote, got, c.ok)
		}
		tag(a, c.local) // let the retransmission through
		tag(b, c.local)
		done := a.eng.Counters().Completions
		a.write(t, b, 8, qp.Signaled)
		driveUntil(t, a, b, func() bool { return a.eng.Counters().Completions > done })
	}
}

// Loopback addresses are refused, unless the port allows them; the device's own never are allowed.
func TestLoopbackSources(t *testing.T) {
	for _, allow := range []bool{false, true} {
		s := NewSources(prefixes("127.0.0.2/8", "10.77.0.1/24"), nil)
		if allow {
			s.AllowLoopback()
		}
		for addr, want := range map[string]bool{"127.0.0.1": allow, "::1": allow, "127.0.0.2": false,
			"0.0.0.1": false, "239.1.1.1": false, "10.77.0.2": true} {
			g := bth.GIDFromAddr(netip.MustParseAddr(addr))
			if got := s.accept(&g); got != want {
				t.Errorf("with AllowLoopback %v: accept(%s) = %v, want %v", allow, addr, got, want)
			}
		}
	}
}
