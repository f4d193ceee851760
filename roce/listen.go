package roce

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce/cm"
)

// Listener takes connection requests that come to a port (RDMA_PS_TCP, or RDMA_PS_UDP for datagrams). RDMA ports are not
// the kernel's TCP or UDP ports: both may be in use under one number.
type Listener struct {
	dev   *Device
	queue *acceptQueue
	addr  netip.AddrPort
	id    cm.ListenerID
}

// ListenOptions shape a Listener; the zero value is good.
type ListenOptions struct {
	Backlog int // requests that wait for Accept at a time; 0: 1,024. Further ones are dropped; their senders repeat them.
}

// Listen makes the device accept requests to addr; an unspecified or invalid address stands for all addresses of the
// device, port 0 for any that is free (Listener.Addr tells which). Requests to ports where nobody listens are refused (reason 8).
func (d *Device) Listen(addr netip.AddrPort, o ListenOptions) (*Listener, error) {
	return d.listen(addr, false, o)
}

// ListenUD is Listen for datagram QPs: requests are those of ResolveUD, answered by Request.AnswerUD.
func (d *Device) ListenUD(addr netip.AddrPort, o ListenOptions) (*Listener, error) {
	return d.listen(addr, true, o)
}

func (d *Device) listen(addr netip.AddrPort, datagram bool, o ListenOptions) (*Listener, error) {
	local, err := d.listenGID(addr.Addr())
	if err != nil {
		return nil, err
	}
	if o.Backlog == 0 {
		o.Backlog = cm.DefaultBacklog
	}
	if !addr.Addr().IsValid() {
		addr = netip.AddrPortFrom(netip.IPv6Unspecified(), addr.Port())
	}
	l := &Listener{dev: d, addr: addr, queue: newAcceptQueue(o.Backlog)}
	gone := d.do(func(qp.Time) {
		if err = d.open(); err == nil {
			err = l.bind(cm.ListenParams{Service: serviceOf(datagram, addr.Port()), Local: local, Backlog: o.Backlog}, datagram)
		}
	})
	if err := errors.Join(gone, err); err != nil {
		return nil, err
	}
	return l, nil
}

// bind makes the listener known to the connection manager, with a port of the ephemeral range if it shall have any. Owner only.
func (l *Listener) bind(p cm.ListenParams, datagram bool) (err error) {
	g := l.dev.gsi
	const draws = 32
	for range draws {
		if l.addr.Port() == 0 {
			p.Service = serviceOf(datagram, ephemeralPort(uint32(l.dev.rand())))
		}
		l.id, err = g.cm.Listen(p)
		if l.addr.Port() != 0 || !errors.Is(err, ErrListening) {
			break
		}
	}
	if err != nil {
		return err
	}
	l.addr = netip.AddrPortFrom(l.addr.Addr(), p.Service.Port())
	g.listeners[l.id] = l.queue
	return nil
}

// Addr is what the listener was made for, with the port that it got.
func (l *Listener) Addr() netip.AddrPort { return l.addr }

// Accept waits for the next request, until ctx is done or the listener is closed (ErrClosed). The request wants an
// answer: Accept, Reject, or AnswerUD.
func (l *Listener) Accept(ctx context.Context) (*Request, error) {
	for {
		if in, ok := l.queue.get(); ok {
			return &Request{dev: l.dev, talk: in.talk, req: in.event.Request, private: in.event.PrivateData}, nil
		}
		if l.queue.isShut() || l.dev.closing.Load() {
			return nil, ErrClosed
		}
		if err := l.dev.standBy(ctx, l.queue.wake, l.queue.pending); err != nil {
			l.queue.pass() // the signal that this caller may have taken
			return nil, err
		}
	}
}

// Close stops listening. Requests that nobody has accepted yet are refused; connections that exist go on. Closing twice is
// harmless.
func (l *Listener) Close() error {
	err := l.dev.do(func(now qp.Time) {
		g := l.dev.gsi
		if g.listeners[l.id] != l.queue {
			return
		}
		delete(g.listeners, l.id)
		_ = g.cm.Unlisten(cm.Time(now), l.id)
		for in, ok := l.queue.get(); ok; in, ok = l.queue.get() {
			g.abort(now, in.talk)
		}
		l.queue.shut()
		g.dispatch(now)
		g.transmit(now)
	})
	if errors.Is(err, ErrClosed) {
		return nil
	}
	return err
}

// incoming is a request on its way to Accept.
type incoming struct {
	talk  *dialogue
	event cm.Event
}

// acceptQueue is bounded by the backlog, which the connection manager keeps, too. What its sender takes back, or waits for no
// longer, leaves it: else strangers could fill it with requests that count nowhere any more.
type acceptQueue struct {
	wake chan struct{} // capacity 1

	mu   sync.Mutex
	list list.List // of incoming
	max  int
	over bool
}

func newAcceptQueue(n int) *acceptQueue { return &acceptQueue{wake: make(chan struct{}, 1), max: n} }

func (q *acceptQueue) put(in incoming) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.over || q.list.Len() >= q.max {
		return false
	}
	in.talk.queue, in.talk.place = q, q.list.PushBack(in)
	q.signal()
	return true
}

// drop takes the request of a dialogue that has ended out, if it is still there.
func (q *acceptQueue) drop(d *dialogue) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.remove(d)
}

func (q *acceptQueue) remove(d *dialogue) {
	if d.place != nil {
		q.list.Remove(d.place)
		d.place = nil
	}
}

// get also passes the signal on, so that each of several callers of Accept gets its turn.
func (q *acceptQueue) get() (in incoming, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.list.Len() == 0 {
		return in, false
	}
	in = q.list.Front().Value.(incoming)
	if q.remove(in.talk); q.list.Len() > 0 {
		q.signal()
	}
	return in, true
}

func (q *acceptQueue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// pass wakes another caller of Accept if there is something for it.
func (q *acceptQueue) pass() {
	if q.pending() {
		q.signal()
	}
}

func (q *acceptQueue) pending() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.list.Len() > 0 || q.over
}

func (q *acceptQueue) isShut() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.over {
		q.signal() // for the next caller
	}
	return q.over
}

func (q *acceptQueue) shut() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.over = true
	q.signal()
}

// Request is a peer's wish for a connection, or for a datagram QP. Look at it, then answer it once; a second answer gives
// ErrAnswered, one to a peer that waits no more ErrRequestOver. Who never answers leaves the peer waiting until it gives up.
type Request struct {
	dev     *Device
	talk    *dialogue
	req     *cm.Request
	private []byte
	over    atomic.Bool
}

// answer claims the right to answer.
func (r *Request) answer() error {
	if r.over.Swap(true) {
		return ErrAnswered
	}
	return nil
}

// RemoteAddr is the peer: the address that the request came from, which is where an accepted QP will talk to, and the port in
// the rdma_cm header, 0 if there is none. The address in that header is the peer's claim (Params().Source); who decides by
// addresses whom to serve must not believe it.
func (r *Request) RemoteAddr() netip.AddrPort {
	return netip.AddrPortFrom(r.req.Addr.Remote.Addr(), r.req.Source.Port())
}

// LocalAddr is the address that the request came to, and its port.
func (r *Request) LocalAddr() netip.AddrPort {
	return netip.AddrPortFrom(r.req.Addr.Local.Addr(), r.req.Service.Port())
}

// PrivateData is what the peer said: the message's whole field, zeros behind the peer's bytes.
func (r *Request) PrivateData() []byte { return r.private }

// Params are the peer's own words: its QPN, its depths, its timeouts.
func (r *Request) Params() *ConnRequest { return r.req }

// AcceptOptions shape an accepted connection; the zero value is good. What the peer asks for is an upper bound.
//
// Timeout, Retries and RNRRetries of the QP are the peer's to choose: it knows the path that it asked for (IBA 12.7). Its
// Local ACK Timeout is taken up to MaxAckTimeout, 4.3 s; Timeout, if positive, limits it further.
type AcceptOptions struct {
	ConnectOptions        // of it: MaxRdAtomic, MaxDestRdAtomic, Timeout, RNRRetries, MinRNRTimer, Access, MTU, path options
	PrivateData    []byte // for the peer: 196 bytes at most
}

// Accept answers with a QP in INIT of the type that the peer asks for (Params), and returns when the peer is ready to
// receive, or with ctx's error, ErrRequestOver, ErrNoAnswer or a *RejectError: then the peer is refused, and the QP is of no
// further use. It waits for the peer, which may take its time or never have been there: so call it in a goroutine of its own,
// or others wait meanwhile, and with a ctx that ends.
func (r *Request) Accept(ctx context.Context, q *QP, o AcceptOptions) (*Conn, error) {
	if err := r.answer(); err != nil {
		return nil, err
	}
	c, err := r.accept(ctx, q, &o)
	if err != nil {
		r.dev.hangUp(q, r.talk)
		return nil, err
	}
	return c, nil
}

func (r *Request) accept(ctx context.Context, q *QP, o *AcceptOptions) (*Conn, error) {
	if err := r.fits(q, o); err != nil {
		return nil, err
	}
	mtu, path, err := r.path(ctx, o)
	if err != nil {
		return nil, err
	}
	a, ok := r.req.Negotiate(cm.Limits{
		MTU: mtu, SRQ: q.srq != nil, RNRRetry: uint8(orDefault(o.RNRRetries, defaultRetries)),
		ResponderResources: uint8(orDefault(o.MaxDestRdAtomic, defaultRdAtomic)), InitiatorDepth: uint8(orDefault(o.MaxRdAtomic, defaultRdAtomic)),
	})
	if !ok {
		reason, info := cm.RejectMTU(mtu)
		return nil, errors.Join(&mtuError{asked: r.req.MTU, ours: mtu}, r.refuse(reason, info, nil))
	}
	a.QPN, a.PSN, a.PrivateData = q.QPN(), q.psn, o.PrivateData
	attr := r.req.PassiveQP(&a)
	if o.Timeout > 0 {
		attr.Timeout = min(attr.Timeout, uint8(orDefault(o.Timeout, 0)))
	}
	if err := r.consent(q, &a, &attr, path, o); err != nil {
		return nil, err
	}
	e, err := r.dev.next(ctx, r.talk)
	if err == nil {
		err = refusal(&e, cm.EventEstablished)
	}
	if err == nil {
		err = q.rise(&attr, path, &o.ConnectOptions)
	}
	if err != nil {
		return nil, err
	}
	c := &Conn{qp: q, talk: r.talk, local: r.LocalAddr(), remote: r.RemoteAddr(), private: r.private}
	c.start()
	return c, nil
}

// fits refuses what cannot serve before anything is changed.
func (r *Request) fits(q *QP, o *AcceptOptions) error {
	want := RC
	if r.req.Transport == cm.UC {
		want = UC
	}
	switch {
	case q.device() != r.dev:
		return ErrForeign
	case r.req.Service.IsUDP():
		return fmt.Errorf("%w: the peer asks for a datagram QP; see AnswerUD", ErrInvalid)
	case q.Type() != want:
		return fmt.Errorf("%w: the peer asks for a QP of type %v, not %v", ErrInvalid, want, q.Type())
	case o.MTU != 0 && !o.MTU.Valid():
		return fmt.Errorf("%w: path MTU %d: choose 256, 512, 1024, 2048 or 4096", ErrInvalid, o.MTU)
	case len(o.PrivateData) > cm.REPPrivateLen:
		return fmt.Errorf("%w: %d bytes, an answer has room for %d", ErrPrivateData, len(o.PrivateData), cm.REPPrivateLen)
	}
	return nil
}

// path looks up the way back to the peer.
func (r *Request) path(ctx context.Context, o *AcceptOptions) (MTU, *Path, error) {
	local := newGIDEntry(-1, r.req.Addr.Local.Addr()) // the address that was asked
	path, mtu, err := r.dev.resolve(ctx, local, r.req.Addr.Remote, o.PathOptions)
	return smallestMTU(mtu, o.MTU), path, err
}

// consent brings the QP to RTR, so that it is ready for the peer's first packet, and sends the REP.
func (r *Request) consent(q *QP, a *cm.AcceptParams, attr *cm.QPAttributes, path *Path, o *AcceptOptions) error {
	var err error
	gone := r.dev.do(func(now qp.Time) {
		g := r.dev.gsi
		if err = q.free(); err != nil {
			return
		}
		if g.conns[r.talk.id] != r.talk {
			err = ErrRequestOver
			return
		}
		q.talk = r.talk
		g.holdWay(r.talk, path)
		if err = q.climb(now, attr, path, &o.ConnectOptions, StateRTR); err != nil {
			return
		}
		if err = g.cm.Accept(cm.Time(now), r.talk.id, a); err == nil {
			g.transmit(now)
		}
	})
	return errors.Join(gone, err)
}

// rise brings an accepted QP from RTR to RTS.
func (q *QP) rise(attr *cm.QPAttributes, path *Path, o *ConnectOptions) error {
	var err error
	gone := q.device().do(func(now qp.Time) { err = q.climb(now, attr, path, o, StateRTS) })
	return errors.Join(gone, err)
}

// Reject refuses the request as the application's wish (RejectConsumer), with up to 148 bytes of private data for the
// peer (136 for datagrams).
func (r *Request) Reject(private []byte) error { return r.RejectWith(RejectConsumer, private) }

// RejectWith refuses the request for another reason of the architecture's list (IBA 12.6.7.2), such as RejectNoResources;
// rdma_cm's programs see it as the event's status. A datagram's refusal knows RejectConsumer, RejectNoListener and RejectNoQP
// only (IBA 12.11.2). Other reasons are ErrReason, and the request still waits for its answer.
func (r *Request) RejectWith(reason RejectReason, private []byte) error {
	if r.req.Service.IsUDP() {
		for status, as := range sidrReasons {
			if as == reason && rejectable[reason] {
				return r.answerUD(&cm.SIDRReply{Status: status, PrivateData: private})
			}
		}
		return fmt.Errorf("%w: %v", ErrReason, reason)
	}
	switch {
	case !rejectable[reason]:
		return fmt.Errorf("%w: %v", ErrReason, reason)
	case len(private) > cm.REJPrivateLen:
		return fmt.Errorf("%w: %d bytes, a refusal has room for %d", ErrPrivateData, len(private), cm.REJPrivateLen)
	}
	if err := r.answer(); err != nil {
		return err
	}
	return r.refuse(reason, nil, private)
}

// rejectable are the reasons that an application can have: they need no additional information, and make no claim about the
// message that only the connection manager could make.
var rejectable = map[RejectReason]bool{
	RejectConsumer: true, RejectNoListener: true, RejectNoQP: true, RejectNoResources: true, RejectUnsupported: true,
}

func (r *Request) refuse(reason cm.Reason, info, private []byte) error {
	return r.say(func(now qp.Time, m *cm.CM) error { return m.Reject(cm.Time(now), r.talk.id, reason, info, private) })
}

// AnswerUD tells the peer of a datagram QP, which is active (QP.Activate).
func (r *Request) AnswerUD(q *QP, private []byte) error {
	switch {
	case q.device() != r.dev:
		return ErrForeign
	case q.Type() != UD || q.closed.Load():
		return fmt.Errorf("%w: a request for datagrams is answered with an active UD QP", ErrInvalid)
	}
	return r.answerUD(&cm.SIDRReply{QPN: q.QPN(), QKey: QKey(q.qkey.Load()), PrivateData: private})
}

func (r *Request) answerUD(a *cm.SIDRReply) error {
	switch {
	case !r.req.Service.IsUDP():
		return fmt.Errorf("%w: the peer asks for a connection; see Accept", ErrInvalid)
	case len(a.PrivateData) > cm.SIDRREPPrivateLen:
		return fmt.Errorf("%w: %d bytes, an answer has room for %d", ErrPrivateData, len(a.PrivateData), cm.SIDRREPPrivateLen)
	}
	if err := r.answer(); err != nil {
		return err
	}
	return r.say(func(now qp.Time, m *cm.CM) error { return m.ReplySIDR(cm.Time(now), r.talk.id, a) })
}

// say gives the connection manager an answer for the peer.
func (r *Request) say(f func(qp.Time, *cm.CM) error) error {
	var err error
	gone := r.dev.do(func(now qp.Time) {
		g := r.dev.gsi
		if g.conns[r.talk.id] != r.talk {
			err = ErrRequestOver
			return
		}
		err = f(now, g.cm)
		g.dispatch(now)
		g.transmit(now)
	})
	return errors.Join(gone, err)
}
