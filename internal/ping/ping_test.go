package ping

import (
	"errors"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/exchange/exchangetest"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// tester is a server on one device and a client's device. They exchange messages over TCP.
type tester struct {
	host   *Host
	port   *testbed.Watched // of the server
	own    *sleeper         // of the client
	server *sleeper         // around port
	client *roce.Device
	addr   string
	failed chan error
}

// sleeper is a port that remembers when its first wait began after slept was set to nil, and when
// the latest one ended.
type sleeper struct {
	driver.Port
	slept atomic.Pointer[time.Time]
	woken atomic.Pointer[time.Time]
}

func (s *sleeper) Unwrap() driver.Port { return s.Port }

func (s *sleeper) Wait(d time.Duration) error {
	now := time.Now()
	s.slept.CompareAndSwap(nil, &now)
	defer func() {
		now := time.Now()
		s.woken.Store(&now)
	}()
	return s.Port.Wait(d)
}

const budget = 64 << 20

func newTester(t *testing.T, plan loopback.Plan) *tester {
	t.Helper()
	r := &tester{failed: make(chan error, 10)}
	tb, err := testbed.New(testbed.Config{
		MTU: 1500, Seed: 1, Plan: plan, Device: [2][]roce.Option{{roce.WithProgress(roce.Manual)}},
		Wrap: func(side int, p driver.Port) driver.Port {
			if side == 0 {
				r.own = &sleeper{Port: p}
				return r.own
			}
			r.port = &testbed.Watched{Port: p, Function: "ping.(*echoer).run"}
			r.server = &sleeper{Port: r.port}
			return r.server
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.client = tb.Dev[0]
	r.host = &Host{Dev: tb.Dev[1], GID: device.AnyGID, Budget: session.NewBudget(budget)}
	t.Cleanup(func() {
		if err := tb.Close(); err != nil {
			t.Error(err)
		}
		if n := r.host.Budget.Used(); n != 0 {
			t.Errorf("%d bytes were not released", n)
		}
	})
	r.addr = exchangetest.Start(t, &exchange.Server{
		Services: map[string]exchange.Handler{Service: r.host.Serve},
		Log:      func(_ netip.AddrPort, err error) { r.failed <- err },
	})
	return r
}

func (r *tester) dial(t *testing.T, bytes int) *Client {
	t.Helper()
	c, err := Dial(t.Context(), r.client, device.AnyGID, r.addr, Params{Bytes: bytes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func in(d time.Duration) time.Time { return time.Now().Add(d) }

// The goroutine that answers pings also receives their packets, so that no handover between threads
// delays the replies. Between pings it sleeps.
func TestServerReceives(t *testing.T) {
	r := newTester(t, loopback.Plan{})
	c := r.dial(t, 64)
	c.Replied = func(int, time.Duration, time.Duration) {}
	ping := func(seq int) {
		c.Prepare(seq)
		if err := c.Send(seq); err != nil {
			t.Fatal(err)
		}
		if err := c.Wait(t.Context(), in(10*time.Second), true); err != nil || c.Outstanding() > 0 {
			t.Fatalf("Wait() = %v with %d pings outstanding", err, c.Outstanding())
		}
	}
	ping(0) // the device's own goroutine may still receive this one
	outside := r.port.Outside.Load()
	const pings = 20
	for i := range pings {
		ping(i + 1)
	}
	if n := r.port.Outside.Load() - outside; n != 0 || r.port.Inside.Load() < pings {
		t.Errorf("the server received %d times, other goroutines %d times; want at least %d and 0",
			r.port.Inside.Load(), n, pings)
	}
	polls := r.port.Polls.Load()
	time.Sleep(50 * time.Millisecond)
	if n := r.port.Polls.Load() - polls; n > 20_000 { // spinning takes 1,000,000
		t.Errorf("%d polls in 50 ms without a ping, want at most 20000", n)
	}
}

// The client sleeps between pings, but not until the next one, so that the time of its wake-up is
// not a part of the round-trip time.
func TestClientIsAwake(t *testing.T) {
	r := newTester(t, loopback.Plan{})
	c := r.dial(t, 64)
	awake := false
	for end := in(30 * time.Second); !awake && time.Now().Before(end); {
		r.own.woken.Store(nil)
		next := in(5 * time.Millisecond)
		if err := c.Wait(t.Context(), next, false); err != nil {
			t.Fatal(err)
		}
		if left := time.Until(next); left > 0 {
			t.Fatalf("Wait() returned %v too early", left)
		}
		woken := r.own.woken.Load() // too late while the machine is loaded
		awake = woken != nil && woken.Before(next)
	}
	if !awake {
		t.Error("the client sleeps until the next ping")
	}
}

// Wake wakes the server with an empty message, which is not a ping. The server polls then, but not
// for long.
func TestWake(t *testing.T) {
	if runtime.GOMAXPROCS(0) < 2 {
		t.Skip("a server on a single CPU does not poll")
	}
	r := newTester(t, loopback.Plan{})
	c := r.dial(t, 64)
	c.Replied = func(int, time.Duration, time.Duration) { t.Error("a reply to a ping") }
	for range 20 {
		start := time.Now()
		if err := c.Wake(t.Context(), in(10*time.Second)); err != nil || c.woke == 0 {
			t.Fatalf("Wake() = %v, round-trip time %v", err, c.woke)
		}
		sent := r.client.Counters().SentPkts
		for range 10 {
			r.client.Progress()
		}
		if n := r.client.Counters().SentPkts - sent; n != 0 {
			t.Errorf("%d packets were not sent by Wake; they would delay a ping", n)
		}
		r.server.slept.Store(nil)
		r.host.polls.mu.Lock()
		full := r.host.polls.full
		r.host.polls.mu.Unlock()
		if full.Before(start.Add(pollShare * awakeTime)) {
			t.Fatal("the server does not poll after an empty message")
		}
		time.Sleep(3 * awakeTime)
		slept := r.server.slept.Load()
		if slept != nil && slept.Before(start.Add(awakeTime)) {
			t.Fatalf("the server sleeps %v after an empty message", slept.Sub(start))
		}
	}
	polls := r.port.Polls.Load()
	time.Sleep(50 * time.Millisecond)
	if n := r.port.Polls.Load() - polls; n > 20_000 {
		t.Errorf("%d polls in 50 ms, want at most 20000", n)
	}
	var wakes []time.Duration
	c.Replied = func(_ int, _, wake time.Duration) { wakes = append(wakes, wake) }
	for seq := range 2 { // only the first one has a wake-up before it
		c.Prepare(seq)
		if err := c.Send(seq); err != nil {
			t.Fatal(err)
		}
		if err := c.Wake(t.Context(), in(10*time.Second)); err != nil || c.Outstanding() != 1 {
			t.Errorf("Wake() with a ping outstanding = %v, %d outstanding", err, c.Outstanding())
		}
		if err := c.Wait(t.Context(), in(10*time.Second), true); err != nil {
			t.Fatal(err)
		}
	}
	if len(wakes) != 2 || wakes[0] == 0 || wakes[1] != 0 {
		t.Errorf("the wake-ups before the pings took %v, want one of two", wakes)
	}
}

// Clients cannot make a server poll for more than its share of the time.
func TestPollTime(t *testing.T) {
	if runtime.GOMAXPROCS(0) < 2 {
		t.Skip("a server on a single CPU does not poll")
	}
	var p pollTime
	now := time.Now()
	for i := range int(pollBurst / awakeTime) {
		if !p.take(now, awakeTime) {
			t.Fatalf("nothing left after %d times", i)
		}
	}
	if p.take(now, awakeTime) {
		t.Error("more than pollBurst at once")
	}
	p.giveBack(awakeTime)
	if !p.take(now, awakeTime) || p.take(now, awakeTime) {
		t.Error("what was given back is not available once")
	}
	now = now.Add(pollShare * awakeTime)
	if !p.take(now, awakeTime) || p.take(now, awakeTime) {
		t.Error("the share of the time that has passed is not available once")
	}
}

// Each ping gets one reply, in order, for all sizes, with one and with all slots in use, and with
// packet loss.
func TestReplies(t *testing.T) {
	for _, plan := range []loopback.Plan{{}, {Loss: 0.05}} {
		r := newTester(t, plan)
		for _, bytes := range []int{0, 1, 64, 1024, 5000, 100_000} {
			c := r.dial(t, bytes)
			var got []int
			c.Replied = func(seq int, rtt, _ time.Duration) {
				if rtt <= 0 {
					t.Errorf("round-trip time %v", rtt)
				}
				got = append(got, seq)
			}
			sent := 0
			for range 4 {
				for _, burst := range []int{1, slots} {
					if err := c.Wake(t.Context(), in(30*time.Second)); err != nil {
						t.Fatal(err)
					}
					for range burst {
						if err := c.WaitReady(t.Context(), in(30*time.Second)); err != nil {
							t.Fatal(err)
						}
						c.Prepare(sent)
						if err := c.Send(sent); err != nil {
							t.Fatal(err)
						}
						sent++
					}
					if err := c.Wait(t.Context(), in(30*time.Second), true); err != nil {
						t.Fatal(err)
					}
				}
			}
			for i, seq := range got {
				if seq != i {
					t.Fatalf("the replies arrived in the order %v", got)
				}
			}
			if len(got) != sent {
				t.Errorf("loss %v, %d bytes: %d replies, want %d", plan.Loss, bytes, len(got), sent)
			}
			c.Close()
		}
	}
}

// The server checks the size that a client requests.
func TestServerRefuses(t *testing.T) {
	r := newTester(t, loopback.Plan{})
	for _, bytes := range []int{-1, MaxBytes + 1} {
		conn, err := exchange.Dial(t.Context(), r.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, err = conn.Request(t.Context(), Service, Params{bytes}, nil)
		if !errors.Is(err, exchange.ErrRemote) || !strings.Contains(err.Error(), "1 MiB") {
			t.Errorf("pings of %d bytes: error %v, want ErrRemote with the limit", bytes, err)
		}
		<-r.failed
	}
}

// The server ends the session of a client that sends no pings.
func TestIdleClient(t *testing.T) {
	r := newTester(t, loopback.Plan{})
	r.host.Idle = 100 * time.Millisecond
	c := r.dial(t, 64)
	if err := <-r.failed; !errors.Is(err, session.ErrIdle) {
		t.Errorf("the server's error is %v, want ErrIdle", err)
	}
	if err := c.Wait(t.Context(), in(30*time.Second), false); !errors.Is(err, errBroken) ||
		!strings.Contains(err.Error(), "idle") {
		t.Errorf("Wait() = %v, want the server's reason", err)
	}
}

// A client that sends more than it has requested loses its connection. The server serves the next
// one.
func TestOversizePing(t *testing.T) {
	r := newTester(t, loopback.Plan{})
	c := r.dial(t, 64)
	wr := roce.SendWR{Op: roce.OpSend, Flags: roce.Signaled, SGEs: []roce.SGE{c.s.MR.SGE(0, 65)}}
	if err := c.s.QP.PostSend(wr); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(t.Context(), in(10*time.Second), false); !errors.Is(err, errBroken) {
		t.Errorf("Wait() = %v, want errBroken", err)
	}
	if err := <-r.failed; err == nil {
		t.Error("the server has no error")
	}
	c.Close()
	next := r.dial(t, 64)
	next.Replied = func(int, time.Duration, time.Duration) {}
	next.Prepare(1)
	if err := next.Send(1); err != nil {
		t.Fatal(err)
	}
	if err := next.Wait(t.Context(), in(10*time.Second), true); err != nil ||
		next.Outstanding() > 0 {
		t.Errorf("next client: Wait() = %v with %d pings without a reply", err, next.Outstanding())
	}
}

// A reply that differs from what was sent is an error.
func TestCorruptReply(t *testing.T) {
	r := newTester(t, loopback.Plan{})
	c := r.dial(t, 64)
	c.Replied = func(int, time.Duration, time.Duration) { t.Error("Replied was called for a corrupt reply") }
	c.Prepare(1)
	if err := c.Send(1); err != nil {
		t.Fatal(err)
	}
	c.s.CQ.Poll(nil) // sends the ping
	c.out(0)[0] ^= 1 // the reply is compared with this
	if err := c.Wait(t.Context(), in(time.Second), true); !errors.Is(err, errData) {
		t.Errorf("Wait() = %v, want errData", err)
	}
}
