package accept

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/gorxe/gorxe/internal/limit"
	"github.com/gorxe/gorxe/roce"
)

const (
	// Time is how long a peer may take to confirm a connection.
	Time = 10 * time.Second
	// Max is the largest number of requests that are answered at a time.
	Max = 16
	// share is the fraction of them that one prefix (limit.Prefix) may keep for longer than
	// minTime.
	share = 4
	// minTime is how long a request is answered before it can be replaced.
	minTime = 50 * time.Millisecond
)

// ErrReplaced means that a request was given up because of newer requests.
var ErrReplaced = errors.New("the peer did not confirm the connection before too many others asked for one")

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
	slots chan struct{} // one for each request being answered or in ready
	ready chan R        // confirmed, waiting for Accept
	wg    sync.WaitGroup

	mu     sync.Mutex
	open   []*answer // in the order of their beginning
	closed bool
}

// answer is a request that is being answered.
type answer struct {
	from  netip.Prefix
	since time.Time
	stop  context.CancelCauseFunc
}

// New returns an Acceptor. The Acceptor owns the roce.Listener.
func New[R interface{ Close() error }](c Config[R]) *Acceptor[R] {
	c.Max = min(max(c.Max, 1), Max)
	a := &Acceptor[R]{c: c, slots: make(chan struct{}, c.Max), ready: make(chan R, c.Max)}
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
		<-a.slots
		cancel()
		<-failed
		return r, nil
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
	from := limit.Prefix(q.RemoteAddr().Addr())
	a.replaceOwn(from)
	if err := a.take(ctx); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		<-a.slots
		return roce.ErrClosed
	}
	one, stop := context.WithCancelCause(a.base)
	w := &answer{from: from, since: time.Now(), stop: stop}
	a.open = append(a.open, w)
	a.wg.Go(func() { a.answer(one, q, w) })
	return nil
}

// take waits for a slot.
func (a *Acceptor[R]) take(ctx context.Context) error {
	for {
		select {
		case a.slots <- struct{}{}:
			return nil
		default:
		}
		retry := time.NewTimer(a.replaceAny())
		select {
		case a.slots <- struct{}{}:
			retry.Stop()
			return nil
		case <-ctx.Done(): // for example because a connection was confirmed
			retry.Stop()
			return ctx.Err()
		case <-retry.C:
		}
	}
}

// replaceOwn gives up the oldest request of a prefix that has its share.
func (a *Acceptor[R]) replaceOwn(from netip.Prefix) {
	a.mu.Lock()
	defer a.mu.Unlock()
	own, oldest := 0, -1
	for i, w := range a.open {
		if w.from == from {
			if own++; oldest < 0 {
				oldest = i
			}
		}
	}
	if own >= max(1, a.c.Max/share) && time.Since(a.open[oldest].since) >= minTime {
		a.replace(oldest)
	}
}

// replaceAny gives up the oldest request of the prefix that has the most. It returns when to try
// again if its slot is not free by then.
func (a *Acceptor[R]) replaceAny() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	count := map[netip.Prefix]int{}
	most, victim := 0, -1
	for _, w := range a.open {
		count[w.from]++
		most = max(most, count[w.from])
	}
	for i, w := range a.open {
		if count[w.from] == most {
			victim = i
			break
		}
	}
	if victim < 0 { // all slots have confirmed connections, or become free
		return minTime
	}
	if age := time.Since(a.open[victim].since); age < minTime {
		return minTime - age
	}
	a.replace(victim)
	return minTime
}

// replace gives up a request. The caller holds mu.
func (a *Acceptor[R]) replace(i int) {
	a.open[i].stop(ErrReplaced)
	a.open = slices.Delete(a.open, i, i+1)
}

func (a *Acceptor[R]) answer(ctx context.Context, q *roce.Request, w *answer) {
	defer w.stop(nil)
	ctx, cancel := context.WithTimeout(ctx, Time)
	defer cancel()
	r, err := a.c.Open(ctx, q)
	a.mu.Lock()
	a.open = slices.DeleteFunc(a.open, func(o *answer) bool { return o == w })
	a.mu.Unlock()
	if err == nil {
		a.ready <- r // never waits: this request has a slot
		return
	}
	<-a.slots
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, ErrReplaced):
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
			<-a.slots
			errs = append(errs, r.Close())
		default:
			return errors.Join(errs...)
		}
	}
}
