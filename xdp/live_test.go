//go:build linux

package xdp

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/xdp/veth"
	"github.com/vishvananda/netlink"
)

// await waits until ok returns true.
func await(t *testing.T, p *Port, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(5 * time.Second)
	for !ok() {
		select {
		case <-p.Changed():
		case <-deadline:
			t.Fatalf("%s: not within 5 s; Info() = %+v, Addrs() = %v", what, p.Info(), p.Addrs())
		}
	}
}

// While the link is down, Send returns an error and does not block, and Info reports the state.
// Afterwards frames flow again.
func TestLinkDownAndUp(t *testing.T) {
	for _, mode := range modesToTest {
		t.Run(mode.String(), func(t *testing.T) {
			pair := newPair(t, veth.Options{})
			a, b := openEnd(t, &pair.A, Options{Mode: mode}), openEnd(t, &pair.B,
				Options{Mode: mode})
			exchange(t, a, b, packet{}.build(pattern(64, 1)))
			for round := range 2 {
				onLink(t, &pair.A, netlink.LinkSetDown)
				await(t, a, "down", func() bool { return !a.Info().Up })
				await(t, b, "peer down", func() bool { return !b.Info().Up })
				for range 100 { // more than the number of buffers
					var bufs [32]driver.Buf
					n := a.Alloc(bufs[:])
					if n != len(bufs) {
						t.Fatalf("Alloc() = %d while down", n)
					}
					for i := range bufs {
						bufs[i].B = bufs[i].B[:copy(bufs[i].B, packet{}.build([]byte("stale")))]
					}
					if _, err := a.Send(bufs[:]); !errors.Is(err, ErrLinkDown) {
						t.Fatalf("Send while down: %v", err)
					}
				}
				if err := a.Wait(time.Millisecond); err != nil {
					t.Fatalf("Wait while down: %v", err)
				}
				onLink(t, &pair.A, netlink.LinkSetUp)
				await(t, a, "up", func() bool { return a.Info().Up })
				await(t, b, "peer up", func() bool { return b.Info().Up })
				fresh := packet{}.build(pattern(200, round))
				send(t, a, fresh)
				got := receive(t, b, 34, 200*time.Millisecond)
				if len(got) == 0 || len(got) > 33 || string(got[len(got)-1]) != string(fresh) {
					t.Fatalf("received %d frames after the link came back", len(got))
				}
				exchange(t, b, a, packet{back: true}.build(pattern(200, round)))
			}
		})
	}
}

// If the peer is down, frames are dropped and counted, but Send reports no error.
func TestPeerDown(t *testing.T) {
	pair := newPair(t, veth.Options{})
	a := openEnd(t, &pair.A, Options{})
	onLink(t, &pair.B, netlink.LinkSetDown)
	await(t, a, "no carrier", func() bool { return !a.Info().Up })
	var bufs [64]driver.Buf
	n := a.Alloc(bufs[:])
	for i := range n {
		bufs[i].B = bufs[i].B[:copy(bufs[i].B, packet{}.build(nil))]
	}
	if sent, _ := a.Send(bufs[:n]); sent != 0 {
		t.Errorf("sent %d frames without a carrier", sent)
	}
	if s := a.Stats(); s.TxDropped != uint64(n) {
		t.Errorf("TxDropped = %d, want %d", s.TxDropped, n)
	}
}

// A change of the MTU takes effect while the port is open.
func TestMTUChanges(t *testing.T) {
	for _, mode := range modesFor(9000) {
		t.Run(mode.String(), func(t *testing.T) {
			pair := newPair(t, veth.Options{MTU: 1500})
			a, b := openEnd(t, &pair.A, Options{Mode: mode}), openEnd(t, &pair.B,
				Options{Mode: mode})
			for _, mtu := range []int{4200, 1100, 9000, 4200} {
				for _, e := range []*veth.End{&pair.A, &pair.B} {
					onLink(t, e, func(l netlink.Link) error { return netlink.LinkSetMTU(l, mtu) })
				}
				// 9000 is more than a buffer holds.
				want := min(mtu, a.capacity-etherLen-vlanLen)
				for _, p := range []*Port{a, b} {
					await(t, p, "MTU", func() bool {
						return p.Info().MTU == want &&
							p.Info().MaxFrame == want+18 && p.Info().Up
					})
				}
				f := packet{}.build(pattern(want-28, mtu))
				exchange(t, a, b, f, packet{}.build(pattern(64, 1)), f)
				exchange(t, b, a, packet{back: true}.build(pattern(want-28, mtu)))
			}
		})
	}
}

// Added and removed addresses appear in the order of the GID table.
func TestAddressChanges(t *testing.T) {
	pair := newPair(t, veth.Options{})
	a := openEnd(t, &pair.A, Options{})
	first := a.Addrs()
	if len(first) != 3 || !first[0].Addr().IsLinkLocalUnicast() || first[1] != pair.A.IPv4 ||
		first[2] != pair.A.IPv6 {
		t.Fatalf("Addrs() = %v", first)
	}
	extra := netip.MustParsePrefix("192.0.2.9/28")
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: extra.Addr().AsSlice(), Mask: net.CIDRMask(28, 32)}}
	onLink(t, &pair.A, func(l netlink.Link) error { return netlink.AddrAdd(l, addr) })
	await(t, a, "new address", func() bool { return len(a.Addrs()) == 4 && a.Addrs()[2] == extra })
	onLink(t, &pair.A, func(l netlink.Link) error { return netlink.AddrDel(l, addr) })
	await(t, a, "address gone", func() bool { return slices.Equal(a.Addrs(), first) })
	flush(t, &pair.A)
	await(t, a, "no address", func() bool { return len(a.Addrs()) == 0 })
	// Without an address frames still flow. The layer above decides what to do.
	b := openEnd(t, &pair.B, Options{})
	exchange(t, a, b, packet{}.build(nil))
}

// If the interface is removed, the port returns ErrGone without a crash or a busy loop.
func TestInterfaceRemoved(t *testing.T) {
	for _, mode := range modesToTest {
		t.Run(mode.String(), func(t *testing.T) {
			pair := newPair(t, veth.Options{})
			a, b := openEnd(t, &pair.A, Options{Mode: mode}), openEnd(t, &pair.B,
				Options{Mode: mode})
			exchange(t, a, b, packet{}.build(nil))
			onLink(t, &pair.B, netlink.LinkDel)
			for _, p := range []*Port{a, b} {
				await(t, p, "removed", func() bool { return !p.Info().Up })
				start := time.Now()
				if err := p.Wait(20 * time.Millisecond); !errors.Is(err, ErrGone) ||
					time.Since(start) < 10*time.Millisecond {
					t.Errorf("Wait() = %v after %v", err, time.Since(start))
				}
				var bufs [1]driver.Buf
				if p.Alloc(bufs[:]) == 1 {
					bufs[0].B = bufs[0].B[:64]
					if _, err := p.Send(bufs[:]); !errors.Is(err, ErrGone) {
						t.Errorf("Send() = %v", err)
					}
				}
				if n := p.Receive(bufs[:]); n != 0 {
					t.Errorf("Receive() = %d", n)
				}
				if err := p.Close(); err != nil {
					t.Errorf("Close() = %v", err)
				}
			}
		})
	}
}
