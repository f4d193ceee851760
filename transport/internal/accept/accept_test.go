package accept

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/halfopen"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

const testPort = 9

// conn is a connection that was accepted.
type conn struct {
	from   netip.Addr
	closed chan struct{}
}

func (c *conn) Close() error {
	close(c.closed)
	return nil
}

// rig is an Acceptor whose answers wait until a test confirms them.
type rig struct {
	*testing.T
	a       *Acceptor[*conn]
	bed     *testbed.Testbed
	forgers []*testbed.Forger

	mu      sync.Mutex
	open    map[netip.Addr]int // answers in progress
	most    int                // of all addresses at a time
	confirm map[netip.Addr]bool
	refused map[error]int // by halfopen.ErrReplaced and others
}

func newRig(t *testing.T, limit int) *rig {
	t.Helper()
	const forgers = 6
	bed, err := testbed.New(testbed.Config{Link: loopback.Config{Ports: 2 + forgers}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bed.Close() })
	l, err := bed.Dev[1].Listen(bed.Addr(1, testPort), roce.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	g := &rig{T: t, bed: bed, open: map[netip.Addr]int{}, confirm: map[netip.Addr]bool{},
		refused: map[error]int{}}
	for i := range forgers {
		g.forgers = append(g.forgers, testbed.NewForger(bed.Link, 2+i, 1))
	}
	g.a = New(Config[*conn]{
		Listener: l, Max: limit, Open: g.answer,
		Check: func(q *roce.Request) error {
			if q.PrivateData()[0] != 'y' {
				return errors.Join(errWrong, q.Reject(nil))
			}
			return nil
		},
		Refused: func(_ netip.AddrPort, err error) {
			g.mu.Lock()
			defer g.mu.Unlock()
			for _, kind := range []error{halfopen.ErrReplaced, errWrong, context.Canceled} {
				if errors.Is(err, kind) {
					g.refused[kind]++
				}
			}
		},
	})
	return g
}

var errWrong = errors.New("wrong private data")

// answer waits until the test confirms the peer's address.
func (g *rig) answer(ctx context.Context, q *roce.Request) (*conn, error) {
	from := q.RemoteAddr().Addr()
	g.mu.Lock()
	g.open[from]++
	total := 0
	for _, n := range g.open {
		total += n
	}
	g.most = max(g.most, total)
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		g.open[from]--
		g.mu.Unlock()
	}()
	for ctx.Err() == nil {
		g.mu.Lock()
		ok := g.confirm[from]
		g.mu.Unlock()
		if ok {
			return &conn{from: from, closed: make(chan struct{})}, nil
		}
		time.Sleep(time.Millisecond)
	}
	return nil, errors.Join(ctx.Err(), q.Reject(nil))
}

// eventually waits until f, which runs under the lock, returns true.
func (g *rig) eventually(what string, f func() bool) {
	g.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		g.mu.Lock()
		ok := f()
		g.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(end) {
			g.Fatalf("%s did not happen: %v answers, %v refused", what, g.open, g.refused)
		}
	}
}

func (g *rig) send(forger, n int, private string) {
	g.Helper()
	for range n {
		if err := g.forgers[forger].REQ(testPort, []byte(private)); err != nil {
			g.Fatal(err)
		}
	}
}

// addr returns the address of a forger.
func (g *rig) addr(forger int) netip.Addr {
	for _, p := range g.bed.Link.Port(2 + forger).Addrs() {
		if p.Addr().Is4() {
			return p.Addr()
		}
	}
	return netip.Addr{}
}

// accept calls Accept in the background.
func (g *rig) accept(ctx context.Context) <-chan *conn {
	got := make(chan *conn, 1)
	go func() {
		c, err := g.a.Accept(ctx)
		if err == nil {
			got <- c
		}
		close(got)
	}()
	return got
}

// At most Max requests are answered at a time. Newer requests replace older ones, first those of
// the address that has the most, so a sender that confirms is accepted. No request is replaced at
// once.
func TestLimits(t *testing.T) {
	g := newRig(t, Max)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	got := g.accept(ctx)
	begin := time.Now()
	g.send(0, Max, "yes")
	g.eventually("answering one address", func() bool { return g.open[g.addr(0)] == Max })
	g.send(1, 1, "yes")
	g.eventually("replacing one of many", func() bool {
		return g.open[g.addr(0)] == Max-1 && g.open[g.addr(1)] == 1
	})
	if d := time.Since(begin); d < halfopen.MaxTime {
		t.Errorf("a request was replaced after %v", d)
	}
	g.send(0, 1, "yes") // of the address that has the most: replaces its own
	g.eventually("replacing its own", func() bool {
		return g.refused[halfopen.ErrReplaced] >= 2 && g.open[g.addr(1)] == 1
	})
	for i := 1; i < 5; i++ {
		g.send(i, Max, "yes")
	}
	g.eventually("all addresses", func() bool {
		n := 0
		for i := range 5 {
			k := g.open[g.addr(i)]
			n += k
			if k < 2 {
				return false
			}
		}
		return n == Max
	})
	g.mu.Lock()
	g.confirm[g.addr(5)] = true
	most := g.most
	g.mu.Unlock()
	if most > Max {
		t.Errorf("%d answers at a time, want at most %d", most, Max)
	}
	g.send(5, 1, "yes")
	c := <-got
	if c == nil || c.from != g.addr(5) {
		t.Fatalf("Accept() = %v, want %v", c, g.addr(5))
	}
	if err := g.a.Close(); err != nil {
		t.Error(err)
	}
	// On a busy machine, more than one request may have been replaced for the last one.
	g.eventually("end of all answers", func() bool {
		n := 0
		for _, k := range g.open {
			n += k
		}
		return n == 0 && g.refused[context.Canceled] > 0
	})
	if _, err := g.a.Accept(ctx); !errors.Is(err, roce.ErrClosed) {
		t.Errorf("Accept() after Close = %v, want ErrClosed", err)
	}
}

// Requests that Check rejects do not end Accept. A connection that is confirmed after Accept has
// returned is for its next caller, and Close closes those that nobody took.
func TestLaterCallers(t *testing.T) {
	g := newRig(t, 4)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	got := g.accept(ctx)
	g.send(0, 10, "no")
	g.eventually("rejecting", func() bool { return g.refused[errWrong] == 10 })
	for i := range 3 {
		g.send(i, 1, "yes")
	}
	g.eventually("all answers", func() bool {
		return g.open[g.addr(0)]+g.open[g.addr(1)]+g.open[g.addr(2)] == 3
	})
	g.mu.Lock()
	for i := range 3 {
		g.confirm[g.addr(i)] = true
	}
	g.mu.Unlock()
	first := <-got
	second := <-g.accept(ctx)
	if first == nil || second == nil || first.from == second.from {
		t.Fatalf("Accept() = %v and %v, want two connections", first, second)
	}
	g.eventually("the third connection", func() bool { return len(g.a.ready) == 1 })
	third := <-g.a.ready
	g.a.ready <- third
	if err := g.a.Close(); err != nil {
		t.Error(err)
	}
	<-third.conn.closed
	select {
	case <-first.closed:
		t.Error("Close() closed a connection that Accept had returned")
	default:
	}
}

// Requests that wait for a slot when Accept returns are for its next caller. They are not refused.
func TestRequestsWaitForSlots(t *testing.T) {
	g := newRig(t, 1)
	const each = 5
	for i := range g.forgers {
		g.confirm[g.addr(i)] = true
		g.send(i, each, "yes")
	}
	total, accepted, refused := len(g.forgers)*each, 0, 0
	for end := time.Now().Add(30 * time.Second); accepted+refused < total; {
		if time.Now().After(end) {
			t.Fatalf("%d requests of %d were accepted, %d were refused", accepted, total, refused)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		if _, err := g.a.Accept(ctx); err == nil {
			accepted++
		}
		cancel()
		g.mu.Lock()
		refused = g.refused[halfopen.ErrReplaced] + g.refused[context.Canceled]
		g.mu.Unlock()
	}
	if n := g.refused[context.Canceled]; n > 0 { // a busy machine may replace some
		t.Errorf("%d requests of %d were refused, want 0", n, total)
	}
	if err := g.a.Close(); err != nil {
		t.Error(err)
	}
}

// Accept returns the error of its context, and a later call continues.
func TestAcceptCanceled(t *testing.T) {
	g := newRig(t, 1)
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := g.a.Accept(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Accept() = %v, want DeadlineExceeded", err)
	}
	g.confirm[g.addr(0)] = true
	got := g.accept(t.Context())
	g.send(0, 1, "yes")
	if c := <-got; c == nil {
		t.Error("Accept() failed after a canceled one")
	}
	if err := g.a.Close(); err != nil {
		t.Error(err)
	}
}

// Memory that is returned is used again, and all of it is freed at the end.
func TestPool(t *testing.T) {
	bed, err := testbed.New(testbed.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bed.Close() })
	p := NewPool(bed.Dev[0], 1000)
	a, err := p.Take()
	if err != nil {
		t.Fatal(err)
	}
	first := &a.Bytes()[0]
	if err := a.Return(); err != nil {
		t.Fatal(err)
	}
	b, errB := p.Take()
	c, errC := p.Take()
	if err := errors.Join(errB, errC); err != nil {
		t.Fatal(err)
	}
	if &b.Bytes()[0] != first || &c.Bytes()[0] == first {
		t.Error("Take() does not use returned memory, or uses it twice")
	}
	if err := errors.Join(b.Return(), p.Close(), c.Return()); err != nil {
		t.Error(err)
	}
}
