package roce

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce/cm"
	"github.com/gorxe/gorxe/xdp"
	"github.com/gorxe/gorxe/xdp/veth"
	"github.com/vishvananda/netlink"
)

// findingNet is a network that remembers next hops, and counts the calls.
type findingNet struct {
	driver.Network
	changed         chan struct{}
	mac             atomic.Uint32 // the last bytes of the MAC of all neighbors
	resolves, finds atomic.Uint64
}

func (n *findingNet) hop(src netip.Addr) driver.Hop {
	m := n.mac.Load()
	return driver.Hop{MAC: bth.MAC{2, 0, 0, 9, byte(m >> 8), byte(m)}, Src: src, MTU: 1500}
}

func (n *findingNet) Resolve(_ context.Context, src, _ netip.Addr) (driver.Hop, error) {
	n.resolves.Add(1)
	return n.hop(src), nil
}

func (n *findingNet) Find(src, _ netip.Addr) (driver.Hop, bool) {
	n.finds.Add(1)
	return n.hop(src), true
}

func (n *findingNet) Changed() <-chan struct{} { return n.changed }

// After a change the watcher asks a network that remembers next hops once per peer, and never waits
// for one.
func TestWatcherFindsNextHops(t *testing.T) {
	const peers, handles = 100, 3
	link := newLink(t, loopback.Config{})
	finder := &findingNet{Network: link.Port(0), changed: make(chan struct{}, 1)}
	d := newDevice(t, link, 0, WithExpert(Expert{Network: finder}))
	var ahs []*AH
	for i := range peers * handles {
		ah, err := d.CreateAH(context.Background(), AHAttr{
			Remote: bth.GIDFromIPv4([4]byte{10, 77, 0, byte(10 + i%peers)})})
		must(t, err)
		ahs = append(ahs, ah)
	}
	resolves := finder.resolves.Load()
	for round := uint32(1); round <= 3; round++ {
		finds := finder.finds.Load()
		finder.mac.Store(round)
		finder.changed <- struct{}{}
		want := finder.hop(netip.Addr{}).MAC
		eventually(t, "new MAC in all paths", func() bool {
			for _, ah := range ahs {
				if ah.Path().Address().DstMAC != want {
					return false
				}
			}
			return true
		})
		if n := finder.finds.Load() - finds; n != peers {
			t.Errorf("round %d: %d calls of Find for %d peers", round, n, peers)
		}
	}
	if n := finder.resolves.Load() - resolves; n != 0 {
		t.Errorf("the watcher called Resolve %d times", n)
	}
}

// On a veth pair, requests from addresses without a route are dropped before the connection
// manager; they are answered when there is a route.
func TestUnroutedRequestIsDropped(t *testing.T) {
	pair := newVeth(t, veth.Options{})
	raw, err := xdp.Open(pair.A.Iface, xdp.Options{NetNS: pair.A.Fd()})
	must(t, err)
	defer raw.Close()
	d, err := Open(pair.B.Iface, WithXDP(XDPOptions{NetNS: pair.B.Fd()}))
	must(t, err)
	defer d.Close()
	send := func(src netip.Addr) {
		t.Helper()
		var enc frame.Encoder
		path := frame.NewPath(&frame.Address{SrcMAC: raw.Info().MAC, DstMAC: d.Info().MAC,
			Src: bth.GIDFromAddr(src), Dst: bth.GIDFromAddr(pair.B.IPv4.Addr()), SrcPort: 0xc000,
			HopLimit: 64})
		var bufs [1]driver.Buf
		if raw.Alloc(bufs[:]) != 1 {
			t.Fatal("no send buffer")
		}
		b := bufs[0].B
		netLen := path.Put(b)
		info := bth.UDSendOnly.Info()
		clear(b[netLen:][:int(info.HeaderLen)+cm.MADLen])
		bth.PutBTH(b[netLen:], &bth.BTHFields{Opcode: bth.UDSendOnly, PKey: DefaultPKey,
			DestQP: bth.QPNGSI})
		bth.PutDETH(b[netLen+int(info.DETH):], bth.QKeyGSI, bth.QPNGSI)
		bufs[0].B = b[:netLen+int(info.HeaderLen)+cm.MADLen+bth.ICRCLen]
		enc.Finish(bufs[0].B, netLen)
		n, err := raw.Send(bufs[:])
		must(t, err)
		if n != 1 {
			t.Fatal("the frame was not sent")
		}
	}
	off := netip.MustParseAddr("198.51.100.9")
	for i, step := range []struct {
		src      netip.Addr
		accepted bool
	}{
		{pair.A.IPv4.Addr(), true}, {off, false}, {netip.MustParseAddr("127.0.0.1"), false},
		{pair.B.IPv4.Addr(), false}, {netip.MustParseAddr("10.77.0.255"), false},
	} {
		before := d.Counters()
		send(step.src)
		eventually(t, "packet", func() bool { return d.Counters().RxFrames > before.RxFrames })
		c := d.Counters()
		if got := c.GSIReceived > before.GSIReceived; got != step.accepted ||
			(c.DropSource > before.DropSource) == step.accepted {
			t.Errorf("packet %d from %v: accepted %v, want %v", i, step.src, got, step.accepted)
		}
	}
	addRoute(t, &pair.B, "198.51.100.0/24", pair.A.IPv4.Addr())
	eventually(t, "routed request", func() bool {
		before := d.Counters()
		send(off)
		eventually(t, "packet", func() bool { return d.Counters().RxFrames > before.RxFrames })
		return d.Counters().GSIReceived > before.GSIReceived
	})
}

func addRoute(t *testing.T, e *veth.End, dst string, via netip.Addr) {
	t.Helper()
	prefix := netip.MustParsePrefix(dst)
	must(t, e.Do(func() error {
		return netlink.RouteAdd(&netlink.Route{LinkIndex: e.Index, Gw: via.AsSlice(),
			Dst: &net.IPNet{IP: prefix.Addr().AsSlice(),
				Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}})
	}))
}
