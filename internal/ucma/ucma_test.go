package ucma

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/nldev"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce/cm"
)

func TestConnection(t *testing.T) {
	p := pair(t)
	a, b := p[0], p[1]
	listener := b.listen(1, psTCP)
	active := a.resolve(2, psTCP, b)

	route := a.do(cmdQueryRoute, enc(active, uint32(0)), routeSize)
	local, remote := bth.GIDFromAddr(a.addr), bth.GIDFromAddr(b.addr)
	if !bytes.Equal(route[:8], testGUID[:]) || !bytes.Equal(route[8:24], remote[:]) ||
		!bytes.Equal(route[24:40], local[:]) {
		t.Errorf("QUERY_ROUTE = %x, want GUID %x, GIDs %v and %v", route[:40], testGUID, remote,
			local)
	}
	if n, got := le.Uint32(route[192:]), route[196]; n != 1 || got != port {
		t.Errorf("num_paths = %d, port_num = %d, want 1 and %d", n, got, port)
	}
	if n := binary.BigEndian.Uint16(route[136+28+2:]); n != service {
		t.Errorf("port of the peer = %d, want %d", n, service)
	}

	a.fails(syscall.EINVAL, cmdInitQPAttr, enc(active, uint32(2)), qpAttrSize)
	a.option(active, optionAckTimeout, 12) // a short TIME-WAIT
	a.connect(active, testParam)
	req := b.next(eventConnectRequest)
	if req.uid != 1 || req.id == listener {
		t.Errorf("CONNECT_REQUEST of uid %d, id %d, want uid 1 and a new id", req.uid, req.id)
	}
	if !isPrivate(req.private(), "hello", 56) {
		t.Errorf("private data of the request = %q", req.private())
	}
	if q := le.Uint32(req.param); q != 77 {
		t.Errorf("qp_num = %d, want 77", q)
	}
	if got := req.param[266:268]; got[0] != 3 || got[1] != 4 {
		t.Errorf("responder_resources, initiator_depth = %d, want 3 and 4", got)
	}
	passive := req.id
	rtr := b.qpAttrs(passive, 2)
	b.accept(passive, 3, connParam{qpn: 88, responder: 2, initiator: 9,
		private: []byte("welcome")})

	for name, ids := range map[string][]nldev.ID{"active": a.dev.IDs(), "passive": b.dev.IDs()} {
		i := ids[len(ids)-1] // the one of the connection
		if i.State != nldev.IDConnect || i.QPN == 0 || i.Space != psTCP || i.PID != 7 ||
			!i.Source.IsValid() || !i.Dest.IsValid() {
			t.Errorf("%s: IDs() = %+v, want the connection last", name, ids)
		}
	}
	if i := b.dev.IDs()[0]; i.State != nldev.IDListen || i.Source.Port() != service || i.QPN != 0 {
		t.Errorf("IDs() has %+v, want the listener", i)
	}

	resp := a.next(eventConnectResponse)
	if resp.uid != 2 || !isPrivate(resp.private(), "welcome", cm.REPPrivateLen) {
		t.Errorf("CONNECT_RESPONSE of uid %d with %q", resp.uid, resp.private())
	}
	if got := resp.param[266:268]; got[0] != 4 || got[1] != 2 {
		t.Errorf("responder_resources, initiator_depth = %d, want 4 and 2", got)
	}
	other := a.qpAttrs(active, 2)
	checkAttrs(t, "passive side", rtr, other, 77, local)
	checkAttrs(t, "active side", other, rtr, 88, remote)
	if got := a.qpAttrs(active, 3)[135]; got != 5 {
		t.Errorf("retry_cnt = %d, want 5", got)
	}
	a.option(active, optionAckTimeout, 21)
	if got := a.qpAttrs(active, 3)[134]; got != 21 {
		t.Errorf("timeout = %d, want the option's 21", got)
	}
	a.ready(active)
	e := b.next(eventEstablished)
	if e.uid != 3 || e.id != passive || len(e.private()) > 0 {
		t.Errorf("ESTABLISHED of uid %d, id %d with %q, want 3 and %d", e.uid, e.id, e.private(),
			passive)
	}

	a.do(cmdDisconnect, enc(active), 0)
	if e := b.next(eventDisconnected); len(e.private()) > 0 {
		t.Errorf("DISCONNECTED of the passive side with %q", e.private())
	}
	b.do(cmdDisconnect, enc(passive), 0)
	if e := a.next(eventDisconnected); len(e.private()) > 0 {
		t.Errorf("DISCONNECTED of the active side with %q", e.private())
	}
	a.do(cmdDisconnect, enc(active), 0) // as in the kernel, again is no error
	a.next(eventTimeWaitExit)
	if n := a.destroy(active); n != 5 {
		t.Errorf("DESTROY_ID of the active side = %d events, want 5", n)
	}
	if n := b.destroy(listener); n != 1 {
		t.Errorf("DESTROY_ID of the listener = %d events, want 1", n)
	}
	b.fails(syscall.ENOENT, cmdDestroyID, enc(listener, uint32(0)), 4)
}

// checkAttrs checks the attributes for RTR of one side. other are those of the other side.
func checkAttrs(t *testing.T, side string, got, other []byte, qpn uint32, gid bth.GID) {
	t.Helper()
	const want = maskState | maskAV | maskPathMTU | maskDestQPN | maskRQPSN | maskMaxDestRdAtomic |
		maskMinRNRTimer
	if m := le.Uint32(got); m != want {
		t.Errorf("%s: mask = %#x, want %#x", side, m, want)
	}
	if rq, sq := le.Uint32(got[24:]), le.Uint32(other[28:]); rq != sq {
		t.Errorf("%s: rq_psn = %#x, the other side sends %#x", side, rq, sq)
	}
	if q := le.Uint32(got[32:]); q != qpn {
		t.Errorf("%s: dest_qp_num = %d, want %d", side, q, qpn)
	}
	if !bytes.Equal(got[40:56], gid[:]) {
		t.Errorf("%s: dgid = %x, want %v", side, got[40:56], gid)
	}
	if m := le.Uint32(got[12:]); m < 1 || m > 5 || m != le.Uint32(other[12:]) {
		t.Errorf("%s: path_mtu = %d, the other side has %d", side, m, le.Uint32(other[12:]))
	}
}

func TestReject(t *testing.T) {
	p := pair(t)
	p[1].listen(1, psTCP)
	active := p[0].resolve(2, psTCP, p[1])
	p[0].connect(active, testParam)
	id := p[1].next(eventConnectRequest).id
	private := make([]byte, privateSize)
	copy(private, "no")
	p[1].do(cmdReject, enc(id, uint8(2), uint8(0), uint16(0), private), 0)
	e := p[0].next(eventRejected)
	if e.status != int32(cm.ReasonConsumer) || !isPrivate(e.private(), "no", cm.REJPrivateLen) {
		t.Errorf("REJECTED with status %d, %q", e.status, e.private())
	}
	p[1].destroy(id)

	// An ACCEPT that fails refuses the request.
	failing := p[0].resolve(3, psTCP, p[1])
	p[0].connect(failing, testParam)
	id = p[1].next(eventConnectRequest).id
	p[1].fails(syscall.EINVAL, cmdAccept, enc(uint64(5),
		connParam{qpn: 88, private: make([]byte, cm.REPPrivateLen+1)}, id, make([]byte, 12)), 0)
	if e := p[0].next(eventRejected); e.status != int32(cm.ReasonConsumer) {
		t.Errorf("REJECTED after a failed ACCEPT with status %d, want %d", e.status,
			cm.ReasonConsumer)
	}

	other := p[0].create(4, psTCP)
	p[0].do(cmdResolveIP, enc(netip.AddrPort{}, netip.AddrPortFrom(p[1].addr, 99), other,
		uint32(2000)), 0)
	p[0].next(eventAddrResolved)
	p[0].do(cmdResolveRoute, enc(other, uint32(1)), 0)
	p[0].next(eventRouteResolved)
	p[0].connect(other, testParam)
	if e := p[0].next(eventRejected); e.status != int32(cm.ReasonInvalidServiceID) {
		t.Errorf("REJECTED without a listener with status %d, want %d", e.status,
			cm.ReasonInvalidServiceID)
	}
}

// When the device stops working, the program gets an event for each ID that uses it, as after the
// removal of a device, and can still destroy the IDs.
func TestRemoval(t *testing.T) {
	p, bed := bedOf(t, testbed.Config{})
	p[0].create(9, psTCP) // does not use the device
	_, passive := established(t, p[0], p[1])
	listener := p[1].listen(4, psUDP)
	if err := bed.Port[1].Close(); err != nil {
		t.Fatal(err)
	}
	var uids []uint64
	for len(uids) < 3 {
		uids = append(uids, p[1].next(eventDeviceRemoval).uid)
	}
	if slices.Sort(uids); !slices.Equal(uids, []uint64{1, 3, 4}) {
		t.Errorf("DEVICE_REMOVAL for the IDs %d, want 1 (listener), 3 and 4 (listener)", uids)
	}
	p[1].destroy(passive)
	p[1].destroy(listener)
	p[1].fails(syscall.ENODEV, cmdListen, enc(p[1].create(5, psTCP), uint32(1)), 0)
	if p[0].readable() {
		t.Errorf("event %v of the other device", p[0].f.events[0].kind)
	}
}

// A program that dies disconnects its peers, and its listeners are gone.
func TestClose(t *testing.T) {
	p := pair(t)
	established(t, p[0], p[1])
	f, waits := p[0].f, &call{memory: p[0].mem}
	at := p[0].mem.alloc(16)
	if err := waits.WriteAt(enc(uint32(cmdGetEvent), uint16(8), uint16(eventSize), at),
		at); err != nil {
		t.Fatal(err)
	}
	_, _ = f.Write(waits, at, 16)
	f.Close()
	f.Close()
	if len(waits.deferred) != 0 {
		t.Errorf("GET_EVENT returned %v when the channel was closed", <-waits.deferred)
	}
	p[1].next(eventDisconnected)
	p[0].fails(syscall.EBADF, cmdGetEvent, nil, eventSize)
	p[0].fails(syscall.EBADF, cmdCreateID, enc(uint64(1), uint16(psTCP), uint8(qpRC)), 4)
	if n := len(p[0].dev.ids) + len(p[0].dev.ports) + len(p[0].dev.files); n != 0 {
		t.Errorf("%d IDs, ports and files are left", n)
	}
	p[1].f.Close()
	p[1].open()
	p[1].listen(1, psTCP) // the port is free
}

func TestDatagrams(t *testing.T) {
	p := pair(t)
	p[1].listen(1, psUDP)
	active := p[0].resolve(2, psUDP, p[1])
	if a := p[0].qpAttrs(active, 1); le.Uint32(a[20:]) != udpQKey {
		t.Errorf("qkey for INIT = %#x, want %#x", le.Uint32(a[20:]), udpQKey)
	}
	p[0].connect(active, connParam{qpn: 77, private: []byte("hello")})
	id := p[1].next(eventConnectRequest).id
	p[1].accept(id, 3, connParam{qpn: 88})
	e := p[0].next(eventEstablished)
	if q, k := le.Uint32(e.param), le.Uint32(e.param[4:]); q != 88 || k != udpQKey {
		t.Errorf("qp_num = %d, qkey = %#x, want 88 and %#x", q, k, udpQKey)
	}
	if g := bth.GIDFromAddr(p[1].addr); !bytes.Equal(e.param[8:24], g[:]) {
		t.Errorf("dgid = %x, want %v", e.param[8:24], g)
	}
	p[0].do(cmdDisconnect, enc(active), 0)
	p[1].do(cmdDisconnect, enc(id), 0)
	p[0].destroy(active)

	active = p[0].resolve(2, psUDP, p[1])
	p[0].connect(active, connParam{qpn: 77})
	id = p[1].next(eventConnectRequest).id
	p[1].do(cmdReject, enc(id, make([]byte, 260)), 0)
	if e := p[0].next(eventUnreachable); e.status != int32(cm.SIDRRejected) {
		t.Errorf("status = %d, want %d", e.status, cm.SIDRRejected)
	}
}

func TestMulticast(t *testing.T) {
	p := pair(t)[0]
	id := p.create(1, psUDP)
	group := netip.MustParseAddrPort("239.1.2.3:0")
	p.fails(syscall.EINVAL, cmdJoinIPMcast, enc(uint64(9), group, id), 4)
	p.do(cmdBindIP, enc(netip.AddrPortFrom(p.addr, 0), id), 0)
	h := le.Uint32(p.do(cmdJoinIPMcast, enc(uint64(9), group, id), 4))
	e := p.next(eventMulticastJoin)
	if g := bth.GIDFromAddr(group.Addr()); e.uid != 9 || e.id != h ||
		!bytes.Equal(e.param[8:24], g[:]) {
		t.Errorf("MULTICAST_JOIN of uid %d, id %d, GID %x", e.uid, e.id, e.param[8:24])
	}
	if n := le.Uint32(p.do(cmdLeaveMcast, enc(h, uint32(0)), 4)); n != 1 {
		t.Errorf("LEAVE_MCAST = %d events, want 1", n)
	}
	p.do(cmdJoinIPMcast, enc(uint64(9), group, id), 4)
	if n := p.destroy(id); n != 1 {
		t.Errorf("DESTROY_ID = %d events, want 1", n)
	}
	if p.readable() || len(p.dev.groups) != 0 {
		t.Error("a group or its event is left")
	}
}

func TestNonblocking(t *testing.T) {
	p := pair(t)
	if _, no := p[0].try(&call{memory: p[0].mem, nonblocking: true}, cmdGetEvent, nil,
		eventSize); no != syscall.EAGAIN {
		t.Errorf("GET_EVENT without events = %v, want EAGAIN", no)
	}
	if p[0].readable() {
		t.Error("the channel is readable without events")
	}
	id := p[0].create(2, psTCP)
	p[0].do(cmdResolveIP, enc(netip.AddrPort{}, netip.AddrPortFrom(p[1].addr, service), id,
		uint32(2000)), 0)
	eventually(t, "ADDR_RESOLVED", p[0].readable)
	p[0].fails(syscall.ENOSPC, cmdGetEvent, nil, 8)
	p[0].next(eventAddrResolved)
	if p[0].readable() {
		t.Error("the channel is readable after its only event")
	}
}

func TestMigrate(t *testing.T) {
	p := pair(t)
	id := p[0].create(2, psTCP)
	p[0].do(cmdResolveIP, enc(netip.AddrPort{}, netip.AddrPortFrom(p[1].addr, service), id,
		uint32(2000)), 0)
	eventually(t, "ADDR_RESOLVED", p[0].readable)
	old := p[0].f
	p[0].open()
	p[0].fails(syscall.ENOENT, cmdResolveRoute, enc(id, uint32(0)), 0)
	if n := le.Uint32(p[0].do(cmdMigrateID, enc(id, uint32(old.FD())), 4)); n != 0 {
		t.Errorf("MIGRATE_ID = %d events, want 0", n)
	}
	p[0].next(eventAddrResolved)
	p[0].do(cmdResolveRoute, enc(id, uint32(1)), 0)
	p[0].next(eventRouteResolved)
	old.Close()
	p[0].destroy(id)
	p[0].fails(syscall.EBADF, cmdMigrateID, enc(id, uint32(1<<30)), 4)
}

func TestErrors(t *testing.T) {
	p := pair(t)[0]
	id := p.create(1, psTCP)
	at := netip.AddrPortFrom(p.addr, 1000)
	p.fails(syscall.EPROTONOSUPPORT, cmdCreateID, enc(uint64(1), uint16(2), uint8(qpUD)), 4)
	p.fails(syscall.EINVAL, cmdCreateID, enc(uint64(1), uint16(psTCP), uint8(99)), 4)
	p.fails(syscall.ENOSYS, cmdBind, enc(id, make([]byte, 132)), 0)
	p.fails(syscall.ENOSYS, 1000, nil, 0)
	p.fails(syscall.EADDRNOTAVAIL, cmdBindIP, enc(netip.MustParseAddrPort("203.0.113.1:5"), id), 0)
	p.fails(syscall.EINVAL, cmdBindIP, enc(netip.AddrPort{}, id), 0)
	p.fails(syscall.EINVAL, cmdResolveRoute, enc(id, uint32(0)), 0)
	p.fails(syscall.EINVAL, cmdConnect, enc(testParam, id, make([]byte, 12)), 0)
	p.fails(syscall.EINVAL, cmdAccept, enc(uint64(1), testParam, id, make([]byte, 12)), 0)
	p.fails(syscall.EINVAL, cmdReject, enc(id, make([]byte, 260)), 0)
	p.fails(syscall.EINVAL, cmdDisconnect, enc(id), 0)
	p.fails(syscall.ENOENT, cmdDisconnect, enc(id+1), 0)
	p.fails(syscall.EINVAL, cmdSetOption, enc(uint64(0), id, uint32(0), uint32(0), uint32(0)), 0)
	p.fails(syscall.EFAULT, cmdSetOption, enc(uint64(0), id, uint32(0), uint32(0), uint32(1)), 0)
	p.option(id, optionReuse, 1)
	p.option(id, optionAckTimeout, maxAckTimeout)
	p.do(cmdBindIP, enc(at, id), 0)
	other := p.create(2, psTCP)
	p.fails(syscall.EADDRINUSE, cmdBindIP, enc(at, other), 0)
	p.destroy(id)
	p.do(cmdBindIP, enc(at, other), 0)

	c := &call{memory: p.mem}
	if _, no := p.f.Write(c, 1<<40, 16); no != syscall.EFAULT {
		t.Errorf("a write from an invalid address = %v, want EFAULT", no)
	}
	if _, no := p.f.Write(c, 1, 4); no != syscall.EINVAL {
		t.Errorf("a write of 4 bytes = %v, want EINVAL", no)
	}
}

// An ID that is bound has a peer of its family, as in the kernel.
func TestFamilyOfPeer(t *testing.T) {
	p := pair(t)[0]
	for at, family := range map[string]uint16{"0.0.0.0:0": familyIPv4, "[::]:0": familyIPv6} {
		id := p.bindAt(1, psTCP, at)
		route := p.do(cmdQueryRoute, enc(id, uint32(0)), routeSize)
		if got := le.Uint16(route[136+addrSize:]); got != family {
			t.Errorf("family of the peer at %s = %d, want %d", at, got, family)
		}
	}
}

// Addresses are resolved once, and to a peer of the same family. The route needs a timeout.
func TestResolveErrors(t *testing.T) {
	p := pair(t)
	six := p[0].bindAt(1, psTCP, "[::]:0")
	p[0].fails(syscall.EINVAL, cmdResolveIP, route(six, p[1]), 0)
	id := p[0].create(2, psTCP)
	mixed := enc(netip.MustParseAddrPort("[::]:0"), netip.AddrPortFrom(p[1].addr, 1), id,
		uint32(2000))
	p[0].fails(syscall.EINVAL, cmdResolveIP, mixed, 0)
	p[0].do(cmdResolveIP, route(id, p[1]), 0)
	p[0].next(eventAddrResolved)
	p[0].fails(syscall.EINVAL, cmdResolveIP, route(id, p[1]), 0)
	p[0].fails(syscall.EINVAL, cmdResolveRoute, enc(id, uint32(0)), 0)
	p[0].do(cmdResolveRoute, enc(id, uint32(1)), 0)
}

// The value of an option must have its size, as in the kernel.
func TestOptionSizes(t *testing.T) {
	p := pair(t)[0]
	id, datagram := p.create(1, psTCP), p.create(2, psUDP)
	at := p.mem.alloc(4)
	set := func(id, name, size uint32) []byte { return enc(at, id, uint32(levelID), name, size) }
	for name, want := range optionSizes {
		for _, size := range []uint32{1, 4, 8} {
			if size != want {
				p.fails(syscall.EINVAL, cmdSetOption, set(id, name, size), 0)
			}
		}
		p.do(cmdSetOption, set(id, name, want), 0)
	}
	p.fails(syscall.EINVAL, cmdSetOption, set(datagram, optionAckTimeout, 1), 0)
	p.fails(syscall.ENOSYS, cmdSetOption, set(id, 9, 4), 0)
}

// Counters of retries beyond their fields are the largest ones, as with the kernel.
func TestLargeRetries(t *testing.T) {
	p := pair(t)
	p[1].listen(1, psTCP)
	id := p[0].resolve(2, psTCP, p[1])
	p[0].connect(id, connParam{qpn: 77, retry: 10, rnrRetry: 255})
	e := p[1].next(eventConnectRequest)
	if got := e.param[269:271]; got[0] != maxRetry || got[1] != maxRetry {
		t.Errorf("retry_count, rnr_retry_count = %d, want 7", got)
	}
}

// Commands with random contents return errors and leave the device usable.
func TestRandomCommands(t *testing.T) {
	p := pair(t)
	r := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		body := make([]byte, r.IntN(330))
		for i := range body {
			body[i] = byte(r.Uint32())
			if r.IntN(2) == 0 {
				body[i] = byte(r.IntN(4))
			}
		}
		cmd := uint32(r.IntN(24))
		b := append(enc(cmd, uint16(len(body)), uint16(r.IntN(400))), body...)
		if len(body) >= 8 {
			le.PutUint64(b[8:], 4096) // a valid address
		}
		if err := p[0].mem.access(b, 1<<19, true); err != nil {
			t.Fatal(err)
		}
		c := &call{memory: p[0].mem, nonblocking: true}
		_, _ = p[0].f.Write(c, 1<<19, uint64(len(b)))
	}
	p[0].f.Close()
	p[0].open()
	established(t, p[0], p[1])
}
