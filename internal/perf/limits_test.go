package perf

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

// startBidirectional requests a bidirectional test, and starts a run, for a client that does not
// follow the protocol afterwards.
func (r *tester) startBidirectional(t *testing.T) *session.Session {
	t.Helper()
	p, runs := mustParse(t, "write-bw -b -n 1000")
	conn, err := exchange.Dial(t.Context(), r.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	cfg := p.SessionConfig()
	cfg.GID = device.AnyGID
	s, err := session.New(r.client, conn.Local().AddrPort().Addr(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	qps, err := conn.Request(t.Context(), Service, p, s.Local())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Connect(t.Context(), qps); err != nil {
		t.Fatal(err)
	}
	err = conn.Send(t.Context(), &exchange.Message{Kind: exchange.KindRun,
		Params: exchange.Encode(runs[0])})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Receive(t.Context(), exchange.KindReady); err != nil {
		t.Fatal(err)
	}
	return s
}

// A server does not stream to a client that does not answer on the RDMA path.
func TestNoStreamWithoutAnswer(t *testing.T) {
	r := newTester(t, roce.Auto)
	r.startBidirectional(t) // the client's device has Manual progress and does not run
	time.Sleep(300 * time.Millisecond)
	if c := r.host.Dev.Counters(); c.SentPkts == 0 || c.SentPkts > 30 {
		t.Errorf("the server has sent %d packets, want 1 to 30", c.SentPkts)
	}
}

// A server does not stream to a client that acknowledges packets without knowing their contents, as
// with forged acknowledgments.
func TestNoStreamWithForgedAcks(t *testing.T) {
	r := newTester(t, roce.Auto)
	s := r.startBidirectional(t)
	for {
		select {
		case err := <-r.failed:
			if !errors.Is(err, errProof) {
				t.Errorf("the server's error is %v, want errProof", err)
			}
			if c := r.host.Dev.Counters(); c.SentPkts > 30 {
				t.Errorf("the server has sent %d packets, want at most 30", c.SentPkts)
			}
			return
		default:
			r.client.Progress()
			clear(s.MR.Bytes())
		}
	}
}

// A server ends sessions of clients that send nothing.
func TestIdleSession(t *testing.T) {
	r := newTester(t, roce.Auto)
	r.host.Idle = 200 * time.Millisecond
	for _, op := range []string{"write-bw", "write-lat"} {
		p, runs := mustParse(t, op)
		c := r.dial(t, p)
		defer c.Close(nil)
		if op == "write-lat" { // the server waits for the first message of a run
			run := &exchange.Message{Kind: exchange.KindRun, Params: exchange.Encode(runs[0])}
			_ = c.conn.Send(t.Context(), run) // fails if the session has ended already
		}
		select {
		case err := <-r.failed:
			if !errors.Is(err, session.ErrIdle) {
				t.Errorf("%s: the server's error is %v, want ErrIdle", op, err)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%s: the server did not end the session", op)
		}
	}
}

// A server limits the time of a run.
func TestMaxRun(t *testing.T) {
	r := newTester(t, roce.Auto)
	r.host.MaxRun = 300 * time.Millisecond
	for args, want := range map[string]string{
		"write-bw -D 1": "permits 300ms", "write-lat -n 100000000": "took longer",
	} {
		p, runs := mustParse(t, args)
		c := r.dial(t, p)
		_, err := c.Run(t.Context(), runs[0])
		c.Close(err)
		if !errors.Is(err, exchange.ErrRemote) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: Run() = %v, want %q", args, err, want)
		}
		<-r.failed
	}
	r.host.MaxRun = time.Minute
	p, runs := mustParse(t, "write-bw -D 0.1")
	r.measure(t, p, runs...)
}

// The goroutine that answers in latency tests also receives the packets, so that no handover
// between threads delays the answers.
func TestServerReceives(t *testing.T) {
	r := newTester(t, roce.Auto)
	for _, args := range []string{"write-lat -n 1000", "send-lat -n 1000"} {
		before := r.port.Inside.Load()
		p, runs := mustParse(t, args)
		r.measure(t, p, runs...)
		<-r.rows
		if r.port.Inside.Load() == before {
			t.Errorf("%s: the goroutine that answers has received nothing", args)
		}
	}
}

// A loop that finds nothing for long uses little CPU time.
func TestIdleSpinner(t *testing.T) {
	s := NewSpinner(newTester(t, roce.Auto).host.Dev)
	s.Start()
	defer s.Stop()
	polls := func(d time.Duration) (n int) {
		for start := time.Now(); time.Since(start) < d; n++ {
			s.Empty()
		}
		return n
	}
	polls(200 * time.Millisecond)
	if n := polls(100 * time.Millisecond); n > 100_000 {
		t.Errorf("%d empty polls in 100 ms, want at most 100000", n)
	}
	s.Found()
	if s.pause != 0 {
		t.Errorf("the next pause after a message is %v, want none", s.pause)
	}
}
