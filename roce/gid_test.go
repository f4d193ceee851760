package roce

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/loopback"
)

func prefixes(s ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, a := range s {
		ps = append(ps, netip.MustParsePrefix(a))
	}
	return ps
}

// An address keeps its GID index while others change. The index of a removed address is reused.
func TestGIDIndexesAreStable(t *testing.T) {
	var gids []GIDEntry
	for _, step := range []struct {
		addrs   []netip.Prefix
		want    string
		changed bool
	}{
		{prefixes("fe80::1/64", "10.0.0.1/24"), "0=fe80::1 1=10.0.0.1", true},
		{prefixes("fe80::1/64", "10.0.0.1/24"), "0=fe80::1 1=10.0.0.1", false},
		{prefixes("fe80::1/64", "10.0.0.9/24", "10.0.0.1/24", "fd00::1/64"),
			"0=fe80::1 1=10.0.0.1 2=10.0.0.9 3=fd00::1", true},
		{prefixes("fe80::1/64", "10.0.0.9/24", "fd00::1/64"), "0=fe80::1 2=10.0.0.9 3=fd00::1",
			true},
		{prefixes("fe80::1/64", "10.0.0.9/24", "10.0.0.77/8", "fd00::1/64"),
			"0=fe80::1 1=10.0.0.77 2=10.0.0.9 3=fd00::1", true},
		{nil, "", true},
	} {
		var changed bool
		gids, changed = mergeGIDs(gids, step.addrs)
		var got []string
		for i, e := range gids {
			if !e.Addr.IsValid() {
				continue
			}
			if e.Index != i || e.GID != bth.GIDFromAddr(e.Addr) {
				t.Errorf("entry %d: %+v", i, e)
			}
			got = append(got, string(rune('0'+i))+"="+e.Addr.String())
		}
		if s := strings.Join(got, " "); s != step.want || changed != step.changed {
			t.Errorf("%v: %q changed %v; want %q, %v", step.addrs, s, changed, step.want,
				step.changed)
		}
	}
}

// changingNet is a network whose addresses and neighbors a test changes.
type changingNet struct {
	driver.Network
	mu      sync.Mutex
	addrs   []netip.Prefix // nil: those of Network
	mac     bth.MAC        // of neighbors; zero: that of Network
	changed chan struct{}
}

func (n *changingNet) change(f func()) {
	n.mu.Lock()
	f()
	n.mu.Unlock()
	n.changed <- struct{}{}
}

func (n *changingNet) Addrs() []netip.Prefix {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.addrs != nil {
		return n.addrs
	}
	return n.Network.Addrs()
}

func (n *changingNet) Resolve(ctx context.Context, src, dst netip.Addr) (driver.Hop, error) {
	h, err := n.Network.Resolve(ctx, src, dst)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mac != (bth.MAC{}) {
		h.MAC = n.mac
	}
	return h, err
}

func (n *changingNet) Changed() <-chan struct{} { return n.changed }

// Packets to a removed address are dropped, a new address gets a GID, and both cause an event.
func TestAddressChange(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		link := newLink(t, loopback.Config{})
		net := &changingNet{Network: link.Port(1), changed: make(chan struct{}, 1)}
		a := newEnd(t, newDevice(t, link, 0, WithProgress(p)), rigConfig{})
		b := newEnd(t, newDevice(t, link, 1, WithProgress(p), WithExpert(Expert{Network: net})),
			rigConfig{})
		connect(t, a.qp, b.qp)
		before := b.GIDs()
		used := b.qp.Local().GID

		net.change(func() {
			for _, e := range before {
				if e.GID != used {
					net.addrs = append(net.addrs, netip.PrefixFrom(e.Addr, 64))
				}
			}
			net.addrs = append(net.addrs, netip.MustParsePrefix("192.0.2.1/24"))
		})
		nextEvent(t, b.Device, EventGIDChange)
		for _, e := range b.GIDs() {
			if e.GID == used {
				t.Errorf("GIDs() still contains %v", used)
			}
		}
		must(t, a.qp.PostSend(SendWR{ID: 1, Op: OpWrite, Flags: Signaled,
			SGEs: []SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
		for c := b.Counters(); c.DropNotOurs == 0; c = b.Counters() {
			a.Progress()
			b.Progress()
		}

		net.change(func() { net.addrs = nil })
		nextEvent(t, b.Device, EventGIDChange)
		pollOK(t, 1, WCWrite, a.cq, b.cq) // the retransmission arrives
	})
}

// foreignRoute is a network whose routes lead through another interface, and not from the addresses
// of the device.
type foreignRoute struct{ driver.Network }

var errNoRoute = errors.New("no route from there")

func (n foreignRoute) Resolve(_ context.Context, src, _ netip.Addr) (driver.Hop, error) {
	if src.IsValid() {
		return driver.Hop{}, errNoRoute
	}
	return driver.Hop{Src: netip.MustParseAddr("198.51.100.7")}, nil
}

// If the source address of a route is not one of the device, its own address must have a route.
func TestForeignSource(t *testing.T) {
	link := newLink(t, loopback.Config{})
	d := newDevice(t, link, 0, WithExpert(Expert{Network: foreignRoute{link.Port(0)}}))
	remote := bth.GIDFromAddr(netip.MustParseAddr("203.0.113.1"))
	_, _, err := d.ResolvePath(context.Background(), -1, remote, PathOptions{})
	if !errors.Is(err, ErrUnreachable) || !errors.Is(err, errNoRoute) {
		t.Errorf("ResolvePath() = %v, want ErrUnreachable", err)
	}
}

// Subnets follows the addresses of the interface.
func TestSubnets(t *testing.T) {
	link := newLink(t, loopback.Config{})
	net := &changingNet{Network: link.Port(0), changed: make(chan struct{}, 1)}
	d := newDevice(t, link, 0, WithExpert(Expert{Network: net}))
	for _, c := range []struct {
		addrs []netip.Prefix
		want  string
	}{
		{[]netip.Prefix{netip.MustParsePrefix("192.0.2.7/24"), netip.MustParsePrefix("fe80::7/64"),
			netip.MustParsePrefix("192.0.2.9/24")}, "[192.0.2.0/24 fe80::/64]"},
		{[]netip.Prefix{netip.MustParsePrefix("198.51.100.1/32")}, "[198.51.100.1/32]"},
	} {
		net.change(func() { net.addrs = c.addrs })
		if got := fmt.Sprint(d.Subnets()); got != c.want {
			t.Errorf("Subnets() = %s, want %s", got, c.want)
		}
	}
}

// Activity changes when the peer sends something and when it acknowledges something.
func TestActivity(t *testing.T) {
	link := newLink(t, loopback.Config{})
	a, b := newEnd(t, newDevice(t, link, 0), rigConfig{}), newEnd(t, newDevice(t, link, 1),
		rigConfig{})
	connect(t, a.qp, b.qp)
	activity := func(q *QP) uint64 {
		n, err := q.Activity()
		must(t, err)
		return n
	}
	sender, receiver := activity(a.qp), activity(b.qp)
	if sender != activity(a.qp) {
		t.Error("Activity changed without traffic")
	}
	must(t, a.qp.PostSend(SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{a.mr.SGE(0, 8)},
		RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
	pollOK(t, 0, WCWrite, a.cq, b.cq)
	if activity(a.qp) == sender || activity(b.qp) == receiver {
		t.Error("Activity did not change on both sides of a WRITE")
	}
	must(t, a.qp.Close())
	if _, err := a.qp.Activity(); !errors.Is(err, ErrClosed) {
		t.Errorf("Activity() = %v after Close, want ErrClosed", err)
	}
}

// When the MAC address of a peer changes, QPs and address handles follow.
func TestNeighborChange(t *testing.T) {
	link := newLink(t, loopback.Config{})
	net := &changingNet{Network: link.Port(0), changed: make(chan struct{}, 1)}
	a := newEnd(t, newDevice(t, link, 0, WithExpert(Expert{Network: net})), rigConfig{})
	b := newEnd(t, newDevice(t, link, 1), rigConfig{})
	connect(t, a.qp, b.qp)
	ah, err := a.CreateAH(context.Background(), AHAttr{Remote: b.qp.Local().GID})
	must(t, err)

	mac := bth.MAC{2, 0, 0, 9, 9, 9}
	old := *ah.Path()
	net.change(func() { net.mac = mac })
	eventually(t, "new MAC address in both paths", func() bool {
		q, err := a.qp.Query()
		must(t, err)
		return ah.Path().Address().DstMAC == mac && q.Path.Address().DstMAC == mac
	})
	want := old.Address()
	want.DstMAC = mac
	if p := ah.Path(); *p != frame.NewPath(&want) {
		t.Errorf("path %+v, want %+v", p.Address(), want)
	}
}

// An Endpoint can be exchanged as JSON, with the GID as text.
func TestEndpointJSON(t *testing.T) {
	a, _ := newRig(t, rigConfig{opts: []Option{WithProgress(Manual)}})
	want := a.qp.Local()
	if want.GID.IsZero() || want.MTU == 0 || want.PKey != DefaultPKey {
		t.Fatalf("%+v", want)
	}
	text, err := json.Marshal(want)
	must(t, err)
	var got Endpoint
	must(t, json.Unmarshal(text, &got))
	if got != want || !strings.Contains(string(text), want.GID.String()) {
		t.Errorf("%s decodes to %+v", text, got)
	}
}

// All counters have a name, and JSON contains them all.
func TestCountersHaveNames(t *testing.T) {
	a, b := newRig(t, rigConfig{opts: []Option{WithProgress(Manual)}})
	must(t, a.qp.PostSend(SendWR{ID: 1, Op: OpWrite, Flags: Signaled, SGEs: []SGE{a.mr.SGE(0, 8)},
		RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
	pollOK(t, 1, WCWrite, a.cq, b.cq)
	c := a.Counters()
	text, err := json.Marshal(c)
	must(t, err)
	var m map[string]uint64
	must(t, json.Unmarshal(text, &m))
	if m["sent_pkts"] == 0 || m["sent_pkts"] != c.Get("sent_pkts") || m["completions"] != 1 {
		t.Errorf("%s", text)
	}
	must(t, a.Close())
	if after := a.Counters(); after.SentPkts < c.SentPkts {
		t.Errorf("after Close: %d packets, before: %d", after.SentPkts, c.SentPkts)
	}
	checkCounterNames(t)
}
