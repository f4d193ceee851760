package accept

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
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
}

// Acceptor accepts connections. Its methods are safe for concurrent use.
type Acceptor[R interface{ Close() error }] struct {
	c     Config[R]
	base  context.Context // of all answers
	end   context.CancelFunc
	slots *halfopen.Slots // for each request being answered or in ready
	ready chan confirmed[R]
	wg    sync.WaitGroup

	mu     sync.Mutex
	closed bool
}

// confirmed is a connection that waits for Accept.
type confirmed[R any] struct {
	conn R
	slot *halfopen.Slot
}

// New returns an Acceptor. The Acceptor owns the roce.Listener.
func New[R interface{ Close() error }](c Config[R]) *Acceptor[R] {
	c.Max = min(max(c.Max, 1), Max)
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
		q, err := a.c.Listener.Accept(ctx)
		if err != nil {
			return err
		}
		if err := a.c.Check(q); err != nil {
			a.refused(q, err)
			continue
		}
		if err := a.begin(ctx, q); err != nil {
			a.refused(q, errors.Join(err, q.RejectWith(roce.RejectNoResources, nil)))
		}
	}
}

func (a *Acceptor[R]) refused(q *roce.Request, err error) {
	if a.c.Refused != nil {
		a.c.Refused(q.RemoteAddr(), err)
	}
}

// begin answers a request in a new goroutine.
func (a *Acceptor[R]) begin(ctx context.Context, q *roce.Request) error {
	one, stop := context.WithCancelCause(a.base)
	// ctx ends, for example, because a connection was confirmed.
	slot, err := a.slots.Take(ctx, q.RemoteAddr().Addr(), stop)
	if err != nil {
		stop(nil)
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		slot.Release()
		stop(nil)
		return roce.ErrClosed
	}
	a.wg.Go(func() {
		defer stop(nil)
		a.answer(one, q, slot)
	})
	return nil
}

func (a *Acceptor[R]) answer(ctx context.Context, q *roce.Request, slot *halfopen.Slot) {
	ctx, cancel := context.WithTimeout(ctx, Time)
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
		err = fmt.Errorf("the peer did not confirm the connection within %v: %w", Time, err)
	}
	a.refused(q, err)
}

// Close stops listening, and closes connections that Accept has not returned.
func (a *Acceptor[R]) Close() error {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	errs := []error{a.c.Listener.Close()}
	a.end()
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
