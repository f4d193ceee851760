package session

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/gorxe/gorxe/internal/guard"
	"github.com/gorxe/gorxe/internal/halfopen"
	"github.com/gorxe/gorxe/roce"
)

const (
	// MaxConnecting is the number of connections that an Acceptor establishes at a time. It is
	// large, because anyone can send requests with a forged address and never complete them.
	MaxConnecting = 256
	// connectTime is the time limit for establishing a connection, regardless of the timeouts that
	// the client requests. It is short for the same reason. A client whose answer was lost repeats
	// its request earlier: the kernel's rdma_cm after 6.2 s.
	connectTime = 10 * time.Second
)

// errTooMany means that a client was refused because there are too many sessions.
var errTooMany = errors.New("refused the client: too many sessions")

// Private data of rejections.
var (
	refused = []byte("not permitted")
	tooMany = []byte("too many sessions")
)

// Acceptor serves clients that connect through the connection manager. A session takes one of a
// bounded number of slots when its connection is established. Requests that are not confirmed
// therefore take no sessions. If there are too many of them, new ones replace old ones (package
// halfopen).
type Acceptor[C io.Closer] struct {
	Guard       *guard.Guard  // decides which clients are served; nil: all
	Sessions    int           // at a time, divided among the clients' prefixes
	ConnectTime time.Duration // for establishing a connection; 0: 10 s
	// Offer, if set, may take a request. Otherwise it returns false and must not answer it.
	Offer func(*roce.Request) bool
	// Open accepts the request and returns when its peer has confirmed the connection.
	Open func(context.Context, *roce.Request) (C, error)
	// Serve serves a client. The Acceptor then closes the connection.
	Serve func(context.Context, *roce.Request, C) error
	// Ended is called with the result of each session, and of each request that is not replaced.
	Ended func(peer netip.AddrPort, err error)
}

// Run serves clients until ctx ends or l is closed. It then waits for the sessions to end.
func (a *Acceptor[C]) Run(ctx context.Context, l *roce.Listener) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	connecting, sessions := halfopen.New(MaxConnecting), guard.NewLimiter(a.Sessions)
	for {
		r, err := l.Accept(ctx)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, roce.ErrClosed) {
				return nil
			}
			return err
		}
		peer := r.RemoteAddr().Addr()
		if !a.Guard.Permits(peer) {
			_ = r.Reject(refused) // if the rejection is lost, the peer asks again
			continue
		}
		if a.Offer != nil && a.Offer(r) {
			continue
		}
		one, stop := context.WithCancelCause(ctx)
		slot, err := connecting.Take(ctx, peer, stop)
		if err != nil { // ctx has ended
			stop(nil)
			_ = r.RejectWith(roce.RejectNoResources, nil) // fails if the client has given up
			return nil
		}
		wg.Go(func() {
			defer stop(nil)
			err := a.session(one, r, slot, sessions)
			if errors.Is(context.Cause(one), halfopen.ErrReplaced) {
				a.Guard.Count(guard.Busy)
				return
			}
			a.Ended(r.RemoteAddr(), err)
		})
	}
}

// session serves one client.
func (a *Acceptor[C]) session(ctx context.Context, r *roce.Request, slot *halfopen.Slot,
	sessions *guard.Limiter) error {
	defer slot.Release()
	peer := r.RemoteAddr().Addr()
	release, ok := sessions.Take(peer)
	if !ok {
		a.Guard.Count(guard.Busy)
		return errors.Join(errTooMany, r.Reject(tooMany))
	}
	release() // a client does not hold a session until it is connected
	c, err := a.open(ctx, r)
	if err != nil {
		return err
	}
	defer c.Close()
	kept := slot.Keep()
	slot.Release()
	if !kept { // replaced while the client confirmed; ctx is canceled
		return halfopen.ErrReplaced
	}
	if release, ok = sessions.Take(peer); !ok {
		a.Guard.Count(guard.Busy)
		return errTooMany
	}
	defer release()
	return a.Serve(ctx, r, c)
}

func (a *Acceptor[C]) open(ctx context.Context, r *roce.Request) (C, error) {
	limit := a.ConnectTime
	if limit == 0 {
		limit = connectTime
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return a.Open(ctx, r)
}
