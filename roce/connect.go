package roce

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/qp"
)

// Defaults of ConnectOptions.
const (
	// Probes find lost packets much sooner than the timeout (see package qp). A long timeout
	// keeps the connection to a peer that gets no CPU time for a while: 8 x 0.54 s.
	defaultTimeout  = 17
	defaultRetries  = 7
	defaultRNRTimer = 12 // 0.64 ms
	defaultRdAtomic = 16

	// The longest packet over IPv6, an RDMA WRITE Only with Immediate, needs this much more than
	// bth.Headroom: IP 40, UDP 8, BTH 12, RETH 16, ImmDt 4 and ICRC 4 bytes besides the payload.
	ipv6Extra = 4

	allRemote = RemoteWrite | RemoteRead | RemoteAtomic | FlushGlobal | FlushPersistent
)

// Local returns what the peer must know about the QP before it calls Connect. Its MTU is that of
// the interface; Query returns the path MTU that a connected QP uses.
func (q *QP) Local() Endpoint {
	// Without an address the GID is zero, which Connect refuses.
	g, _ := q.device().localGID(q.gidIndex(), GID{})
	return Endpoint{
		QPN: q.QPN(), PSN: q.psn(), GID: g.GID, MTU: q.device().Info().ActiveMTU,
		PKey: q.pkey(), QKey: q.qkey(), Features: q.features(), Class: uint8(max(q.class(), 0)),
	}
}

// Connect brings an RC or UC QP from StateReset or StateInit to StateRTS. remote is the result of
// the peer's Local. Connect resolves the peer's address, which may wait for a neighbor lookup
// until ctx is done. Both sides call Connect, in any order. Packets to a peer that has not
// connected yet are lost; RC retransmits them. The connection uses the features that remote and
// this QP have in common, so both sides must get the peer's Features unchanged. If this side has
// chosen no traffic class, it uses the peer's.
//
// Errors: ErrInvalid, ErrClass, ErrPKey, ErrNoGID, ErrFamily, ErrUnreachable, ErrMTU,
// ErrConnParams, ErrQPState, ErrInvalidAttr, ErrClosed.
func (q *QP) Connect(ctx context.Context, remote Endpoint, o ConnectOptions) error {
	if q.closed.Load() {
		return ErrClosed
	}
	if err := q.checkRemote(&remote, &o); err != nil {
		return err
	}
	if err := q.checkOptions(&o); err != nil {
		return err
	}
	if remote.PKey != 0 {
		if err := q.checkPKey(remote.PKey); err != nil {
			return err
		}
	}
	local, err := q.device().localGID(q.gidIndex(), remote.GID)
	if err != nil {
		return err
	}
	if o.SourcePort == 0 {
		o.SourcePort = frame.SourcePort(q.QPN(), remote.QPN)
	}
	if o.Class = q.chosenClass(o.Class); o.Class == 0 {
		o.Class = int(remote.Class)
	}
	path, mtu, err := q.device().resolve(ctx, local, remote.GID, o.PathOptions)
	if err != nil {
		return err
	}
	if mtu = smallestMTU(mtu, remote.MTU, o.MTU); mtu == 0 {
		return ErrMTU
	}
	if err := q.apply(q.transitions(&remote, &o, path, mtu)); err != nil || o.KeepAlive <= 0 {
		return err
	}
	return q.device().do(func(now qp.Time) {
		q.device().gsi.alive.watch(now, q, o.KeepAlive, o.KeepAlive)
	})
}

// optionAttrs are the attributes that ConnectOptions determine alone.
const optionAttrs = AttrAccess | AttrMaxRdAtomic | AttrMaxDestRdAtomic | AttrMinRNRTimer |
	AttrTimeout | AttrRetryCnt | AttrRNRRetry

// checkOptions refuses options that are out of range, before anything is sent or changed.
func (q *QP) checkOptions(o *ConnectOptions) error {
	for _, t := range q.transitions(&Endpoint{}, o, &Path{}, 0) {
		err := q.qp.CheckAttr(t.attr.engine(), qp.AttrMask(t.mask&optionAttrs))
		if err != nil {
			return fmt.Errorf("%w: %w", ErrConnParams, err)
		}
	}
	return nil
}

func (q *QP) checkRemote(remote *Endpoint, o *ConnectOptions) error {
	switch {
	case q.Type() == UD:
		return fmt.Errorf("%w: a UD QP cannot connect: call Activate, "+
			"and name the peer in each work request", ErrInvalid)
	case remote.QPN == 0 || remote.QPN >= bth.QPNMulticast:
		return fmt.Errorf("%w: remote QPN %v", ErrInvalid, remote.QPN)
	case remote.GID.IsZero() || remote.GID.IsMulticast():
		return fmt.Errorf("%w: remote GID %v", ErrInvalid, remote.GID)
	case remote.MTU != 0 && !remote.MTU.Valid():
		return invalidMTU(remote.MTU)
	case o.MTU != 0 && !o.MTU.Valid():
		return invalidMTU(o.MTU)
	case remote.Class >= NumClasses:
		return fmt.Errorf("%w: the peer's endpoint has class %d", ErrClass, remote.Class)
	}
	return nil
}

// Activate brings a UD QP to StateRTS. Senders must set qkey in their work requests.
//
// Errors: ErrInvalid, ErrQPState, ErrClosed.
func (q *QP) Activate(qkey QKey) error {
	if q.Type() != UD {
		return fmt.Errorf("%w: a QP of type %v cannot be activated: call Connect", ErrInvalid,
			q.Type())
	}
	init, initMask := q.initAttr(UD, 0, qkey)
	return q.apply([]transition{
		{init, initMask},
		{Attr{State: StateRTR}, AttrState},
		{Attr{State: StateRTS, SQPSN: q.psn()}, AttrState | AttrSQPSN},
	})
}

// transition is one Modify between two states.
type transition struct {
	attr Attr
	mask AttrMask
}

func transitionError(to State, err error) error {
	return fmt.Errorf("roce: bring the QP to %v: %w", to, err)
}

// apply performs all transitions in one command, so that no packet arrives in between. After an
// error the QP stays in the state that it has reached.
func (q *QP) apply(list []transition) error {
	var err error
	gone := q.device().do(func(now qp.Time) {
		for i := range list {
			if err = q.modify(now, &list[i].attr, list[i].mask); err != nil {
				err = transitionError(list[i].attr.State, err)
				return
			}
		}
	})
	if gone != nil {
		return gone
	}
	return err
}

func (q *QP) initAttr(t QPType, access Access, qkey QKey) (Attr, AttrMask) {
	a := Attr{State: StateInit, PKey: q.pkey(), Access: access, QKey: qkey,
		Class: uint8(max(q.class(), 0))}
	mask := AttrState | AttrPKey | AttrClass
	switch t {
	case UD:
		return a, mask | AttrQKey
	case RC:
		a.Congestion = CongestionControl(q.chosen.Load())
		return a, mask | AttrAccess | AttrCongestion
	}
	return a, mask | AttrAccess
}

// transitions returns the transitions from RESET to RTS, with the attributes that the QP's type
// needs.
func (q *QP) transitions(remote *Endpoint, o *ConnectOptions, path *Path, mtu MTU) []transition {
	access := o.Access
	if access == 0 {
		access = allRemote
	}
	init, initMask := q.initAttr(q.Type(), access, 0)
	rtr := transition{
		Attr{State: StateRTR, Path: *path, PathMTU: mtu, DestQPN: remote.QPN, RQPSN: remote.PSN,
			Class: uint8(max(o.Class, 0))},
		AttrState | AttrPath | AttrPathMTU | AttrDestQPN | AttrRQPSN | AttrClass,
	}
	rts := transition{Attr{State: StateRTS, SQPSN: q.psn()}, AttrState | AttrSQPSN}
	if q.Type() == RC {
		rtr.attr.MaxDestRdAtomic = uint8(orDefault(o.MaxDestRdAtomic, defaultRdAtomic))
		rtr.attr.MinRNRTimer = uint8(orDefault(o.MinRNRTimer, defaultRNRTimer))
		rtr.attr.Selective = q.features()&remote.Features&SelectiveRepeat != 0
		rtr.mask |= AttrMaxDestRdAtomic | AttrMinRNRTimer | AttrSelective
		rts.attr.Timeout = uint8(orDefault(o.Timeout, defaultTimeout))
		rts.attr.RetryCnt = uint8(orDefault(o.Retries, defaultRetries))
		rts.attr.RNRRetry = uint8(orDefault(o.RNRRetries, defaultRetries))
		rts.attr.MaxRdAtomic = uint8(orDefault(o.MaxRdAtomic, defaultRdAtomic))
		rts.mask |= AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrMaxRdAtomic
	}
	return []transition{{init, initMask}, rtr, rts}
}

// orDefault returns the value of an option: 0 means the default, and negative means 0. Values
// beyond a byte become 255, which the engine refuses.
func orDefault(v, def int) int {
	switch {
	case v == 0:
		return def
	case v < 0:
		return 0
	}
	return min(v, 255)
}

// smallestMTU returns the smallest MTU that is not 0.
func smallestMTU(ms ...MTU) MTU {
	var least MTU
	for _, m := range ms {
		if m != 0 && (least == 0 || m < least) {
			least = m
		}
	}
	return least
}

// ResolvePath returns the path from the local GID with index gidIndex to remote, for Modify with
// AttrPath, and the largest path MTU that the interface and the route support. If gidIndex is
// negative, the route to remote selects the local address. ResolvePath may wait for a neighbor
// lookup until ctx is done.
//
// Errors: ErrClass, ErrNoGID, ErrFamily, ErrUnreachable, ErrMTU, ErrClosed.
func (d *Device) ResolvePath(ctx context.Context, gidIndex int, remote GID, o PathOptions) (
	*Path, MTU, error) {
	local, err := d.localGID(gidIndex, remote)
	if err != nil {
		return nil, 0, err
	}
	if gidIndex < 0 {
		local.Addr = netip.Addr{}
	}
	return d.resolve(ctx, local, remote, o)
}

// resolve builds the path from a local address to a peer. If local has no Addr, the route selects
// the source; local.GID is used if the route names no address of the device.
func (d *Device) resolve(ctx context.Context, local GIDEntry, remote GID, o PathOptions) (
	*Path, MTU, error) {
	if err := d.Err(); err != nil {
		return nil, 0, err
	}
	trafficClass, pcp, err := d.marking(&o)
	if err != nil {
		return nil, 0, err
	}
	if d.isOwn(remote) && !d.sockets { // the kernel delivers what sockets send to themselves
		return nil, 0, fmt.Errorf("%w: %v is an address of this device, "+
			"which cannot send to itself: use two devices, or UDP sockets (PortUDP)",
			ErrUnreachable, remote.Addr())
	}
	src := local.GID
	hop, err := d.net.Resolve(ctx, local.Addr, remote.Addr())
	if err == nil && !local.Addr.IsValid() && hop.Src.IsValid() {
		if g := bth.GIDFromAddr(hop.Src); d.isOwn(g) {
			src = g
		} else { // the route leads through another interface, perhaps not from src
			hop, err = d.net.Resolve(ctx, src.Addr(), remote.Addr())
		}
	}
	if errors.Is(err, driver.ErrGone) { // before the loop has noticed
		return nil, 0, fmt.Errorf("%w: %w", ErrGone, err)
	} else if err != nil {
		return nil, 0, fmt.Errorf("%w: %v: %w", ErrUnreachable, remote.Addr(), err)
	}
	info := d.Info()
	ipMTU := minMTU(hop.MTU, info.MTU)
	if !remote.IsIPv4() {
		ipMTU -= ipv6Extra
	}
	mtu := bth.MTUFor(ipMTU)
	if mtu == 0 {
		return nil, 0, ErrMTU
	}
	if o.HopLimit == 0 {
		o.HopLimit = DefaultHopLimit
	}
	if o.SourcePort == 0 {
		o.SourcePort = frame.SourcePort(0, QPN(remote[13])<<16|QPN(remote[14])<<8|QPN(remote[15]))
	}
	p := frame.NewPath(&frame.Address{
		SrcMAC: info.MAC, DstMAC: hop.MAC, VLAN: hop.VLAN, Src: src, Dst: remote,
		SrcPort: o.SourcePort, TrafficClass: trafficClass, PCP: pcp, HopLimit: o.HopLimit,
		FlowLabel: o.FlowLabel,
	})
	return &p, mtu, nil
}

// minMTU returns the smaller MTU. The route's MTU may be 0, which means unknown.
func minMTU(route, iface int) int {
	if route == 0 {
		return iface
	}
	return min(route, iface)
}
