package roce

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/gorxe/gorxe/xdp/veth"
)

// newVeth creates a veth pair, each interface in its own network namespace.
func newVeth(t testing.TB, o veth.Options) *veth.Pair {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: makes network namespaces and attaches XDP programs")
	}
	pair, err := veth.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pair.Close(); err != nil {
			t.Error(err)
		}
	})
	return pair
}

// openEnd opens one interface of the pair as a device.
func openEnd(t testing.TB, e *veth.End, o XDPOptions, c rigConfig) *end {
	t.Helper()
	o.NetNS = e.Fd()
	d, err := Open(e.Iface, append([]Option{WithXDP(o)}, c.opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return newEnd(t, d, c)
}

// conversation runs every operation between a and b once and checks the data.
func conversation(t *testing.T, a, b *end) {
	t.Helper()
	remote := b.mr.Remote()
	want := fill(a.mr.Bytes()[:30000], 1)
	must(t, a.qp.PostSend(SendWR{ID: 1, Op: OpWrite, Flags: Signaled,
		SGEs: []SGE{a.mr.SGE(0, 30000)}, RemoteAddr: remote.Addr, RKey: remote.RKey}))
	pollOK(t, 1, WCWrite, a.cq, b.cq)
	b.Counters() // the race detector does not see that the kernel's network orders a and b
	if !bytes.Equal(b.mr.Bytes()[:30000], want) {
		t.Fatal("WRITE: data differs")
	}
	must(t, a.qp.PostSend(SendWR{ID: 2, Op: OpRead, Flags: Signaled,
		SGEs: []SGE{a.mr.SGE(30000, 30000)}, RemoteAddr: remote.Addr, RKey: remote.RKey}))
	pollOK(t, 2, WCRead, a.cq, b.cq)
	if !bytes.Equal(a.mr.Bytes()[30000:60000], want) {
		t.Fatal("READ: data differs")
	}
	must(t, b.qp.PostRecv(RecvWR{ID: 3, SGEs: []SGE{b.mr.SGE(32000, 10000)}}))
	must(t, a.qp.PostSend(SendWR{ID: 4, Op: OpSend, Flags: Signaled,
		SGEs: []SGE{a.mr.SGE(0, 9999)}}))
	pollOK(t, 4, WCSend, a.cq, b.cq)
	if wc := pollOK(t, 3, WCRecv, b.cq, a.cq); wc.ByteLen != 9999 ||
		!bytes.Equal(b.mr.Bytes()[32000:32000+9999], want[:9999]) {
		t.Fatal("SEND: data differs")
	}
	b.mr.Store64(0, 5)
	must(t, a.qp.PostSend(SendWR{ID: 5, Op: OpFetchAdd, Flags: Signaled,
		SGEs: []SGE{a.mr.SGE(0, 8)}, RemoteAddr: remote.Addr, RKey: remote.RKey, SwapAdd: 6}))
	pollOK(t, 5, WCFetchAdd, a.cq, b.cq)
	if a.mr.Load64(0) != 5 || b.mr.Load64(0) != 11 {
		t.Fatalf("FETCH_ADD: old %d, now %d", a.mr.Load64(0), b.mr.Load64(0))
	}
}

func ipNet(s string) *net.IPNet {
	ip, n, err := net.ParseCIDR(s)
	if err != nil {
		panic(err)
	}
	n.IP = ip
	return n
}

func TestVeth(t *testing.T) {
	pair := newVeth(t, veth.Options{})
	for _, mode := range []XDPMode{XDPGeneric, XDPNative} {
		for _, kind := range []GIDKind{GIDIPv4, GIDIPv6, GIDLinkLocal} {
			t.Run(mode.String()+"/"+string(kind), func(t *testing.T) {
				bothModes(t, func(t *testing.T, p Progress) {
					leakCheck(t)
					c := rigConfig{opts: []Option{WithProgress(p)}}
					a, b := openEnd(t, &pair.A, XDPOptions{Mode: mode}, c), openEnd(t, &pair.B,
						XDPOptions{Mode: mode}, c)
					qa, qb := qpOn(t, a, kind), qpOn(t, b, kind)
					connect(t, qa, qb)
					must(t, a.qp.Close())
					must(t, b.qp.Close())
					a.qp, b.qp = qa, qb
					conversation(t, a, b)
					conversation(t, b, a)
				})
			})
		}
	}
}

// qpOn creates a QP with a local address of the given kind.
func qpOn(t *testing.T, e *end, kind GIDKind) *QP {
	t.Helper()
	for _, g := range e.GIDs() {
		if g.Kind == kind {
			q, err := e.CreateQP(e.pd, QPConfig{SendCQ: e.cq, GIDIndex: &g.Index})
			must(t, err)
			return q
		}
	}
	t.Fatalf("no %s address in %v", kind, e.GIDs())
	return nil
}

// TestVethBigMTU: with path MTU 4096 frames need more than one buffer.
func TestVethBigMTU(t *testing.T) {
	pair := newVeth(t, veth.Options{MTU: 4300})
	a, b := openEnd(t, &pair.A, XDPOptions{}, rigConfig{}), openEnd(t, &pair.B, XDPOptions{},
		rigConfig{})
	connect(t, a.qp, b.qp)
	if m := a.Info().ActiveMTU; m != 4096 {
		t.Skipf("path MTU %d: this kernel has no AF_XDP multi-buffer", m)
	}
	if q, err := a.qp.Query(); err != nil || q.PathMTU != 4096 {
		t.Fatalf("path MTU %d, %v", q.PathMTU, err)
	}
	conversation(t, a, b)
}

// TestVethLinkDown: a WRITE that is sent while the link is down completes when the link is up
// again, and the port reports both changes with events.
func TestVethLinkDown(t *testing.T) {
	pair := newVeth(t, veth.Options{})
	a, b := openEnd(t, &pair.A, XDPOptions{}, rigConfig{}), openEnd(t, &pair.B, XDPOptions{},
		rigConfig{})
	connect(t, a.qp, b.qp)
	conversation(t, a, b)
	setLink := func(up bool) {
		must(t, pair.A.Do(func() error {
			l, err := netlink.LinkByName(pair.A.Iface)
			if err != nil {
				return err
			}
			if up {
				return netlink.LinkSetUp(l)
			}
			return netlink.LinkSetDown(l)
		}))
	}
	setLink(false)
	nextEvent(t, a.Device, EventPortErr)
	requests := func() uint64 { c := a.Counters(); return c.SentPkts - c.SentAcks }
	before := requests()
	must(t, a.qp.PostSend(SendWR{ID: 1, Op: OpWrite, Flags: Signaled, SGEs: []SGE{a.mr.SGE(0, 8)},
		RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
	eventually(t, "packet while the link is down", func() bool { return requests() > before })
	setLink(true)
	nextEvent(t, a.Device, EventPortActive)
	pollOK(t, 1, WCWrite, a.cq)
	conversation(t, a, b)
}

// TestVethAddressChange adds and removes addresses of a running device. The GID table follows, and
// indexes of other addresses stay.
func TestVethAddressChange(t *testing.T) {
	pair := newVeth(t, veth.Options{})
	a := openEnd(t, &pair.A, XDPOptions{}, rigConfig{})
	before := a.GIDs()
	addr := &netlink.Addr{IPNet: ipNet("10.99.0.1/24")}
	change := func(f func(netlink.Link) error) {
		must(t, pair.A.Do(func() error {
			l, err := netlink.LinkByName(pair.A.Iface)
			if err != nil {
				return err
			}
			return f(l)
		}))
		nextEvent(t, a.Device, EventGIDChange)
	}
	change(func(l netlink.Link) error { return netlink.AddrAdd(l, addr) })
	if got := a.GIDs(); len(got) != len(before)+1 || got[len(before)].Addr.String() != "10.99.0.1" {
		t.Errorf("%v", got)
	}
	change(func(l netlink.Link) error { return netlink.AddrDel(l, addr) })
	if got := a.GIDs(); len(got) != len(before) || got[0] != before[0] {
		t.Errorf("%v, were %v", got, before)
	}
}

// TestVethBlocking: both sides sleep in the kernel between messages, and each message wakes them.
func TestVethBlocking(t *testing.T) {
	pair := newVeth(t, veth.Options{})
	bothModes(t, func(t *testing.T, p Progress) {
		c := rigConfig{opts: []Option{WithProgress(p), WithExpert(Expert{Spin: NoSpin})}}
		a, b := openEnd(t, &pair.A, XDPOptions{}, c), openEnd(t, &pair.B, XDPOptions{}, c)
		connect(t, a.qp, b.qp)
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		const rounds = 100
		recv := func(e *end) error {
			if err := e.qp.PostRecv(RecvWR{ID: 1}); err != nil {
				return err
			}
			return nil
		}
		await := func(e *end) error {
			var wcs [1]WC
			for {
				if _, err := e.cq.Wait(ctx, wcs[:]); err != nil {
					return err
				}
				if wcs[0].Status != Success {
					return errors.New(wcs[0].Status.String())
				}
				if wcs[0].Opcode == WCRecv {
					return nil
				}
			}
		}
		send := func(e *end) error { return e.qp.PostSend(SendWR{Op: OpSend, Flags: Signaled}) }
		must(t, recv(a))
		must(t, recv(b))
		var echo sync.WaitGroup
		echo.Add(1)
		go func() {
			defer echo.Done()
			for range rounds {
				if err := errors.Join(await(b), recv(b), send(b)); err != nil {
					t.Errorf("echo: %v", err)
					return
				}
			}
			if err := b.qp.Drain(ctx); err != nil { // Manual: sends the last echo
				t.Errorf("echo: %v", err)
			}
		}()
		for range rounds {
			must(t, errors.Join(send(a), await(a), recv(a)))
		}
		echo.Wait()
	})
}

// TestOpenRefuses: Open returns the right error, and nothing is left over.
func TestOpenRefuses(t *testing.T) {
	pair := newVeth(t, veth.Options{})
	leakCheck(t)
	o := WithXDP(XDPOptions{NetNS: pair.A.Fd()})
	if _, err := Open("nosuch0", o); !errors.Is(err, ErrNoInterface) {
		t.Errorf("no interface: %v", err)
	}
	d, err := Open(pair.A.Iface, o)
	must(t, err)
	if _, err := Open(pair.A.Iface, o); !errors.Is(err, ErrBusy) {
		t.Errorf("open twice: %v", err)
	}
	must(t, d.Close())
	d, err = Open(pair.A.Iface, o)
	must(t, err)
	must(t, d.Close())
}
