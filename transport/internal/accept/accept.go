package accept

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/gorxe/gorxe/internal/halfopen"
	"github.com/gorxe/gorxe/roce"
)

const (
	// Time is how long a peer may take to confirm a connection.
	Time = 10 * time.Second
	// Max is the largest number of requests that are answered at a time.
	Max = 16
)

// ListenOptions returns the options of a listener for peers that are on the list and for which
// permits, if set, is true. Requests of others are ignored.
func ListenOptions(list roce.PeerList, permits func(peer netip.Addr) bool) roce.ListenOptions {
	o := roce.ListenOptions{Peers: list}
	if permits != nil {
		o.Admit = func(q *roce.Request) error {
			if !permits(q.RemoteAddr().Addr()) {
				return roce.ErrIgnore
			}
			return nil
		}
	}
	return o
}

// Listen is Device.Listen for an Acceptor. It refuses virtual time: an Acceptor answers requests in
// goroutines that are not part of a simulation, so Accept could wait forever.
func Listen(dev *roce.Device, addr netip.AddrPort, o roce.ListenOptions) (*roce.Listener, error) {
	if dev.Virtual() {
		return nil, fmt.Errorf("%w: this Listener needs real time, even with Expert.Wait",
			roce.ErrVirtualTime)
	}
	return dev.Listen(addr, o)
}

// Config describes an Acceptor.
type Config[R interface{ Close() error }] struct {
	Listener *roce.Listener
	// Check returns an error for requests that it has rejected. It must not wait for the peer.
	Check func(q *roce.Request) error
	// Open answers a request and returns when the peer has confirmed the connection, or when ctx
	// ends. It is called concurrently.
	Open func(ctx context.Context, q *roce.Request) (R, error)
	// Refused, if set, is called for each request that fails, concurrently.
	Refused func(peer netip.AddrPort, err error)
	// Max is the number of requests to answer at a time, at least 1 and at most Max.
	Max int
	// Time limits Open, for peers that confirm several connections. 0: Time.
	Time time.Duration
}

// Acceptor accepts connections. Its methods are safe for concurrent use.
type Acceptor[R interface{ Close() error }] struct {
	c     Config[R]
	base  context.Context // of all answers
	end   context.CancelFunc
	slots *halfopen.Slots // for each request being answered or in ready
	ready chan confirmed[R]
	wg    sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	waiting []*roce.Request // for a slot, at most one of each caller of Accept
}

// confirmed is a connection that waits for Accept.
type confirmed[R any] struct {
	conn R
	slot *halfopen.Slot
}

// New returns an Acceptor. The Acceptor owns the roce.Listener.
func New[R interface{ Close() error }](c Config[R]) *Acceptor[R] {
	c.Max = min(max(c.Max, 1), Max)
	if c.Time == 0 {
		c.Time = Time
	}
	a := &Acceptor[R]{c: c, slots: halfopen.New(c.Max), ready: make(chan confirmed[R], c.Max)}
	a.base, a.end = context.WithCancel(context.Background())
	return a
}

// Accept waits for the next connection. Its error is that of ctx or of the roce.Listener. While
// nobody calls Accept, new requests wait. Requests that are being answered when Accept returns are
// for its next caller.
func (a *Acceptor[R]) Accept(ctx context.Context) (R, error) {
	ctx, cancel := context.WithCancel(ctx)
	failed := make(chan error, 1)
	go func() { failed <- a.listen(ctx) }()
	select {
	case r := <-a.ready:
		r.slot.Release()
		cancel()
		<-failed
		return r.conn, nil
	case err := <-failed:
		cancel()
		var none R
		return none, err
	}
}

// listen begins to answer requests until ctx ends or the listener fails.
func (a *Acceptor[R]) listen(ctx context.Context) error {
	for {
		q, err := a.next(ctx)
		if err != nil {
			return err
		}
		a.begin(ctx, q)
	}
}

// next returns a request for which an earlier caller of Accept had no slot, or waits for a new one.
func (a *Acceptor[R]) next(ctx context.Context) (*roce.Request, error) {
	for ctx.Err() == nil { // roce.Listener.Accept prefers requests, which may never end
		a.mu.Lock()
		if len(a.waiting) > 0 {
			q := a.waiting[0]
			a.waiting = slices.Delete(a.waiting, 0, 1)
			a.mu.Unlock()
			return q, nil
		}
		a.mu.Unlock()
		q, err := a.c.Listener.Accept(ctx)
		if err != nil {
			return nil, err
		}
		if err = a.c.Check(q); err == nil {
			return q, nil
		}
		a.refused(q, err)
	}
	return nil, fmt.Errorf("waiting for a connection request: %w", ctx.Err())
}

func (a *Acceptor[R]) refused(q *roce.Request, err error) {
	if a.c.Refused != nil {
		a.c.Refused(q.RemoteAddr(), err)
	}
}

// begin answers a request in a new goroutine. If ctx ends, for example because a connection was
// confirmed, before there is a slot, the request is for the next caller of Accept.
func (a *Acceptor[R]) begin(ctx context.Context, q *roce.Request) {
	one, stop := context.WithCancelCause(a.base)
	slot, err := a.slots.Take(ctx, q.RemoteAddr().Addr(), stop)
	a.mu.Lock()
	closed := a.closed
	switch {
	case closed:
	case err != nil:
		a.waiting = append(a.waiting, q)
	default:
		a.wg.Go(func() {
			defer stop(nil)
			a.answer(one, q, slot)
		})
	}
	a.mu.Unlock()
	if closed || err != nil {
		stop(nil)
	}
	if closed && err == nil {
		slot.Release()
	}
	if closed {
		a.reject(q)
	}
}

// reject refuses a request because the Acceptor is closed.
func (a *Acceptor[R]) reject(q *roce.Request) {
	a.refused(q, errors.Join(roce.ErrClosed, q.RejectWith(roce.RejectNoResources, nil)))
}

func (a *Acceptor[R]) answer(ctx context.Context, q *roce.Request, slot *halfopen.Slot) {
	ctx, cancel := context.WithTimeout(ctx, a.c.Time)
	defer cancel()
	r, err := a.c.Open(ctx, q)
	if err == nil {
		slot.Keep()
		a.ready <- confirmed[R]{r, slot} // never waits: this request has a slot
		return
	}
	slot.Release()
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, halfopen.ErrReplaced):
		err = cause
	case errors.Is(cause, context.DeadlineExceeded):
		err = fmt.Errorf("the peer did not confirm the connection within %v: %w", a.c.Time, err)
	}
	a.refused(q, err)
}

// Close stops listening, and closes connections that Accept has not returned.
func (a *Acceptor[R]) Close() error {
	a.mu.Lock()
	a.closed = true
	waiting := a.waiting
	a.waiting = nil
	a.mu.Unlock()
	errs := []error{a.c.Listener.Close()}
	a.end()
	for _, q := range waiting {
		a.reject(q)
	}
	a.wg.Wait()
	for {
		select {
		case r := <-a.ready:
			r.slot.Release()
			errs = append(errs, r.conn.Close())
		default:
			return errors.Join(errs...)
		}
	}
}
