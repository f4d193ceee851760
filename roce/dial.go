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

// Reasons that applications meet.
const (
	RejectNoListener = cm.ReasonInvalidServiceID // nobody listens on that port
	RejectStale      = cm.ReasonStaleConnection  // the peer takes our QP for connected already
	RejectConsumer   = cm.ReasonConsumer         // the application said no

	RejectNoQP        = cm.ReasonNoQP        // no QP is left for the request
	RejectNoResources = cm.ReasonNoResources // nor anything else
	RejectUnsupported = cm.ReasonUnsupported // the service cannot do what the request asks for
)

// rejectHints say what the common reasons mean for whoever dials.
var rejectHints = map[RejectReason]string{
	RejectNoListener: ": nobody listens on that port there",
	RejectStale:      ": the peer takes this QP for connected already: use a new one",
	RejectConsumer:   ": the program there said no, perhaps with words in PrivateData",
}

// RejectError is a peer's refusal.
type RejectError struct {
	Reason      RejectReason
	PrivateData []byte // the application's own words, zeros behind them

	mtu   MTU  // the largest that the peer would take, if that is what it refused for
	local bool // this end refused what the peer answered
}

func (e *RejectError) Error() string {
	if e.local {
		return fmt.Sprintf("%v: %v: the QP that the peer named is that of an older connection here, which ends now: dial again", ErrRefused, e.Reason)
	}
	return fmt.Sprintf("%v: %v%s", ErrRefused, e.Reason, rejectHints[e.Reason])
}

// Unwrap makes errors.Is(err, ErrRefused) hold.
func (e *RejectError) Unwrap() error { return ErrRefused }

// DialOptions shape a connection; the zero value is good.
type DialOptions struct {
	ConnectOptions        // timeouts, retries, depths, path MTU; each with its default
	PrivateData    []byte // for the listener to look at: 56 bytes at most
}

// Dial connects a QP in INIT, RC or UC, to who listens at addr: any RDMA host whose programs use rdma_cm. Receives may be
// posted before. It returns when both ends can send, or with ctx's error, ErrNoAnswer, or a *RejectError. A peer that
// refuses for the path MTU and names a smaller one is asked again with that.
//
// If it fails because of the peer or ctx before the peer has agreed, the QP is still in INIT and may dial again.
func (d *Device) Dial(ctx context.Context, addr netip.AddrPort, q *QP, o DialOptions) (*Conn, error) {
	if q.device() != d {
		return nil, ErrForeign
	}
	if err := dialable(addr); err != nil {
		return nil, err
	}
	remote := bth.GIDFromAddr(addr.Addr())
	local, err := d.localGID(int(q.gid), remote)
	if err != nil {
		return nil, err
	}
	if o.MTU != 0 && !o.MTU.Valid() {
		return nil, fmt.Errorf("%w: path MTU %d: choose 256, 512, 1024, 2048 or 4096", ErrInvalid, o.MTU)
	}
	path, mtu, err := d.resolve(ctx, local, remote, o.PathOptions)
	if err != nil {
		return nil, err
	}
	mtu = smallestMTU(mtu, o.MTU)
	for {
		c, err := d.dial(ctx, addr, q, &o, path, q.request(&o, local.GID, remote, addr.Port(), mtu))
		var no *RejectError
		if !errors.As(err, &no) || !no.mtu.Valid() || no.mtu >= mtu {
			return c, err
		}
		mtu = no.mtu
	}
}

// dialable refuses addresses that can be nobody's.
func dialable(addr netip.AddrPort) error {
	if a := addr.Addr(); !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || addr.Port() == 0 {
		return fmt.Errorf("%w: %v is no peer's address: it takes a unicast IP address and a port", ErrInvalid, addr)
	}
	return nil
}

// dial asks once.
func (d *Device) dial(ctx context.Context, addr netip.AddrPort, q *QP, o *DialOptions, path *Path, p *cm.ConnectParams) (*Conn, error) {
	talk, err := d.ask(q, path, p)
	if err != nil {
		return nil, err
	}
	e, err := d.next(ctx, talk)
	if err == nil {
		err = refusal(&e, cm.EventConnectResponse)
	}
	if err == nil {
		err = q.ready(talk, p, e.Response, path, o)
	}
	if err != nil {
		d.hangUp(q, talk)
		return nil, err
	}
	c := &Conn{
		qp: q, talk: talk, local: netip.AddrPortFrom(p.Local.Addr(), p.SourcePort), remote: addr, private: e.PrivateData,
	}
	c.start()
	return c, nil
}

// request fills in what the REQ says.
func (q *QP) request(o *DialOptions, local, remote GID, port uint16, mtu MTU) *cm.ConnectParams {
	p := &cm.ConnectParams{
		Local: local, Remote: remote, Service: cm.TCPService(port), SourcePort: ephemeralPort(uint32(q.QPN())),
		QPN: q.QPN(), PSN: q.psn, PKey: DefaultPKey, MTU: mtu, SRQ: q.srq != nil,
		RetryCount: uint8(orDefault(o.Retries, defaultRetries)), RNRRetry: uint8(orDefault(o.RNRRetries, defaultRetries)),
		TrafficClass: o.TrafficClass, HopLimit: o.HopLimit, FlowLabel: o.FlowLabel, PrivateData: o.PrivateData,
		AckTimeout: uint8(orDefault(o.Timeout, defaultTimeout)),
	}
	if q.Type() == UC {
		p.Transport = cm.UC
		return p
	}
	p.ResponderResources = uint8(orDefault(o.MaxDestRdAtomic, defaultRdAtomic))
	p.InitiatorDepth = uint8(orDefault(o.MaxRdAtomic, defaultRdAtomic))
	return p
}

// ephemeralPort is the port of the ephemeral range for a number, the QPN say: as source port in the rdma_cm header, on which
// nothing depends, or to listen on any.
func ephemeralPort(n uint32) uint16 { return 0xc000 | uint16(n)&0x3fff }

// ask sends the REQ and makes the dialogue.
func (d *Device) ask(q *QP, path *Path, p *cm.ConnectParams) (talk *dialogue, err error) {
	gone := d.do(func(now qp.Time) {
		g := d.gsi
		if err = q.free(); err != nil {
			return
		}
		var id cm.CommID
		if id, err = g.cm.Connect(cm.Time(now), p); err != nil {
			return
		}
		talk = newDialogue(id, path.GIDs())
		g.conns[id], q.talk = talk, talk
		g.holdWay(talk, path)
		g.transmit(now)
	})
	return talk, errors.Join(gone, err)
}

// free tells whether the QP may begin a connection. Owner only.
func (q *QP) free() error {
	switch {
	case q.closed.Load():
		return ErrClosed
	case q.Type() == UD:
		return fmt.Errorf("%w: a UD QP does not connect; see ResolveUD", ErrInvalid)
	case q.talk != nil || q.State() != StateInit:
		return fmt.Errorf("%w: the QP is connected, or was; make a new one", ErrInvalid)
	}
	return nil
}

// refusal turns an event that is not the wanted one into an error.
func refusal(e *cm.Event, want cm.EventKind) error {
	switch e.Kind {
	case want:
		return nil
	case cm.EventRejected:
		return &RejectError{Reason: e.Reason, PrivateData: e.PrivateData, mtu: e.RejectedMTU(), local: e.Local}
	case cm.EventUnreachable:
		return ErrNoAnswer
	}
	return ErrDisconnected
}

// ready brings the QP to RTS with what both ends agreed on and tells the peer.
func (q *QP) ready(talk *dialogue, p *cm.ConnectParams, r *cm.Response, path *Path, o *DialOptions) error {
	attr := p.ActiveQP(r)
	var err error
	gone := q.device().do(func(now qp.Time) {
		if err = q.climb(now, &attr, path, &o.ConnectOptions, StateRTS); err == nil {
			err = q.device().gsi.cm.Ready(cm.Time(now), talk.id, nil)
			q.device().gsi.transmit(now)
		}
	})
	if err != nil {
		err = talk.ending(err) // the peer may have ended it right behind its consent
	}
	return errors.Join(gone, err)
}

// climb takes the steps from INIT up to a state. Owner only.
func (q *QP) climb(now qp.Time, a *cm.QPAttributes, path *Path, o *ConnectOptions, to State) error {
	flow := *path
	flow.SetSourcePort(frame.SourcePort(q.QPN(), a.RemoteQPN))
	c := *o
	c.MaxRdAtomic, c.MaxDestRdAtomic = atLeastNone(a.MaxRdAtomic), atLeastNone(a.MaxDestRdAtomic)
	c.Timeout, c.Retries, c.RNRRetries = atLeastNone(a.Timeout), atLeastNone(a.RetryCount), atLeastNone(a.RNRRetry)
	for _, s := range q.steps(&Endpoint{QPN: a.RemoteQPN, PSN: a.RQPSN}, &c, &flow, a.MTU) {
		st := q.State()
		if done := s.attr.State < st || (s.attr.State == st && st != StateInit); done || s.attr.State > to {
			continue
		}
		s.attr.SQPSN = a.SQPSN
		if err := q.modify(now, &s.attr, s.mask); err != nil {
			return fmt.Errorf("roce: bring the QP to %v: %w", s.attr.State, err)
		}
	}
	return nil
}

// atLeastNone writes a count as options have it: negative means none.
func atLeastNone(v uint8) int {
	if v == 0 {
		return -1
	}
	return int(v)
}

// hangUp gives up on a dialogue. The QP, if it has got beyond INIT, is of no further use.
func (d *Device) hangUp(q *QP, talk *dialogue) {
	_ = d.do(func(now qp.Time) {
		g := d.gsi
		if q != nil && q.device() == d && q.talk == talk {
			q.talk = nil
			q.spoil(now)
		}
		g.abort(now, talk)
		g.dispatch(now)
		g.transmit(now)
	})
}

// spoil puts a QP that was on its way to a connection into ERR, which flushes it. Owner only.
func (q *QP) spoil(now qp.Time) {
	if st := q.State(); !q.closed.Load() && st != StateReset && st != StateInit {
		_ = q.qp.Modify(now, &Attr{State: StateErr}, AttrState) // any state goes there
	}
}
