package ucma

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/roce/cm"
)

// state is what a program has done with an ID.
type state uint8

const (
	idle      state = iota // or bound to an address
	resolving              // RESOLVE_IP looks for the path
	resolved
	routed
	listening
	requested // by a peer
	connected // or connecting
)

// id is the counterpart of a struct rdma_cm_id. Its fields belong to the owner of the loop.
type id struct {
	dev      *Device
	file     *File
	handle   uint32
	uid      uint64 // the program's name; 0 until it accepts a request
	space    uint16
	qpType   uint8
	dead     bool
	reported int // events
	groups   []*group

	state      state
	src, dst   netip.AddrPort
	bound      bool // in Device.ports
	path       *roce.Path
	mtu        roce.MTU
	psn        roce.PSN // of the first packet that the peer sends
	qpn        uint32   // of the program's QP
	tos        uint8
	ackTimeout uint8 // 0: default
	reuse      bool
	afOnly     *bool // nil: default

	listener  cm.ListenerID // of state listening
	service   cm.ServiceID  // of the listener
	announced bool          // to the node service
	comm      cm.CommID     // 0: there is none
	params    *cm.ConnectParams
	response  *cm.Response
	request   *cm.Request
	up        bool // the connection was established
}

// datagram reports whether events have parameters of datagrams.
func (i *id) datagram() bool { return i.space == psUDP }

// resolveTimeout limits how long an address lookup takes.
const resolveTimeout = 5 * time.Second

// newID creates an ID. Owner only.
func (f *File) newID(space uint16, qpType uint8) (*id, syscall.Errno) {
	h, no := f.dev.handle()
	if no != 0 {
		return nil, no
	}
	i := &id{dev: f.dev, file: f, handle: h, space: space, qpType: qpType,
		psn: roce.PSN(rand.Uint32() & 0xffffff)}
	f.dev.ids[h] = i
	return i, 0
}

func (q *command) createID(cm.Time, *cm.CM) ([]byte, syscall.Errno) {
	uid := q.in.U64()
	space, typ := q.in.U16(), q.in.U8()
	switch {
	case space != psTCP && space != psUDP && space != psIB:
		return nil, syscall.EPROTONOSUPPORT
	case q.out < 4 || (typ == qpUD) != (space == psUDP) || typ < qpRC || typ > qpUD:
		return nil, syscall.EINVAL
	}
	i, no := q.f.newID(space, typ)
	if no != 0 {
		return nil, no
	}
	i.uid = uid
	return result(i.handle), 0
}

func (q *command) destroyID(now cm.Time, m *cm.CM) ([]byte, syscall.Errno) {
	i, no := q.id()
	if no != 0 {
		return nil, no
	}
	i.destroy(now, m)
	return result(uint32(i.reported)), 0
}

// destroy removes the ID, its events, and what it is in the connection manager. Owner only.
func (i *id) destroy(now cm.Time, m *cm.CM) {
	if i.dead {
		return
	}
	i.dead = true
	delete(i.dev.ids, i.handle)
	for _, g := range i.groups {
		delete(i.dev.groups, g.handle)
	}
	i.unbind()
	if i.state == listening {
		i.unlisten(now, m)
	}
	if i.comm != 0 {
		_ = m.Abort(now, i.comm)
		i.comm = 0
	}
	var orphans []*id
	i.file.drop(func(e *event) bool {
		if e.id == i && e.opened != nil { // a request that the program has not seen
			orphans = append(orphans, e.opened)
		}
		return e.id == i
	})
	for _, o := range orphans {
		o.destroy(now, m)
	}
}

// push queues an event of the ID. Owner only.
func (i *id) push(e event) {
	e.id = i
	i.file.push(&e)
}

// removed reports that the device does not work any more, also to listeners on any address, to
// which the kernel does not: there is no other device. Owner only.
func (i *id) removed() {
	used := i.state != idle || i.bound
	if used && (i.request == nil || i.uid != 0) {
		i.push(event{kind: eventDeviceRemoval})
	}
}

// portKey names a port.
type portKey struct {
	space uint16
	port  uint16
}

// bind reserves the address and port of the ID. Port 0 means any. Owner only.
func (i *id) bind(a netip.AddrPort) syscall.Errno {
	const ephemeral, attempts = 0xc000, 64
	if a.Port() != 0 {
		if no := i.conflict(a, i.reuse); no != 0 {
			return no
		}
	} else {
		ok := false
		for n := 0; n < attempts && !ok; n++ {
			a = netip.AddrPortFrom(a.Addr(), ephemeral|uint16(rand.Uint32()))
			ok = i.conflict(a, i.reuse) == 0
		}
		if !ok {
			return syscall.EADDRNOTAVAIL
		}
	}
	i.src, i.bound = a, true
	k := portKey{i.space, a.Port()}
	i.dev.ports[k] = append(i.dev.ports[k], i)
	return 0
}

// family returns the addresses of which an ID bound to a receives requests if a stands for several.
// By default :: is also 0.0.0.0, but not the other way around.
func (i *id) family(a netip.Addr) cm.Family {
	only := a.Is4()
	if i.afOnly != nil {
		only = *i.afOnly
	}
	switch {
	case !only:
		return cm.BothFamilies
	case a.Is4():
		return cm.IPv4
	}
	return cm.IPv6
}

// conflict returns why the ID cannot have an address: another ID has it, or either is unspecified.
// If reuse is true, IDs that allow it as well and do not listen are no obstacle.
func (i *id) conflict(a netip.AddrPort, reuse bool) syscall.Errno {
	family := i.family(a.Addr())
	for _, o := range i.dev.ports[portKey{i.space, a.Port()}] {
		other := o.family(o.src.Addr())
		switch {
		case o == i, reuse && o.reuse && o.state != listening:
		case family != other && family != cm.BothFamilies && other != cm.BothFamilies:
		case i.dev.anyOf(a.Addr()) || i.dev.anyOf(o.src.Addr()):
			return syscall.EADDRNOTAVAIL
		case a.Addr() == o.src.Addr():
			return syscall.EADDRINUSE
		}
	}
	return 0
}

func (i *id) unbind() {
	if !i.bound {
		return
	}
	i.bound = false
	k := portKey{i.space, i.src.Port()}
	list := slices.DeleteFunc(i.dev.ports[k], func(o *id) bool { return o == i })
	if len(list) == 0 {
		delete(i.dev.ports, k)
		return
	}
	i.dev.ports[k] = list
}

// gid returns the index of a local address.
func (d *Device) gid(a netip.Addr) (index int, ok bool) {
	for _, g := range d.dev.GIDs() {
		if g.Addr == a {
			return g.Index, true
		}
	}
	return -1, false
}

// anyOf reports whether an address stands for any address of the device: the unspecified one, or a
// loopback address that the device does not have. The kernel accepts those as well, and libfabric
// needs it.
func (d *Device) anyOf(a netip.Addr) bool {
	if a.IsLoopback() {
		_, ok := d.gid(a)
		return !ok
	}
	return a.IsUnspecified()
}

func (q *command) bindIP(cm.Time, *cm.CM) ([]byte, syscall.Errno) {
	a := q.in.addr()
	i, no := q.id()
	switch {
	case no != 0:
		return nil, no
	case i.space == psIB || i.state != idle || i.bound || !a.IsValid():
		return nil, syscall.EINVAL
	}
	if _, no := q.local(i.dev, a.Addr()); no != 0 {
		return nil, no
	}
	return nil, i.bind(a)
}

// local returns the index of an address of the device, or -1 if it stands for any.
func (q *command) local(d *Device, a netip.Addr) (index int, no syscall.Errno) {
	index, ok := d.gid(a)
	if !ok && !d.anyOf(a) {
		q.foreign, no = a, syscall.ENODEV
	}
	return index, no
}

// resolveIP looks for the path to a peer. The event ADDR_RESOLVED or ADDR_ERROR follows.
func (q *command) resolveIP(cm.Time, *cm.CM) ([]byte, syscall.Errno) {
	src, dst := q.in.addr(), q.in.addr()
	i, no := q.id()
	timeout := time.Duration(q.in.U32()) * time.Millisecond
	if timeout == 0 || timeout > resolveTimeout {
		timeout = resolveTimeout
	}
	if no != 0 {
		return nil, no
	}
	if i.space == psIB || i.state != idle || !dst.IsValid() {
		return nil, syscall.EINVAL
	}
	if i.bound {
		src = i.src
	}
	if src.IsValid() && src.Addr().Is4() != dst.Addr().Is4() {
		return nil, syscall.EINVAL
	}
	if len(i.file.events) >= maxEvents { // each call causes one
		return nil, syscall.ENOMEM
	}
	if !src.IsValid() {
		src = netip.AddrPortFrom(netip.IPv4Unspecified(), src.Port())
		if dst.Addr().Is6() {
			src = netip.AddrPortFrom(netip.IPv6Unspecified(), src.Port())
		}
	}
	index, no := q.local(i.dev, src.Addr())
	if no != 0 {
		return nil, no
	}
	if !i.bound {
		if no := i.bind(src); no != 0 {
			return nil, no
		}
	}
	dst = netip.AddrPortFrom(i.peerAt(dst.Addr()), dst.Port())
	i.state, i.dst = resolving, dst
	o := roce.PathOptions{TrafficClass: i.tos}
	i.dev.busy.Go(func() { i.resolve(index, timeout, o) })
	return nil, 0
}

// peerAt returns the address to which an ID connects if the program names a. The unspecified
// address is this host, as in connect(2), and so are loopback addresses unless the device is on
// one: then they are other devices.
func (i *id) peerAt(a netip.Addr) netip.Addr {
	if !a.IsUnspecified() && !a.IsLoopback() {
		return a
	}
	own := i.src.Addr()
	for _, g := range i.dev.dev.GIDs() {
		if g.Addr.IsLoopback() && a.IsLoopback() {
			return a
		}
		if i.dev.anyOf(own) && g.Addr.Is4() == a.Is4() {
			own = g.Addr
		}
	}
	return own
}

func (i *id) resolve(index int, timeout time.Duration, o roce.PathOptions) {
	ctx, cancel := context.WithTimeout(i.dev.ctx, timeout)
	defer cancel()
	path, mtu, err := i.dev.dev.ResolvePath(ctx, index, bth.GIDFromAddr(i.dst.Addr()), o)
	_ = i.dev.do(func(cm.Time, *cm.CM) syscall.Errno {
		switch {
		case i.dead:
		case err != nil:
			i.state = idle
			no := syscall.EHOSTUNREACH
			if errors.Is(err, context.DeadlineExceeded) {
				no = syscall.ETIMEDOUT
			}
			i.push(event{kind: eventAddrError, status: -int32(no)})
		default:
			i.state, i.path, i.mtu = resolved, path, mtu
			i.src = netip.AddrPortFrom(path.GIDs().Local.Addr(), i.src.Port())
			i.push(event{kind: eventAddrResolved})
		}
		return 0
	})
}

// resolveRoute has nothing to do: RESOLVE_IP has found the path.
func (q *command) resolveRoute(cm.Time, *cm.CM) ([]byte, syscall.Errno) {
	i, no := q.id()
	timeout := q.in.U32()
	switch {
	case no != 0:
		return nil, no
	case i.state != resolved || timeout == 0:
		return nil, syscall.EINVAL
	}
	i.state = routed
	i.push(event{kind: eventRouteResolved})
	return nil, 0
}

// optionSizes has the sizes of the values of options: a byte or an int.
var optionSizes = map[uint32]uint32{optionTOS: 1, optionReuse: 4, optionAFOnly: 4,
	optionAckTimeout: 1}

func (q *command) setOption(cm.Time, *cm.CM) ([]byte, syscall.Errno) {
	i, no := q.id()
	if no != 0 {
		return nil, no
	}
	level, name, value, size := q.in.U32(), q.in.U32(), q.in.U32(), q.in.U32()
	want, ok := optionSizes[name]
	switch {
	case level != levelID || !ok:
		return nil, syscall.ENOSYS
	case size != want:
		return nil, syscall.EINVAL
	}
	switch name {
	case optionTOS:
		i.tos = uint8(value)
	case optionReuse:
		i.reuse = value != 0
	case optionAFOnly:
		only := value != 0
		i.afOnly = &only
	case optionAckTimeout:
		if value > maxAckTimeout || i.datagram() {
			return nil, syscall.EINVAL
		}
		i.ackTimeout = uint8(value)
	}
	return nil, 0
}

// migrate moves an ID from another file to this one.
func (q *command) migrate(cm.Time, *cm.CM) ([]byte, syscall.Errno) {
	i := q.f.dev.ids[q.in.U32()]
	from := q.f.dev.fileOf(inode{q.in.U64(), q.in.U64()})
	if i == nil || from == nil || i.file != from {
		return nil, syscall.ENOENT
	}
	var moved []*event
	from.drop(func(e *event) bool {
		if e.id == i {
			moved = append(moved, e)
		}
		return e.id == i
	})
	i.file = q.f
	for _, e := range moved {
		if e.opened != nil {
			e.opened.file = q.f
		}
		q.f.push(e)
	}
	return result(uint32(i.reported)), 0
}
