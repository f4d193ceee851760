package roce

import (
	"context"
	"fmt"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/qp"
)

// The defaults of ConnectOptions.
const (
	// Lost packets are repeated long before (see qp's probes), so a generous time-out costs nothing; what it buys is that
	// a peer which gets no CPU for a while, as on a busy host, does not count as dead: that takes 8 x 0.54 s.
	defaultTimeout  = 17
	defaultRetries  = 7
	defaultRNRTimer = 12 // 0.64 ms
	defaultRdAtomic = 16
	defaultHopLimit = 64

	// bth.Headroom leaves this too little for the longest packet over IPv6, an RDMA WRITE Only with Immediate: IP header 40,
	// UDP 8, BTH 12, RETH 16, ImmDt 4, ICRC 4 bytes beside the payload. (rxe reckons so too, but the kernel would fragment it.)
	ipv6Extra = 4

	allRemote = RemoteWrite | RemoteRead | RemoteAtomic | FlushGlobal | FlushPersistent
)

// Local is what the peer has to know of this end before it connects.
func (q *QP) Local() Endpoint {
	g, _ := q.device().localGID(int(q.gid), GID{}) // no address any more: the zero GID, which Connect refuses
	return Endpoint{
		QPN: q.QPN(), PSN: q.psn, GID: g.GID, MTU: q.device().Info().ActiveMTU,
		PKey: DefaultPKey, QKey: QKey(q.qkey.Load()),
	}
}

// Connect brings an RC or UC QP from RESET or INIT over RTR to RTS, towards remote, which the peer's Local gave. The
// peer's address is resolved first, which may wait for a neighbour look-up until ctx is done. Both ends connect, in any
// order; a peer that is not ready yet loses the first packets, which RC sends again.
func (q *QP) Connect(ctx context.Context, remote Endpoint, o ConnectOptions) error {
	if q.closed.Load() {
		return ErrClosed
	}
	if err := q.checkRemote(&remote, &o); err != nil {
		return err
	}
	local, err := q.device().localGID(int(q.gid), remote.GID)
	if err != nil {
		return err
	}
	if o.SourcePort == 0 {
		o.SourcePort = frame.SourcePort(q.QPN(), remote.QPN)
	}
	path, mtu, err := q.device().resolve(ctx, local, remote.GID, o.PathOptions)
	if err != nil {
		return err
	}
	if mtu = smallestMTU(mtu, remote.MTU, o.MTU); mtu == 0 {
		return ErrMTU
	}
	return q.raise(q.steps(&remote, &o, path, mtu))
}

func (q *QP) checkRemote(remote *Endpoint, o *ConnectOptions) error {
	switch {
	case q.Type() == UD:
		return fmt.Errorf("%w: a UD QP does not connect; Activate it and name the peer in each work request", ErrInvalid)
	case remote.QPN == 0 || remote.QPN >= bth.QPNMulticast:
		return fmt.Errorf("%w: remote QPN %v", ErrInvalid, remote.QPN)
	case remote.GID.IsZero() || remote.GID.IsMulticast():
		return fmt.Errorf("%w: remote GID %v", ErrInvalid, remote.GID)
	case (remote.MTU != 0 && !remote.MTU.Valid()) || (o.MTU != 0 && !o.MTU.Valid()):
		return fmt.Errorf("%w: path MTU %d or %d; valid are 256, 512, 1024, 2048 and 4096", ErrInvalid, remote.MTU, o.MTU)
	}
	return nil
}

// Activate brings a UD QP to RTS. Senders have to name qkey in their work requests.
func (q *QP) Activate(qkey QKey) error {
	if q.Type() != UD {
		return fmt.Errorf("%w: a QP of type %v has to Connect", ErrInvalid, q.Type())
	}
	init, initMask := initAttr(UD, 0, qkey)
	return q.raise([]step{
		{init, initMask},
		{Attr{State: StateRTR}, AttrState},
		{Attr{State: StateRTS, SQPSN: q.psn}, AttrState | AttrSQPSN},
	})
}

// step is one modify on the way to RTS.
type step struct {
	attr Attr
	mask AttrMask
}

// raise goes all steps in one command, so that no packet sees a half-made QP. After an error the QP is in the state that
// it reached.
func (q *QP) raise(steps []step) error {
	var err error
	gone := q.device().do(func(now qp.Time) {
		for i := range steps {
			if err = q.modify(now, &steps[i].attr, steps[i].mask); err != nil {
				err = fmt.Errorf("roce: bring the QP to %v: %w", steps[i].attr.State, err)
				return
			}
		}
	})
	if gone != nil {
		return gone
	}
	return err
}

func initAttr(t QPType, access Access, qkey QKey) (Attr, AttrMask) {
	a := Attr{State: StateInit, PKey: DefaultPKey, Access: access, QKey: qkey}
	if t == UD {
		return a, AttrState | AttrPKey | AttrQKey
	}
	return a, AttrState | AttrPKey | AttrAccess
}

// steps are verbs' three steps, with what each needs for the QP's type.
func (q *QP) steps(remote *Endpoint, o *ConnectOptions, path *Path, mtu MTU) []step {
	access := o.Access
	if access == 0 {
		access = allRemote
	}
	init, initMask := initAttr(q.Type(), access, 0)
	rtr := step{
		Attr{State: StateRTR, Path: *path, PathMTU: mtu, DestQPN: remote.QPN, RQPSN: remote.PSN},
		AttrState | AttrPath | AttrPathMTU | AttrDestQPN | AttrRQPSN,
	}
	rts := step{Attr{State: StateRTS, SQPSN: q.psn}, AttrState | AttrSQPSN}
	if q.Type() == RC {
		rtr.attr.MaxDestRdAtomic = uint8(orDefault(o.MaxDestRdAtomic, defaultRdAtomic))
		rtr.attr.MinRNRTimer = uint8(orDefault(o.MinRNRTimer, defaultRNRTimer))
		rtr.mask |= AttrMaxDestRdAtomic | AttrMinRNRTimer
		rts.attr.Timeout = uint8(orDefault(o.Timeout, defaultTimeout))
		rts.attr.RetryCnt = uint8(orDefault(o.Retries, defaultRetries))
		rts.attr.RNRRetry = uint8(orDefault(o.RNRRetries, defaultRetries))
		rts.attr.MaxRdAtomic = uint8(orDefault(o.MaxRdAtomic, defaultRdAtomic))
		rts.mask |= AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrMaxRdAtomic
	}
	return []step{{init, initMask}, rtr, rts}
}

// orDefault reads an option: 0 means the default, negative means 0. What does not fit a byte becomes 255, which the
// engine refuses by name.
func orDefault(v, def int) int {
	switch {
	case v == 0:
		return def
	case v < 0:
		return 0
	}
	return min(v, 255)
}

// smallestMTU takes the least of those that are given.
func smallestMTU(ms ...MTU) MTU {
	var least MTU
	for _, m := range ms {
		if m != 0 && (least == 0 || m < least) {
			least = m
		}
	}
	return least
}

// ResolvePath finds the way from the GID with index gidIndex to remote: for Modify with AttrPath. It may wait for a
// neighbour look-up until ctx is done. The MTU is the largest path MTU that this end's interface and the route carry.
func (d *Device) ResolvePath(ctx context.Context, gidIndex int, remote GID, o PathOptions) (*Path, MTU, error) {
	local, err := d.localGID(gidIndex, remote)
	if err != nil {
		return nil, 0, err
	}
	return d.resolve(ctx, local, remote, o)
}

// resolve builds the path from one of our addresses to a peer.
func (d *Device) resolve(ctx context.Context, local GIDEntry, remote GID, o PathOptions) (*Path, MTU, error) {
	if d.closing.Load() {
		return nil, 0, ErrClosed
	}
	if d.isOwn(remote) {
		return nil, 0, fmt.Errorf("%w: %v is an address of this device itself, and it has no loop inside: use two devices", ErrUnreachable, remote.Addr())
	}
	hop, err := d.net.Resolve(ctx, local.Addr, remote.Addr())
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %v: %w", ErrUnreachable, remote.Addr(), err)
	}
	info := d.Info()
	room := minMTU(hop.MTU, info.MTU)
	if !remote.IsIPv4() {
		room -= ipv6Extra
	}
	mtu := bth.MTUFor(room)
	if mtu == 0 {
		return nil, 0, ErrMTU
	}
	if o.HopLimit == 0 {
		o.HopLimit = defaultHopLimit
	}
	if o.SourcePort == 0 {
		o.SourcePort = frame.SourcePort(0, QPN(remote[13])<<16|QPN(remote[14])<<8|QPN(remote[15]))
	}
	p := frame.NewPath(&frame.Address{
		SrcMAC: info.MAC, DstMAC: hop.MAC, VLAN: hop.VLAN, Src: local.GID, Dst: remote,
		SrcPort: o.SourcePort, TrafficClass: o.TrafficClass, HopLimit: o.HopLimit, FlowLabel: o.FlowLabel,
	})
	return &p, mtu, nil
}

// minMTU takes the smaller of the route's and the interface's MTU; 0 is unknown.
func minMTU(route, iface int) int {
	if route == 0 {
		return iface
	}
	return min(route, iface)
}
