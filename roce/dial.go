package roce

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce/cm"
)

// RejectReason is the reason for refusing a connection (IBA 12.6.7.2). Its String method explains
// it. Package roce/cm lists all reasons.
type RejectReason = cm.Reason

// Reasons of refused connections that applications see or give.
const (
	RejectNoListener  RejectReason = cm.ReasonInvalidServiceID // no listener on that port
	RejectStale       RejectReason = cm.ReasonStaleConnection  // the peer has connected the QP
	RejectConsumer    RejectReason = cm.ReasonConsumer         // refused by the application
	RejectNoQP        RejectReason = cm.ReasonNoQP             // no QP is available
	RejectNoResources RejectReason = cm.ReasonNoResources      // no other resource is available
	RejectUnsupported RejectReason = cm.ReasonUnsupported      // the request is not supported
)

// rejectHints explain the common reasons to the side that dials.
var rejectHints = map[RejectReason]string{
	RejectNoListener: ": no listener on that port",
	RejectStale:      ": the peer considers this QP connected already: use a new one",
	RejectConsumer:   ": refused by the application; PrivateData may say why",
	cm.ReasonTimeout: ": the peer has stopped waiting for this side: dial again",
	RejectNoQP:       ": the peer has no QP for it: dial again later",
	RejectNoResources: ": the peer may have all connections that it permits: " +
		"dial again later, or raise its limits (ServeConfig.MaxConns, MaxConnsPerPeer)",
	RejectUnsupported: ": the peer may serve another type of QP or another partition (P_Key)",
}

// RejectError is a refused connection request. It matches ErrRefused.
type RejectError struct {
	Reason      RejectReason
	PrivateData []byte // of the peer's application, followed by zeros

	mtu   MTU  // the largest path MTU that the peer supports, if that was the reason
	local bool // the local side refused the peer's reply
}

// Error returns the message.
func (e *RejectError) Error() string {
	if e.local {
		return fmt.Sprintf("%v: %v: the peer replied with a QP of an older connection, "+
			"which ends unless its peer answers: dial again later", ErrRefused, e.Reason)
	}
	return fmt.Sprintf("%v: %v%s", ErrRefused, e.Reason, rejectHints[e.Reason])
}

// Unwrap returns ErrRefused.
func (e *RejectError) Unwrap() error { return ErrRefused }

// DialOptions are options of Dial. The zero value suits most programs.
type DialOptions struct {
	ConnectOptions
	PrivateData []byte // for the listener; at most 56 bytes, 48 for selective repeat
}

// Dial connects an RC or UC QP in StateInit to a listener at addr, which may be any program on
// rdma_cm. Receives may be posted before. Dial returns when both sides can send. It fails with the
// error of ctx, ErrNoAnswer, or a *RejectError. If the peer refuses the path MTU and names a
// smaller one, Dial tries again with that. Without QPConfig.GIDIndex, the route to addr selects the
// local address.
//
// Give ctx a deadline. Without one, Dial gives up after about 2.5 minutes if a listener has the
// request but nobody calls Accept, and earlier if nothing answers.
//
// If Dial fails before the peer has accepted, the QP is still in StateInit and can dial again.
//
// Other errors: ErrInvalid, ErrClass, ErrForeign, ErrNoGID, ErrFamily, ErrUnreachable, ErrMTU,
// ErrPrivateData, ErrConnParams, ErrTooManyConns, ErrClosed.
func (d *Device) Dial(ctx context.Context, addr netip.AddrPort, q *QP, o DialOptions) (
	*Conn, error) {
	checkContext(ctx)
	c, err := d.dial(ctx, addr, q, o)
	d.log.failed("dial", netip.AddrPort{}, addr, err)
	return c, err
}

func (d *Device) dial(ctx context.Context, addr netip.AddrPort, q *QP, o DialOptions) (
	*Conn, error) {
	if q == nil {
		return nil, errNilQP
	}
	if q.device() != d {
		return nil, ErrForeign
	}
	if err := dialable(addr); err != nil {
		return nil, err
	}
	remote := bth.GIDFromAddr(addr.Addr())
	local, err := d.localGID(q.gidIndex(), remote)
	if err != nil {
		return nil, err
	}
	if o.MTU != 0 && !o.MTU.Valid() {
		return nil, invalidMTU(o.MTU)
	}
	if err := q.checkOptions(&o.ConnectOptions); err != nil {
		return nil, err
	}
	if q.gidIndex() < 0 {
		local.Addr = netip.Addr{} // the route selects it
	}
	o.Class = q.chosenClass(o.Class)
	path, mtu, err := d.resolve(ctx, local, remote, o.PathOptions)
	if err != nil {
		return nil, err
	}
	mtu = smallestMTU(mtu, o.MTU)
	for {
		c, err := d.dialOnce(ctx, addr, q, &o, path,
			q.request(&o, path, addr.Port(), mtu))
		var rejected *RejectError
		if !errors.As(err, &rejected) || !rejected.mtu.Valid() || rejected.mtu >= mtu {
			return c, err
		}
		mtu = rejected.mtu
	}
}

// errNilQP means that a call needs a QP and got none.
var errNilQP = fmt.Errorf("%w: the QP is nil: make one with Device.CreateQP", ErrInvalid)

// checkContext panics for a nil context, before anything has changed.
func checkContext(ctx context.Context) {
	if ctx == nil {
		panic("roce: nil Context")
	}
}

// dialable refuses addresses that are not unicast.
func dialable(addr netip.AddrPort) error {
	if a := addr.Addr(); !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || addr.Port() == 0 {
		return fmt.Errorf("%w: %v: give a unicast IP address and a port", ErrInvalid, addr)
	}
	return nil
}

func invalidMTU(m MTU) error {
	return fmt.Errorf("%w: path MTU %d: choose 256, 512, 1024, 2048 or 4096", ErrInvalid, m)
}

// dialOnce sends one request and waits for the reply.
func (d *Device) dialOnce(ctx context.Context, addr netip.AddrPort, q *QP, o *DialOptions,
	path *Path, p *cm.ConnectParams) (*Conn, error) {
	id, err := d.sendRequest(q, path, p)
	if err != nil {
		return nil, err
	}
	e, err := d.next(ctx, id)
	if err == nil {
		err = refusal(&e, cm.EventConnectResponse)
	}
	if err == nil {
		err = q.ready(id, p, e.Response, path, o)
	}
	if err != nil {
		d.giveUp(q, id)
		return nil, err
	}
	c := &Conn{
		qp: q, id: id, local: netip.AddrPortFrom(p.Local.Addr(), p.SourcePort), remote: addr,
		private: e.PrivateData,
	}
	c.start(o.KeepAlive, dialProbe)
	return c, nil
}

// request returns the contents of the REQ. As with rdma_cm, its traffic class and service level
// tell the peer how to mark its packets.
func (q *QP) request(o *DialOptions, path *Path, port uint16, mtu MTU) *cm.ConnectParams {
	a := path.Address()
	p := &cm.ConnectParams{
		Local: a.Src, Remote: a.Dst, Service: cm.TCPService(port),
		SourcePort: ephemeralPort(uint32(q.QPN())), QPN: q.QPN(), PSN: q.psn(), PKey: q.pkey(),
		MTU: mtu, SRQ: q.srq != nil,
		RetryCount:   uint8(orDefault(o.Retries, defaultRetries)),
		RNRRetry:     uint8(orDefault(o.RNRRetries, defaultRetries)),
		TrafficClass: a.TrafficClass, SL: a.PCP, HopLimit: o.HopLimit, FlowLabel: o.FlowLabel,
		PrivateData: o.PrivateData, Features: q.features(),
		AckTimeout: uint8(orDefault(o.Timeout, defaultTimeout)),
	}
	if o.Timeout < 0 { // a REQ cannot say never: 0 means the default
		p.AckTimeout = MaxAckTimeout
	}
	if q.Type() == UC {
		p.Transport = cm.UC
		return p
	}
	p.ResponderResources = uint8(orDefault(o.MaxDestRdAtomic, defaultRdAtomic))
	p.InitiatorDepth = uint8(orDefault(o.MaxRdAtomic, defaultRdAtomic))
	return p
}

// ephemeralPort maps a number to the ephemeral port range.
func ephemeralPort(n uint32) uint16 { return 0xc000 | uint16(n)&0x3fff }

// sendRequest sends the REQ.
func (d *Device) sendRequest(q *QP, path *Path, p *cm.ConnectParams) (id *cmID, err error) {
	gone := d.do(func(now qp.Time) {
		g := d.gsi
		if err = q.checkUnconnected(); err != nil {
			return
		}
		var comm cm.CommID
		if comm, err = g.cm.Connect(cm.Time(now), p); err != nil {
			return
		}
		id = g.add(comm, path)
		q.cmID = id
		g.transmit(now)
	})
	return id, errors.Join(gone, err)
}

// checkUnconnected returns an error if the QP cannot start a connection. Owner only.
func (q *QP) checkUnconnected() error {
	switch {
	case q.closed.Load():
		return ErrClosed
	case q.Type() == UD:
		return fmt.Errorf("%w: a UD QP cannot connect: use ResolveUD", ErrInvalid)
	case q.cmID != nil || q.State() != StateInit:
		return fmt.Errorf("%w: the QP is or was connected: create a new one", ErrInvalid)
	}
	return nil
}

// refusal returns the error of an event of another kind than want.
func refusal(e *cm.Event, want cm.EventKind) error {
	switch e.Kind {
	case want:
		return nil
	case cm.EventRejected:
		return &RejectError{Reason: e.Reason, PrivateData: e.PrivateData, mtu: e.RejectedMTU(),
			local: e.Local}
	case cm.EventUnreachable:
		return ErrNoAnswer
	}
	return ErrDisconnected
}

// ready brings the QP to RTS with the negotiated attributes and sends the RTU.
func (q *QP) ready(id *cmID, p *cm.ConnectParams, r *cm.Response, path *Path,
	o *DialOptions) error {
	attr := p.ActiveQP(r)
	d := q.device()
	var err error
	gone := d.do(func(now qp.Time) {
		if err = q.advance(now, &attr, path, &o.ConnectOptions, StateRTS); err == nil {
			err = d.gsi.cm.Ready(cm.Time(now), id.comm, nil)
			d.gsi.transmit(now)
		}
	})
	if err != nil {
		err = id.cause(err) // the peer may have disconnected right after its reply
	}
	return errors.Join(gone, err)
}

// advance brings the QP from its state to a later one, at most to RTS. Owner only.
func (q *QP) advance(now qp.Time, a *cm.QPAttributes, path *Path, o *ConnectOptions,
	to State) error {
	flow := *path
	flow.SetSourcePort(frame.SourcePort(q.QPN(), a.RemoteQPN))
	c := *o
	c.MaxRdAtomic, c.MaxDestRdAtomic = asOption(a.MaxRdAtomic), asOption(a.MaxDestRdAtomic)
	c.Timeout, c.Retries = asOption(a.Timeout), asOption(a.RetryCount)
	c.RNRRetries = asOption(a.RNRRetry)
	remote := Endpoint{QPN: a.RemoteQPN, PSN: a.RQPSN, Features: a.Features}
	for _, s := range q.transitions(&remote, &c, &flow, a.MTU) {
		st := q.State()
		if done := s.attr.State < st || (s.attr.State == st && st != StateInit); done ||
			s.attr.State > to {
			continue
		}
		s.attr.SQPSN = a.SQPSN
		if err := q.modify(now, &s.attr, s.mask); err != nil {
			return transitionError(s.attr.State, err)
		}
	}
	return nil
}

// asOption converts a number to the form of ConnectOptions, where negative means 0.
func asOption(v uint8) int {
	if v == 0 {
		return -1
	}
	return int(v)
}

// giveUp ends a connection attempt. A QP beyond StateInit goes to StateErr.
func (d *Device) giveUp(q *QP, id *cmID) {
	_ = d.do(func(now qp.Time) {
		if q != nil && q.device() == d && q.cmID == id {
			q.cmID = nil
			q.fail(now)
		}
		d.gsi.abort(now, id)
		d.gsi.dispatch(now)
		d.gsi.transmit(now)
	})
}

// fail puts a QP that was being connected into StateErr, which flushes it. Owner only.
func (q *QP) fail(now qp.Time) {
	if st := q.State(); !q.closed.Load() && st != StateReset && st != StateInit {
		_ = q.halt(now)
	}
}
