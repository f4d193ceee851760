package roce

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"sync/atomic"

	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce/cm"
)

// Request is a peer's request for a connection or for a datagram QP. Answer it once; a second
// answer returns ErrAnswered. If the peer has stopped waiting, the answer returns ErrRequestOver. A
// peer whose request is never answered waits until its retries are exhausted.
type Request struct {
	dev     *Device
	id      *cmID
	req     *cm.Request
	private []byte
	over    atomic.Bool
}

// claim reserves the right to answer.
func (r *Request) claim() error {
	if r.over.Swap(true) {
		return ErrAnswered
	}
	return nil
}

// RemoteAddr returns the IP address that the request came from, which an accepted QP will send to,
// and the port in the rdma_cm header, 0 if there is none. Use this address for access control. The
// address in the rdma_cm header (Params().Source) is only the peer's claim.
func (r *Request) RemoteAddr() netip.AddrPort {
	return netip.AddrPortFrom(r.req.Addr.Remote.Addr(), r.req.Source.Port())
}

// LocalAddr returns the address and port that the request was sent to.
func (r *Request) LocalAddr() netip.AddrPort {
	return netip.AddrPortFrom(r.req.Addr.Local.Addr(), r.req.Service.Port())
}

// PrivateData returns the private data of the request. It is the whole field of the message: the
// peer's data is followed by zeros. See EncodePrivateData.
func (r *Request) PrivateData() []byte { return r.private }

// ConnRequest holds what a peer asks for in a connection request: Request.Params returns one.
// Depths are those of the peer. Package roce/cm has the types of the fields.
type ConnRequest struct {
	Addr               cm.Addr
	Service            cm.ServiceID // names the listener; its method Port returns the port
	GUID               cm.GUID      // of the peer's device
	Transport          cm.Transport // RC, UC or UD
	QPN                QPN
	PSN                PSN // of the first packet that the accepting side sends
	PKey               PKey
	MTU                MTU
	ResponderResources uint8 // READs and atomics that the peer accepts at a time
	InitiatorDepth     uint8 // READs and atomics that the peer wants to have outstanding
	RetryCount         uint8 // for the QP that accepts: retries after timeouts
	RNRRetry           uint8 // for the QP that accepts: retries after RNR NAKs; 7: no limit
	FlowControl, SRQ   bool
	AckTimeout         uint8  // for the QP that accepts: 4.096 us << n
	FlowLabel          uint32 // IPv6
	TrafficClass       uint8  // IPv4 TOS or IPv6 traffic class
	SL                 uint8  // service level: the priority in VLAN tags
	HopLimit           uint8
	Features           Features       // that the peer offers
	Source             netip.AddrPort // from the rdma_cm header: the peer's claim; may be invalid
	Destination        netip.AddrPort // from the rdma_cm header
}

// Params returns the contents of the request, such as the peer's QPN, depths and timeouts.
func (r *Request) Params() *ConnRequest { return (*ConnRequest)(r.req) }

// AcceptOptions are options of Request.Accept. The zero value suits most programs. The values that
// the peer requests are upper limits.
//
// The peer chooses Timeout, Retries and RNRRetries of the QP (IBA 12.7). Its Local ACK Timeout is
// limited to MaxAckTimeout, 4.3 s. A positive Timeout limits it further.
//
// The peer also chooses the traffic class, by the traffic class and service level of its request,
// and the DSCP, unless QPConfig.Class or Class and TrafficClass of these options choose others. A
// negative Class keeps a peer out of the higher classes.
type AcceptOptions struct {
	// Accept uses MaxRdAtomic, MaxDestRdAtomic, Timeout, RNRRetries, MinRNRTimer, Access, MTU,
	// KeepAlive and the PathOptions.
	ConnectOptions
	PrivateData []byte // for the peer; at most 196 bytes, 188 for selective repeat
}

// Accept accepts the request with a QP in StateInit of the type that the peer requests (Params). It
// returns when the peer has confirmed the connection. Otherwise it refuses the peer and returns the
// error of ctx, ErrRequestOver, ErrNoAnswer or a *RejectError, and the QP cannot be used again.
//
// The request may be forged, and then the peer never confirms: Accept gives up after 15 s. If the
// peer asks for more time, it gets up to 5 minutes. So call Accept in a separate goroutine if there
// may be other requests, and give ctx a deadline.
//
// Other errors: ErrAnswered, ErrInvalid, ErrClass, ErrForeign, ErrPKey, ErrMTU, ErrUnreachable,
// ErrPrivateData, ErrConnParams, ErrClosed.
func (r *Request) Accept(ctx context.Context, q *QP, o AcceptOptions) (*Conn, error) {
	checkContext(ctx)
	if q == nil {
		return nil, errNilQP // the request can still be answered
	}
	if err := r.claim(); err != nil {
		return nil, err
	}
	c, err := r.accept(ctx, q, &o)
	if err != nil {
		r.dev.log.failed("accept", r.LocalAddr(), r.RemoteAddr(), err)
		r.dev.giveUp(q, r.id)
		return nil, err
	}
	return c, nil
}

func (r *Request) accept(ctx context.Context, q *QP, o *AcceptOptions) (*Conn, error) {
	if err := r.check(q, o); err != nil {
		return nil, err
	}
	r.adopt(q, &o.PathOptions)
	mtu, path, err := r.resolve(ctx, o)
	if err != nil {
		return nil, err
	}
	a, ok := r.req.Negotiate(cm.Limits{
		MTU: mtu, SRQ: q.srq != nil, RNRRetry: uint8(orDefault(o.RNRRetries, defaultRetries)),
		ResponderResources: uint8(orDefault(o.MaxDestRdAtomic, defaultRdAtomic)),
		InitiatorDepth:     uint8(orDefault(o.MaxRdAtomic, defaultRdAtomic)),
		Features:           q.features(), PrivateLen: len(o.PrivateData),
	})
	if !ok {
		reason, info := cm.RejectMTU(mtu)
		return nil, errors.Join(&mtuError{asked: r.req.MTU, ours: mtu}, r.refuse(reason, info, nil))
	}
	a.QPN, a.PSN, a.PrivateData = q.QPN(), q.psn(), o.PrivateData
	attr := r.req.PassiveQP(&a)
	if o.Timeout > 0 {
		attr.Timeout = min(attr.Timeout, uint8(orDefault(o.Timeout, 0)))
	}
	if err := r.reply(q, &a, &attr, path, o); err != nil {
		return nil, err
	}
	e, err := r.dev.next(ctx, r.id)
	if err == nil {
		err = refusal(&e, cm.EventEstablished)
	}
	if err == nil {
		err = q.confirm(&attr, path, &o.ConnectOptions)
	}
	if err != nil {
		return nil, err
	}
	c := &Conn{qp: q, id: r.id, local: r.LocalAddr(), remote: r.RemoteAddr(), private: r.private}
	c.start(o.KeepAlive, math.MaxInt64)
	return c, nil
}

// check checks the arguments of Accept before anything is changed.
func (r *Request) check(q *QP, o *AcceptOptions) error {
	want := RC
	if r.req.Transport == cm.UC {
		want = UC
	}
	switch {
	case q.device() != r.dev:
		return ErrForeign
	case r.req.Service.IsUDP():
		return fmt.Errorf("%w: the peer requests a datagram QP: call AnswerUD", ErrInvalid)
	case q.Type() != want:
		return fmt.Errorf("%w: the peer requests a QP of type %v, not %v", ErrInvalid, want,
			q.Type())
	case o.MTU != 0 && !o.MTU.Valid():
		return invalidMTU(o.MTU)
	}
	if err := q.checkOptions(&o.ConnectOptions); err != nil {
		return err
	}
	if err := q.checkPKey(r.req.PKey); err != nil {
		return err
	}
	return checkPrivate(o.PrivateData, cm.REPPrivateLen)
}

func checkPrivate(b []byte, limit int) error {
	if len(b) > limit {
		return fmt.Errorf("%w: %d bytes, the message carries at most %d", ErrPrivateData, len(b),
			limit)
	}
	return nil
}

// resolve returns the path back to the peer and the largest path MTU.
func (r *Request) resolve(ctx context.Context, o *AcceptOptions) (MTU, *Path, error) {
	local := newGIDEntry(-1, r.req.Addr.Local.Addr())
	path, mtu, err := r.dev.resolve(ctx, local, r.req.Addr.Remote, o.PathOptions)
	return smallestMTU(mtu, o.MTU), path, err
}

// reply brings the QP to RTR, so that it can receive the peer's first packet, and sends the REP.
func (r *Request) reply(q *QP, a *cm.AcceptParams, attr *cm.QPAttributes, path *Path,
	o *AcceptOptions) error {
	var err error
	gone := r.dev.do(func(now qp.Time) {
		g := r.dev.gsi
		if err = q.checkUnconnected(); err != nil {
			return
		}
		if g.ids[r.id.comm] != r.id {
			err = ErrRequestOver
			return
		}
		q.cmID = r.id
		g.paths.use(r.id, path)
		if err = q.advance(now, attr, path, &o.ConnectOptions, StateRTR); err != nil {
			return
		}
		if err = g.cm.Accept(cm.Time(now), r.id.comm, a); err == nil {
			g.transmit(now)
		}
	})
	return errors.Join(gone, err)
}

// confirm brings an accepted QP from RTR to RTS.
func (q *QP) confirm(attr *cm.QPAttributes, path *Path, o *ConnectOptions) error {
	var err error
	gone := q.device().do(func(now qp.Time) { err = q.advance(now, attr, path, o, StateRTS) })
	return errors.Join(gone, err)
}

// Reject refuses the request with RejectConsumer. private is for the peer: at most 148 bytes, or
// 136 for datagrams.
//
// Errors: ErrAnswered, ErrRequestOver, ErrPrivateData, ErrClosed.
func (r *Request) Reject(private []byte) error { return r.RejectWith(RejectConsumer, private) }

// RejectWith refuses the request with another reason (IBA 12.6.7.2), such as RejectNoResources. In
// programs on rdma_cm it is the status of the event. For datagrams only RejectConsumer,
// RejectNoListener and RejectNoQP exist (IBA 12.11.2). For other reasons RejectWith returns
// ErrReason, and the request can still be answered.
//
// Other errors: those of Reject.
func (r *Request) RejectWith(reason RejectReason, private []byte) error {
	if !rejectable[reason] {
		return fmt.Errorf("%w: %v", ErrReason, reason)
	}
	if r.req.Service.IsUDP() {
		for status, equivalent := range sidrReasons {
			if equivalent == reason {
				return r.answerUD(&cm.SIDRReply{Status: status, PrivateData: private})
			}
		}
		return fmt.Errorf("%w: %v", ErrReason, reason)
	}
	if err := checkPrivate(private, cm.REJPrivateLen); err != nil {
		return err
	}
	if err := r.claim(); err != nil {
		return err
	}
	r.dev.log.rejected(r, reason)
	return r.refuse(reason, nil, private)
}

// rejectable are the reasons that an application can give. They need no additional information, and
// they say nothing about the message that only the connection manager can know.
var rejectable = map[RejectReason]bool{
	RejectConsumer: true, RejectNoListener: true, RejectNoQP: true, RejectNoResources: true,
	RejectUnsupported: true,
}

// refuseFor refuses the request because of err, unless it is answered: ErrIgnore and a *RejectError
// choose how.
func (r *Request) refuseFor(err error) {
	var no *RejectError
	switch {
	case r.over.Load():
	case errors.Is(err, ErrIgnore):
		r.ignore()
	case !errors.As(err, &no) || r.RejectWith(no.Reason, no.PrivateData) != nil:
		_ = r.Reject(nil) // fails if the peer no longer waits
	}
}

func (r *Request) refuse(reason cm.Reason, info, private []byte) error {
	return r.answer(func(now qp.Time, m *cm.CM) error {
		return m.Reject(cm.Time(now), r.id.comm, reason, info, private)
	})
}

// ignore discards the request without an answer.
func (r *Request) ignore() {
	if r.claim() != nil {
		return
	}
	_ = r.answer(func(now qp.Time, m *cm.CM) error { return m.Ignore(cm.Time(now), r.id.comm) })
}

// AnswerUD answers a request for a datagram QP with q, which must be active (QP.Activate).
//
// Errors: ErrAnswered, ErrRequestOver, ErrInvalid, ErrForeign, ErrPKey, ErrPrivateData, ErrClosed.
func (r *Request) AnswerUD(q *QP, private []byte) error {
	switch {
	case q.device() != r.dev:
		return ErrForeign
	case q.Type() != UD || q.closed.Load():
		return fmt.Errorf("%w: answer a request for datagrams with an active UD QP", ErrInvalid)
	}
	if err := q.checkPKey(r.req.PKey); err != nil {
		return err
	}
	return r.answerUD(&cm.SIDRReply{QPN: q.QPN(), QKey: q.qkey(), PrivateData: private})
}

func (r *Request) answerUD(a *cm.SIDRReply) error {
	if !r.req.Service.IsUDP() {
		return fmt.Errorf("%w: the peer requests a connection: call Accept", ErrInvalid)
	}
	if err := checkPrivate(a.PrivateData, cm.SIDRREPPrivateLen); err != nil {
		return err
	}
	if err := r.claim(); err != nil {
		return err
	}
	return r.answer(func(now qp.Time, m *cm.CM) error {
		return m.ReplySIDR(cm.Time(now), r.id.comm, a)
	})
}

// answer runs f, which gives the connection manager an answer for the peer.
func (r *Request) answer(f func(qp.Time, *cm.CM) error) error {
	var err error
	gone := r.dev.do(func(now qp.Time) {
		g := r.dev.gsi
		if g.ids[r.id.comm] != r.id {
			err = ErrRequestOver
			return
		}
		err = f(now, g.cm)
		g.dispatch(now)
		g.transmit(now)
	})
	return errors.Join(gone, err)
}
