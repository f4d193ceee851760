//go:build linux

package xdp

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/xdp/veth"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const manyPeers = 500

// manyNeighbors gives A an address and permanent neighbors in 10.99.0.0/16, and opens a Port there.
func manyNeighbors(t *testing.T) (*veth.Pair, *Port, []netip.Addr) {
	t.Helper()
	pair := newPair(t, veth.Options{})
	var peers []netip.Addr
	for i := range manyPeers {
		peers = append(peers, netip.AddrFrom4([4]byte{10, 99, byte(i / 100), byte(i%100 + 2)}))
	}
	onLink(t, &pair.A, func(l netlink.Link) error {
		return netlink.AddrAdd(l, netlinkAddr(netip.MustParsePrefix("10.99.9.1/16")))
	})
	onLink(t, &pair.A, func(l netlink.Link) error {
		for i, a := range peers {
			m := neighborMAC(i)
			if err := netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: a.AsSlice(),
				HardwareAddr: m[:], State: netlink.NUD_PERMANENT}); err != nil {
				return err
			}
		}
		return nil
	})
	return pair, openEnd(t, &pair.A, Options{}), peers
}

func neighborMAC(i int) bth.MAC { return bth.MAC{0x02, 0x99, 0, 0, byte(i >> 8), byte(i)} }

func setNeighbor(t *testing.T, pair *veth.Pair, a netip.Addr, m bth.MAC) {
	t.Helper()
	onLink(t, &pair.A, func(l netlink.Link) error {
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: a.AsSlice(),
			HardwareAddr: m[:], State: netlink.NUD_PERMANENT})
	})
}

// requests is a copy of the Port's counters of netlink requests.
type requests struct{ neighbors, solicits, routes, routeDumps, addrDumps uint64 }

func requestsOf(p *Port) requests {
	c := &p.net.count
	return requests{c.neighbors.Load(), c.solicits.Load(), c.routes.Load(), c.routeDumps.Load(),
		c.addrDumps.Load()}
}

func (r requests) since(before requests) requests {
	return requests{r.neighbors - before.neighbors, r.solicits - before.solicits,
		r.routes - before.routes, r.routeDumps - before.routeDumps, r.addrDumps - before.addrDumps}
}

// findAll looks for all peers and returns the number of those found.
func findAll(p *Port, peers []netip.Addr) (n int) {
	for i, a := range peers {
		if hop, ok := p.Find(netip.Addr{}, a); ok && hop.MAC == neighborMAC(i) {
			n++
		}
	}
	return n
}

// With many peers, each change costs lookups only for the peers that it concerns, and never a dump
// of the neighbor table.
func TestManyPeersFewLookups(t *testing.T) {
	pair, p, peers := manyNeighbors(t)
	start := requestsOf(p)
	const again = 50
	for _, list := range [][]netip.Addr{peers, peers[:again]} {
		for i, a := range list {
			hop, err := p.Resolve(context.Background(), netip.Addr{}, a)
			if err != nil || hop.MAC != neighborMAC(i) {
				t.Fatalf("Resolve(%v) = %+v, %v", a, hop, err)
			}
		}
	}
	if got := requestsOf(p).since(start); got != (requests{neighbors: manyPeers,
		routes: manyPeers + again}) {
		t.Errorf("resolving %d peers, and %d again: %+v", manyPeers, again, got)
	}

	before := requestsOf(p)
	if n := findAll(p, peers); n != manyPeers {
		t.Errorf("Find found %d of %d peers", n, manyPeers)
	}
	if got := requestsOf(p).since(before); got != (requests{}) {
		t.Errorf("Find of known peers: %+v", got)
	}

	// Other neighbors and routes of the host change. A change of a peer afterwards shows that the
	// notifications were handled.
	before = requestsOf(p)
	for i := range 20 {
		setNeighbor(t, pair, addr("10.99.200.1"), neighborMAC(i))
	}
	inNS(t, &pair.A, func() error {
		var errs []error
		for i := range byte(20) {
			r := &netlink.Route{LinkIndex: linkIndex("lo"),
				Dst: &net.IPNet{IP: net.IPv4(198, 51, i, 0), Mask: net.CIDRMask(24, 32)}}
			errs = append(errs, netlink.RouteAdd(r), netlink.RouteDel(r))
		}
		return errors.Join(errs...)
	})
	moved := bth.MAC{0x02, 0x98, 0, 0, 0, 1}
	setNeighbor(t, pair, peers[7], moved)
	await(t, p, "new MAC", func() bool {
		hop, ok := p.Find(netip.Addr{}, peers[7])
		return ok && hop.MAC == moved
	})
	if n := findAll(p, peers); n != manyPeers-1 {
		t.Errorf("Find found %d of %d unchanged peers", n, manyPeers-1)
	}
	if got := requestsOf(p).since(before); got != (requests{}) {
		t.Errorf("after changes that concern one neighbor: %+v", got)
	}

	// A route that concerns a fifth of the peers.
	before = requestsOf(p)
	addRoute(t, &pair.A, "10.99.1.0/24", "10.77.0.2", 0)
	await(t, p, "new route", func() bool {
		hop, ok := p.Find(netip.Addr{}, peers[100])
		return ok && hop.MAC == bth.MAC(pair.B.MAC)
	})
	if n := findAll(p, peers); n != manyPeers-101 {
		t.Errorf("Find found %d peers with their own MAC, want %d", n, manyPeers-101)
	}
	got := requestsOf(p).since(before)
	if got.routes < 100 || got.routes > 110 || got.neighbors > 1 || got.routeDumps > 4 ||
		got.addrDumps > 0 {
		t.Errorf("after a route for 100 peers: %+v", got)
	}
}

// neighborMessage returns a notification about a neighbor.
func neighborMessage(kind uint16, ip netip.Addr, m bth.MAC, state uint16) message {
	b := make([]byte, ndmsgLen)
	b[0] = byte(family(ip))
	binary.NativeEndian.PutUint16(b[ndState:], state)
	b = appendAttribute(b, ndaDst, ip.AsSlice())
	if m != (bth.MAC{}) {
		b = append(appendAttribute(b, ndaLLAddr, m[:]), 0, 0)
	}
	return message{kind: kind, data: b}
}

// Only notifications that change the MAC of a followed neighbor wake the user of the Port.
func TestNeighborNotifications(t *testing.T) {
	n, err := newNetwork()
	if err != nil {
		t.Fatal(err)
	}
	defer n.close()
	other, moved := addr("10.77.0.50"), bth.MAC{0x02, 0x77, 0, 0, 0, 0x99}
	n.hops.Lock()
	x := n.follow(hostB4)
	n.hops.Unlock()
	for _, c := range []struct {
		name    string
		message message
		changed bool
		mac     bth.MAC
		due     bool // a solicitation is planned
	}{
		{"other neighbor", neighborMessage(unix.RTM_NEWNEIGH, other, macB, unix.NUD_REACHABLE),
			false,
			bth.MAC{}, false},
		{"unresolved", neighborMessage(unix.RTM_NEWNEIGH, hostB4, bth.MAC{}, unix.NUD_INCOMPLETE),
			false, bth.MAC{}, true},
		{"found", neighborMessage(unix.RTM_NEWNEIGH, hostB4, macB, unix.NUD_REACHABLE), true, macB,
			false},
		{"again", neighborMessage(unix.RTM_NEWNEIGH, hostB4, macB, unix.NUD_REACHABLE), false, macB,
			false},
		{"stale", neighborMessage(unix.RTM_NEWNEIGH, hostB4, macB, unix.NUD_STALE), false, macB,
			true},
		{"probed", neighborMessage(unix.RTM_NEWNEIGH, hostB4, macB, unix.NUD_PROBE), false, macB,
			false},
		{"moved", neighborMessage(unix.RTM_NEWNEIGH, hostB4, moved, unix.NUD_REACHABLE), true,
			moved,
			false},
		{"failed", neighborMessage(unix.RTM_NEWNEIGH, hostB4, bth.MAC{}, unix.NUD_FAILED), false,
			moved, true},
		{"deleted", neighborMessage(unix.RTM_DELNEIGH, hostB4, moved, unix.NUD_REACHABLE), false,
			moved,
			true},
		{"back", neighborMessage(unix.RTM_NEWNEIGH, hostB4, moved, unix.NUD_REACHABLE), true, moved,
			false},
		{"no address", neighborMessage(unix.RTM_NEWNEIGH, netip.Addr{}, macB, unix.NUD_REACHABLE),
			false, moved, false},
		{"empty", message{kind: unix.RTM_NEWNEIGH}, false, moved, false},
	} {
		n.neighborChanged(c.message)
		changed := false
		select {
		case <-n.changed:
			changed = true
		default:
		}
		if changed != c.changed || x.mac != c.mac || (x.due != 0) != c.due {
			t.Errorf("%s: changed %v, %+v; want changed %v, MAC %v, due %v", c.name, changed, *x,
				c.changed, c.mac, c.due)
		}
	}
	if n.neighbors[other] != nil || len(n.neighbors) != 1 {
		t.Errorf("%d neighbors are followed, want 1", len(n.neighbors))
	}
	if got := n.count.neighbors.Load() + n.count.solicits.Load(); got != 0 {
		t.Errorf("%d requests, want none", got)
	}
}

// Lookups of unknown neighbors, which anyone can cause by connecting from forged addresses, are
// limited in total. Known neighbors are still found.
func TestSolicitationsAreLimited(t *testing.T) {
	_, p, peers := manyNeighbors(t)
	before := requestsOf(p)
	start := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	for i := range 2000 {
		wg.Go(func() {
			_, err := p.Resolve(ctx, netip.Addr{},
				netip.AddrFrom4([4]byte{10, 99, byte(100 + i/200),
					byte(i%200 + 1)}))
			if !errors.Is(err, ErrNoNeighbor) && !errors.Is(err, ErrNoRoute) {
				t.Errorf("Resolve of an unknown neighbor: %v", err)
			}
		})
	}
	wg.Wait()
	if _, err := p.Resolve(context.Background(), netip.Addr{}, peers[0]); err != nil {
		t.Errorf("Resolve of a known neighbor: %v", err)
	}
	seconds := uint64(time.Since(start)/time.Second) + 1
	got := requestsOf(p).since(before)
	if most := uint64(solicitations.Burst) + seconds*uint64(solicitations.PerSecond); got.solicits > most {
		t.Errorf("%d solicitations, want at most %d", got.solicits, most)
	}
	lookups := uint64(callerLookups.Burst) + seconds*uint64(callerLookups.PerSecond)
	if got.neighbors+got.routes > lookups || got.addrDumps > 0 {
		t.Errorf("%+v, want at most %d lookups", got, lookups)
	}
}

// The worker pauses in proportion to its work, but not for long: it may have taken long because the
// host is busy, and nobody else handles changes of addresses and routes.
func TestWorkerPause(t *testing.T) {
	for run, want := range map[time.Duration]time.Duration{
		0: workerPause, 10 * time.Millisecond: workerShare * 10 * time.Millisecond,
		3 * time.Second: maxPause,
	} {
		if got := pauseAfter(run); got != want {
			t.Errorf("pauseAfter(%v) = %v, want %v", run, got, want)
		}
	}
}

// The memory for next hops is limited, whatever addresses are asked for.
func TestNextHopsAreLimited(t *testing.T) {
	n, err := newNetwork()
	if err != nil {
		t.Fatal(err)
	}
	defer n.close()
	n.hops.Lock()
	a := addr("10.0.0.1")
	for range maxNeighbors + 100 {
		n.follow(a)
		a = a.Next()
	}
	if len(n.neighbors) != maxNeighbors {
		t.Errorf("%d neighbors, want %d", len(n.neighbors), maxNeighbors)
	}
	for _, x := range n.neighbors {
		x.used = -forgetAfter - time.Hour
	}
	n.dests[destKey{dst: a}] = &dest{used: -forgetAfter - time.Hour}
	n.hops.Unlock()
	n.forget()
	if len(n.neighbors) != 0 || len(n.dests) != 0 {
		t.Errorf("%d neighbors and %d destinations are left", len(n.neighbors), len(n.dests))
	}
}

// After lost notifications everything in use is read again, once.
func TestLostNotifications(t *testing.T) {
	_, p, peers := manyNeighbors(t)
	const some = 200
	peers = peers[:some]
	for _, a := range peers {
		if _, err := p.Resolve(context.Background(), netip.Addr{}, a); err != nil {
			t.Fatal(err)
		}
	}
	before := requestsOf(p)
	p.net.leave(func(w *work) { w.link, w.lost = true, true })
	await(t, p, "all lookups", func() bool {
		findAll(p, peers)
		got := requestsOf(p).since(before)
		return got.neighbors == some && got.routes == some
	})
	if n := findAll(p, peers); n != some {
		t.Errorf("Find found %d of %d peers", n, some)
	}
	if got := requestsOf(p).since(before); got.neighbors != some || got.routes != some {
		t.Errorf("after lost notifications: %+v", got)
	}
}

// A stale neighbor is verified without a caller. One that does not answer keeps its MAC.
func TestStaleNeighborIsVerified(t *testing.T) {
	pair := newPair(t, veth.Options{})
	p := openEnd(t, &pair.A, Options{})
	if _, err := p.Resolve(context.Background(), netip.Addr{}, hostB4); err != nil {
		t.Fatal(err)
	}
	before := requestsOf(p)
	set := func(state int, m bth.MAC) {
		onLink(t, &pair.A, func(l netlink.Link) error {
			return netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index,
				IP: hostB4.AsSlice(), HardwareAddr: m[:], State: state})
		})
	}
	set(netlink.NUD_STALE, macB)
	deadline := time.Now().Add(5 * time.Second)
	for requestsOf(p).since(before).solicits == 0 {
		if time.Now().After(deadline) {
			t.Fatal("a stale neighbor was not verified within 5 s")
		}
		time.Sleep(time.Millisecond)
	}
	set(netlink.NUD_FAILED, bth.MAC{})
	if hop, ok := p.Find(netip.Addr{}, hostB4); !ok || hop.MAC != macB {
		t.Errorf("Find of a failed neighbor = %+v, %v; want the last MAC", hop, ok)
	}
}

// Notifications about the interface that change nothing, such as those of router advertisements,
// cost no lookups of peers and wake nobody.
func TestLinkNotificationsWithoutChange(t *testing.T) {
	_, p, peers := manyNeighbors(t)
	peers = peers[:50]
	for _, a := range peers {
		if _, err := p.Resolve(context.Background(), netip.Addr{}, a); err != nil {
			t.Fatal(err)
		}
	}
	// Events of the test's own setup come first.
	await(t, p, "peers", func() bool { return findAll(p, peers) == len(peers) })
	before := requestsOf(p)
	deadline := time.Now().Add(30 * time.Second)
	for range 3 {
		dumps := requestsOf(p).routeDumps
		p.net.leave(func(w *work) { w.link = true })
		for requestsOf(p).routeDumps < dumps+2 {
			if time.Now().After(deadline) {
				t.Fatal("the addresses and routes were not read within 30 s")
			}
			time.Sleep(time.Millisecond)
		}
	}
	if findAll(p, peers) != len(peers) {
		t.Error("a peer was not found")
	}
	if got := requestsOf(p).since(before); got.neighbors+got.routes+got.solicits > 0 {
		t.Errorf("a notification without a change: %+v", got)
	}
}

// Truncated and malformed netlink messages are ignored.
func TestMalformedNetlink(t *testing.T) {
	n := &network{index: 3}
	whole := neighborMessage(unix.RTM_NEWNEIGH, hostB4, macB, unix.NUD_REACHABLE).data
	route := make([]byte, rtmsgLen)
	route[rtType] = unix.RTN_UNICAST
	route = appendAttribute(route, unix.RTA_MULTIPATH, []byte{0, 0, 0, 0, 9, 0, 0, 0})
	for _, b := range [][]byte{whole, route} {
		for i := range len(b) + 1 {
			for _, garbage := range [][]byte{nil, {3, 0, 1, 0}, {0xff, 0xff, 1, 0, 1}} {
				m := message{data: append(b[:i:i], garbage...)}
				e := parseNeighbor(m)
				_, ours, _ := n.parseRoute(m)
				cut := garbage == nil && i < len(whole)-2 // 2 bytes are padding
				if cut && e.usable() || ours {
					t.Errorf("%x: %+v, %v", m.data, e, ours)
				}
				_, _ = m.index(), m.errno()
			}
		}
	}
	for _, b := range [][]byte{nil, make([]byte, nlHeader-1), make([]byte, nlHeader),
		append([]byte{0xff}, make([]byte, nlHeader)...)} {
		for m := range messages(b) {
			t.Errorf("%x contains %+v", b, m)
		}
	}
}

// Routes follows the routing tables.
func TestRoutes(t *testing.T) {
	pair := newPair(t, veth.Options{})
	p := openEnd(t, &pair.A, Options{})
	for _, want := range []string{"10.77.0.0/24", "fd77::/64", "fe80::/64"} {
		if !slices.Contains(p.Routes(), netip.MustParsePrefix(want)) {
			t.Errorf("Routes() = %v, want %s", p.Routes(), want)
		}
	}
	for _, c := range []struct{ dst, via string }{{"198.51.100.0/24", "10.77.0.2"},
		{"2001:db8:5::/48", "fd77::2"}, {"0.0.0.0/0", "10.77.0.2"}} {
		prefix := netip.MustParsePrefix(c.dst)
		addRoute(t, &pair.A, c.dst, c.via, 0)
		await(t, p, "route "+c.dst, func() bool { return slices.Contains(p.Routes(), prefix) })
	}
	gone := netip.MustParsePrefix("10.77.0.0/24")
	onLink(t, &pair.A, func(l netlink.Link) error {
		return netlink.AddrDel(l, netlinkAddr(pair.A.IPv4))
	})
	await(t, p, "removed route", func() bool { return !slices.Contains(p.Routes(), gone) })
	onLink(t, &pair.A, func(l netlink.Link) error {
		return netlink.RouteAdd(&netlink.Route{Dst: mustCIDR("203.0.113.0/24"),
			MultiPath: []*netlink.NexthopInfo{
				{LinkIndex: linkIndex("lo")}, {LinkIndex: l.Attrs().Index}}})
	})
	await(t, p, "multipath route", func() bool {
		return slices.Contains(p.Routes(), netip.MustParsePrefix("203.0.113.0/24"))
	})
}

func mustCIDR(s string) *net.IPNet {
	_, n, err := net.ParseCIDR(s)
	if err != nil {
		panic(err)
	}
	return n
}
