package ucma

import (
	"net/netip"
	"syscall"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce/cm"
)

// bindAt creates an ID and binds it to an address.
func (p *program) bindAt(uid uint64, space uint16, at string) uint32 {
	p.t.Helper()
	id := p.create(uid, space)
	p.do(cmdBindIP, enc(netip.MustParseAddrPort(at), id), 0)
	return id
}

// A loopback address that the device does not have is no device's, as with the kernel: libfabric
// binds to 127.0.0.1 to find out whether there are devices. Its listener only serves this host.
func TestLoopbackAddress(t *testing.T) {
	for space, refused := range map[uint16]struct {
		kind   uint32
		status int32
	}{
		psTCP: {eventRejected, int32(cm.ReasonInvalidServiceID)},
		psUDP: {eventUnreachable, int32(cm.SIDRUnsupportedService)},
	} {
		p := pairOn(t, testbed.Config{UDP: true}) // has other loopback addresses
		a, b := p[0], p[1]
		id := b.bindAt(1, space, "127.0.0.1:7174")
		route := b.do(cmdQueryRoute, enc(id, uint32(0)), routeSize)
		if got := bth.GID(route[24:40]); !got.IsZero() || route[196] != 0 {
			t.Errorf("local GID = %v, port %d, want none", got, route[196])
		}
		b.fails(syscall.EINVAL, cmdInitQPAttr, enc(id, uint32(1)), qpAttrSize)
		b.do(cmdListen, enc(id, uint32(8)), 0)

		out := a.resolve(2, space, b)
		a.connect(out, testParam)
		if e := a.next(refused.kind); e.status != refused.status {
			t.Errorf("status for another host = %d, want %d", e.status, refused.status)
		}

		own := b.bindAt(3, space, "127.0.0.1:0")
		b.do(cmdResolveIP, enc(netip.AddrPort{}, netip.MustParseAddrPort("0.0.0.0:7174"), own,
			uint32(2000)), 0)
		b.next(eventAddrResolved)
		b.do(cmdResolveRoute, enc(own, uint32(2000)), 0)
		b.next(eventRouteResolved)
		b.connect(own, testParam)
		if e := b.next(eventConnectRequest); e.uid != 1 {
			t.Errorf("request to the listener %d, want 1", e.uid)
		}
	}
}

// A device on a loopback address serves other devices on such addresses.
func TestOwnLoopbackAddress(t *testing.T) {
	p := pairOn(t, testbed.Config{UDP: true})
	established(t, p[0], p[1])
}

// Listeners on all IPv4 and on all IPv6 addresses share a port if the latter wants only those. tgtd
// opens both.
func TestFamilies(t *testing.T) {
	p := pair(t)
	a, b := p[0], p[1]
	four := b.bindAt(1, psTCP, "0.0.0.0:7174")
	both := b.create(2, psTCP)
	b.fails(syscall.EADDRNOTAVAIL, cmdBindIP, enc(netip.MustParseAddrPort("[::]:7174"), both), 0)
	six := b.create(3, psTCP)
	b.option(six, optionAFOnly, 1)
	b.do(cmdBindIP, enc(netip.MustParseAddrPort("[::]:7174"), six), 0)
	b.do(cmdListen, enc(six, uint32(8)), 0)

	id := a.resolve(4, psTCP, b) // IPv4
	a.connect(id, testParam)
	if e := a.next(eventRejected); e.status != int32(cm.ReasonInvalidServiceID) {
		t.Errorf("status without a listener on IPv4 = %d", e.status)
	}
	b.do(cmdListen, enc(four, uint32(8)), 0)
	id = a.resolve(5, psTCP, b)
	a.connect(id, connParam{qpn: 78})
	if e := b.next(eventConnectRequest); e.uid != 1 {
		t.Errorf("request to the listener %d, want 1", e.uid)
	}
	b.destroy(four)
	b.destroy(six)
	loop := b.bindAt(7, psTCP, "127.0.0.1:7174")
	b.fails(syscall.EADDRNOTAVAIL, cmdBindIP, enc(netip.AddrPortFrom(b.addr, service), both), 0)
	b.destroy(loop)
	b.do(cmdBindIP, enc(netip.MustParseAddrPort("[::]:7174"), both), 0)
	b.do(cmdListen, enc(both, uint32(8)), 0)
	id = a.resolve(6, psTCP, b)
	a.connect(id, connParam{qpn: 79})
	if e := b.next(eventConnectRequest); e.uid != 2 {
		t.Errorf("request to the listener %d, want 2", e.uid)
	}
	b.destroy(both)

	// A program may also ask for both families.
	four = b.create(8, psTCP)
	b.option(four, optionAFOnly, 0)
	b.do(cmdBindIP, enc(netip.MustParseAddrPort("0.0.0.0:7174"), four), 0)
	six = b.create(9, psTCP)
	b.option(six, optionAFOnly, 1)
	b.fails(syscall.EADDRNOTAVAIL, cmdBindIP, enc(netip.MustParseAddrPort("[::]:7174"), six), 0)
}

// IDs that allow it share a port until one wants to listen. A conflict of unspecified addresses has
// another error number.
func TestSharedPort(t *testing.T) {
	p := pair(t)[0]
	own, any := netip.AddrPortFrom(p.addr, 7174), netip.MustParseAddrPort("0.0.0.0:7174")
	var ids [2]uint32
	for i := range ids {
		ids[i] = p.create(uint64(i), psTCP)
		p.option(ids[i], optionReuse, 1)
		p.do(cmdBindIP, enc(own, ids[i]), 0)
	}
	other := p.create(3, psTCP)
	p.fails(syscall.EADDRINUSE, cmdBindIP, enc(own, other), 0)
	p.fails(syscall.EADDRNOTAVAIL, cmdBindIP, enc(any, other), 0)
	p.fails(syscall.EADDRINUSE, cmdListen, enc(ids[0], uint32(8)), 0)
	p.destroy(ids[1])
	p.do(cmdListen, enc(ids[0], uint32(8)), 0)
	p.destroy(ids[0])
	p.do(cmdBindIP, enc(any, other), 0)
	p.fails(syscall.EADDRNOTAVAIL, cmdBindIP, enc(own, p.create(4, psTCP)), 0)
}

// An address that this host does not have has another error number than one of another interface.
// After it, the ID can have another address.
func TestForeignAddress(t *testing.T) {
	p := pair(t)[0]
	foreign := netip.MustParseAddrPort("203.0.113.1:5")
	if ofHost(foreign.Addr()) || !ofHost(netip.MustParseAddr("127.0.0.1")) {
		t.Error("ofHost is wrong")
	}
	id := p.create(1, psTCP)
	p.fails(syscall.EADDRNOTAVAIL, cmdBindIP, enc(foreign, id), 0)
	own := netip.AddrPortFrom(p.addr, 0)
	p.fails(syscall.EADDRNOTAVAIL, cmdResolveIP, enc(foreign, own, id, uint32(2000)), 0)
	p.do(cmdBindIP, enc(own, id), 0)
}
