package roce

import (
	"context"
	"errors"
	"net/netip"

	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce/cm"
)

// Listener accepts connection requests to a port (RDMA_PS_TCP, or RDMA_PS_UDP for datagrams). RDMA
// ports are independent of the kernel's TCP and UDP ports with the same number.
type Listener struct {
	dev   *Device
	queue *acceptQueue
	addr  netip.AddrPort
	id    cm.ListenerID

	service cm.ServiceID
	admit   func(*Request) error

	datagram bool
}

// ListenOptions are options of Listen and ListenUD.
type ListenOptions struct {
	// Backlog is the maximum number of requests that wait for Accept; 0 means 1,024. Further
	// requests are dropped, and their senders retransmit them.
	Backlog int

	// Peers restricts who may send requests, in addition to WithPeers. Requests of others are
	// dropped without an answer and cost no resources.
	Peers PeerList

	// Admit, if not nil, decides on each request before Accept returns it; for example by its
	// RemoteAddr or PrivateData. Accept calls it in the goroutine of its caller, so it may block.
	// If it returns an error, Accept waits for the next request, and the peer gets the Reason and
	// the PrivateData of a *RejectError; no answer for ErrIgnore; RejectConsumer for other errors.
	// A peer without an answer repeats its request. Admit may also answer the request itself. If it
	// panics, the peer gets RejectConsumer, and Accept panics.
	Admit func(*Request) error
}

// Listen starts to listen for connection requests to addr. An unspecified or invalid address means
// all addresses of the device. Port 0 means any free port, which Listener.Addr returns. Requests to
// ports without a listener are refused with RejectNoListener.
//
// Errors: ErrInvalid, ErrNoGID, ErrListening, ErrTooManyListeners, ErrConnParams, ErrClosed.
func (d *Device) Listen(addr netip.AddrPort, o ListenOptions) (*Listener, error) {
	return d.listen(addr, false, o)
}

// ListenUD is Listen for datagram QPs. The requests come from ResolveUD, or from programs on
// rdma_cm. Answer them by Request.AnswerUD.
//
// Errors: those of Listen.
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
	l := &Listener{dev: d, addr: addr, admit: o.Admit, queue: newAcceptQueue(o.Backlog),
		datagram: datagram}
	peers, err := o.Peers.access()
	if err != nil {
		return nil, err
	}
	if err := l.bind(cm.ListenParams{Local: local, Backlog: o.Backlog, Peers: peers}); err != nil {
		return nil, err
	}
	return l, nil
}

// bind registers the listener with the connection manager, and with the node service if there is
// one. If the address has no port, bind tries random ephemeral ports.
func (l *Listener) bind(p cm.ListenParams) (err error) {
	const attempts = 32
	port := l.addr.Port()
	for range attempts {
		n := port
		if n == 0 {
			n = ephemeralPort(uint32(l.dev.rand()))
		}
		p.Service = serviceOf(l.datagram, n)
		if err = l.bindTo(p); port != 0 || !errors.Is(err, ErrListening) {
			break
		}
	}
	return err
}

func (l *Listener) bindTo(p cm.ListenParams) (err error) {
	d := l.dev
	if err = d.service.announce(p.Service); err != nil {
		return err
	}
	gone := d.do(func(qp.Time) {
		if err = d.open(); err != nil {
			return
		}
		if l.id, err = d.gsi.cm.Listen(p); err == nil {
			d.gsi.listeners[l.id] = l.queue
		}
	})
	if err = errors.Join(gone, err); err != nil {
		d.service.withdraw(p.Service)
		return err
	}
	l.service = p.Service
	l.addr = netip.AddrPortFrom(l.addr.Addr(), p.Service.Port())
	return nil
}

// Addr returns an address that peers can dial: the one that was passed to Listen, or for a listener
// on all addresses the device's default address (see QPConfig.GIDIndex), with the port in use.
func (l *Listener) Addr() netip.AddrPort {
	a := l.addr.Addr()
	if !a.IsUnspecified() {
		return l.addr
	}
	if g, err := l.dev.localGID(-1, GID{}); err == nil { // otherwise the device has no address
		a = g.Addr
	}
	return netip.AddrPortFrom(a, l.addr.Port())
}

// Accept waits for the next request, until ctx is done or the listener is closed (ErrClosed).
// Answer the request by its methods Accept, Reject or AnswerUD.
func (l *Listener) Accept(ctx context.Context) (*Request, error) {
	checkContext(ctx)
	for {
		if in, ok := l.queue.get(); ok {
			r := &Request{dev: l.dev, id: in.id, req: in.event.Request,
				private: in.event.PrivateData}
			if l.admits(r) {
				return r, nil
			}
			if err := ctx.Err(); err != nil {
				return nil, waitError(ctx, "a connection request", err)
			}
			continue
		}
		shut := l.queue.isShut()
		if err := l.dev.Err(); err != nil {
			l.queue.signal() // the next caller
			return nil, err
		}
		if shut {
			return nil, ErrClosed
		}
		err := l.dev.await(ctx, "a connection request", l.queue.wake, l.queue.pending)
		if err != nil {
			l.queue.pass() // this caller may have consumed the signal for another
			return nil, err
		}
	}
}

// admits asks ListenOptions.Admit whether Accept returns a request, and answers it if not.
func (l *Listener) admits(r *Request) bool {
	if l.admit == nil {
		return true
	}
	decided := false
	defer func() {
		if !decided { // the function panics: refuse the request, which nobody else will answer
			_ = r.Reject(nil)
		}
	}()
	err := l.admit(r)
	decided = true
	if err == nil && !r.over.Load() { // otherwise the function has answered it
		return true
	}
	r.refuseFor(err)
	return false
}

// Close stops listening. It refuses requests that Accept has not returned yet. Existing connections
// are not affected. Closing twice is harmless.
func (l *Listener) Close() error {
	closed := false
	err := l.dev.do(func(now qp.Time) {
		g := l.dev.gsi
		if g.listeners[l.id] != l.queue {
			return
		}
		closed = true
		delete(g.listeners, l.id)
		_ = g.cm.Unlisten(cm.Time(now), l.id)
		for in, ok := l.queue.get(); ok; in, ok = l.queue.get() {
			g.abort(now, in.id)
		}
		l.queue.shut()
		g.dispatch(now)
		g.transmit(now)
	})
	if closed {
		l.dev.service.withdraw(l.service)
	}
	if errors.Is(err, ErrClosed) {
		return nil
	}
	return err
}
