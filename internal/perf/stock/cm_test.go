package stock

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/perf"
	"github.com/gorxe/gorxe/internal/perftest"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// Each operation works over rdma_cm with both IP versions.
func TestCM(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		r := newCMTester(t, v6)
		for i, args := range []string{
			"write-bw -s 3000 -n 200", "send-bw -q 8 -n 600 -s 100", "read-bw -q 2 -n 50",
			"atomic-bw -n 100",
			"write-lat -n 200", "send-lat -n 200", "read-lat -n 50", "atomic-lat -n 50",
		} {
			t.Run(fmt.Sprintf("v6=%v/%s", v6, args), func(t *testing.T) {
				p, runs := parse(t, args)
				r.reset(nil)
				if i%2 == 0 {
					r.server.Want = p
				}
				row := r.measure(t, p, Options{}, runs...)
				checkRow(t, p, runs[0], row)
				r.checkServed(t, p, runs[0], row)
				r.awaitIdle(t)
			})
		}
		r.awaitReleased(t)
	}
}

func newTestConn(t *testing.T, r *tester) *messageConn {
	t.Helper()
	m, err := newMessageConn(r.client, nil, peerQuiet)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// The server releases all resources of clients that disconnect at any point of the setup or send
// garbage.
func TestUnexpectedMessages(t *testing.T) {
	r := newCMTester(t, false)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	hello := func(v string) []byte { return append([]byte(v), make([]byte, 16-len(v))...) }
	blank := make([]byte, 56)
	unknownQP := append([]byte{0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 9}, make([]byte, 45)...)
	start := [][]byte{hello("6.06"), {0, 0, 16, 0}, {0, 0, 0, 64}, {'5', 0}}
	for _, c := range []struct {
		name  string
		sends [][]byte
		want  error
		text  string
	}{
		{"nothing", nil, perftest.ErrGone, ""},
		{"another protocol", [][]byte{[]byte("GET / HTTP/1.1")}, perftest.ErrGarbage,
			`"GET / HTTP/1.1"`},
		{"a long message", [][]byte{make([]byte, 4000)}, perftest.ErrGarbage, "more than"},
		{"old version", [][]byte{hello("5.33")}, perftest.ErrVersion, `"5.33"`},
		{"disconnects after the MTU", start, perftest.ErrGone, ""},
		{"7 bytes instead of a key", append(start[:4:4], make([]byte, 7)), perftest.ErrGarbage,
			"7 bytes"},
		{"disconnects before its queue pairs", append(start[:4:4], blank), perftest.ErrGone, ""},
		{
			"a queue pair that is not connected", append(start[:4:4], blank, blank, unknownQP),
			perftest.ErrProtocol, "0x900",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newTestConn(t, r)
			err := m.c.Dial(ctx, r.cm, roce.DialOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range c.sends {
				if len(b) > messageBytes {
					all := []roce.SGE{m.c.MR.SGE(0, (messageSlots+1)*messageBytes)}
					err = m.c.QP.PostSend(roce.SendWR{Op: roce.OpSend, Flags: roce.Signaled,
						SGEs: all})
				} else if err = m.Send(ctx, b); err == nil && len(c.sends) > 1 {
					_, err = m.Receive(ctx)
				}
				if err != nil {
					break // the server has disconnected
				}
			}
			if len(c.sends) == 1 {
				_, _ = m.Receive(ctx) // until the server disconnects
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
			if err := <-r.failed; !errors.Is(err, c.want) ||
				!strings.Contains(err.Error(), c.text) {
				t.Errorf("the server's error is %v, want %v with %q", err, c.want, c.text)
			}
			r.awaitReleased(t)
		})
	}
}

// The server disconnects the queue pairs at the end, which clients of later versions wait for. It
// recognizes the end by messages and barriers, and by silence only if these do not tell.
func TestServerDisconnects(t *testing.T) {
	r := newCMTester(t, false)
	const never = time.Hour
	for _, c := range []struct {
		args  string
		knows string // what the server's user has given besides the test
		over  time.Duration
	}{
		{"write-bw -s 3000 -n 50", "", never}, {"send-bw -q 2 -n 600 -s 100", "", never},
		{"send-bw -n 600 -s 100", "", never}, {"read-bw -q 2 -n 50", "", never},
		{"send-lat -s 8 -n 50", "", never}, {"read-lat -n 50", "", never},
		{"atomic-bw -n 50", "", never}, {"send-lat -s 2 -n 50", "-s", never},
		{"send-lat -a -n 5", "", never}, {"send-bw -a -n 5", "", never},
		{"send-bw -a -q 2 -n 5", "-n -a", never},
		{"write-lat -n 50", "-n", never}, {"send-lat -n 50", "-n", never},
		{"send-lat -a -n 5", "-a", never}, {"write-lat -a -n 5", "-n -a", never},
		{"write-lat -n 50", "", 2 * time.Second}, {"send-lat -n 50", "", 2 * time.Second},
	} {
		t.Run(c.args+" knowing "+c.knows, func(t *testing.T) {
			p, runs := parse(t, c.args)
			r.reset(nil)
			s := r.server
			s.Iterations, s.AllSizes, s.times.over = 0, strings.Contains(c.knows, "-a"), c.over
			if c.knows != "" {
				s.Want = p
			}
			if strings.Contains(c.knows, "-s") {
				s.Size = p.Bytes
			}
			if strings.Contains(c.knows, "-n") {
				s.Iterations = runs[0].Iterations
			}
			k, err := r.dial(t, p, Options{All: len(runs) > 1})
			if err != nil {
				t.Fatal(err)
			}
			defer k.Close(nil)
			for i, run := range runs {
				if _, err := k.Run(t.Context(), run); err != nil {
					t.Fatalf("run %d: %v", i, err)
				}
			}
			for _, c := range k.conns {
				if k.Params.Operation.Reply != perf.ReplyWrite && c.Err() != nil {
					t.Fatalf("before the end: %v", c.Err())
				}
			}
			if err := k.Finish(t.Context()); err != nil {
				t.Fatal(err)
			}
			for i, c := range k.conns {
				select {
				case <-c.Done():
				case <-time.After(30 * time.Second):
					t.Fatalf("queue pair %d is still connected", i)
				}
			}
		})
		r.awaitReleased(t)
	}
	if len(r.failed) > 0 {
		t.Errorf("the server's error is %v", <-r.failed)
	}
}

// A client that pauses within a test is not taken for one that has ended.
func TestSlowClient(t *testing.T) {
	r := newCMTester(t, false)
	p, runs := parse(t, "send-bw -n 10 -s 100")
	r.reset(nil)
	r.server.times.second = time.Millisecond
	k, err := r.dial(t, p, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close(nil)
	if err := k.during(t.Context(), k.msgs.BeforeRun); err != nil {
		t.Fatal(err)
	}
	s := k.Side.Session
	send := func() {
		t.Helper()
		wr := roce.SendWR{Op: roce.OpSend, Flags: roce.Signaled, SGEs: []roce.SGE{s.MR.SGE(0, 100)}}
		if err := s.QP.PostSend(wr); err != nil {
			t.Fatal(err)
		}
		var wc [1]roce.WC
		if _, err := s.CQ.Wait(t.Context(), wc[:]); err != nil || wc[0].Status != roce.Success {
			t.Fatalf("SEND: %v, %v", wc[0].Status, err)
		}
	}
	send()
	// The server now tries whether the client waits for a reply. The client has no receive.
	for deadline := time.Now().Add(10 * time.Second); k.Session().Dev.Counters().SentRNR == 0; {
		if time.Now().After(deadline) {
			t.Fatal("the server does not reply")
		}
		time.Sleep(time.Millisecond)
	}
	for range runs[0].Iterations - 1 {
		send()
	}
	if err := k.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.Close(nil)
	if row := <-r.rows; row.Iterations != 10 || row.BandwidthColumns == nil {
		t.Errorf("the server's row is %+v, want 10 messages of a bandwidth test", row)
	}
}

// The server notices that a client's host has died. It does not disconnect a slow client.
func TestSilentClient(t *testing.T) {
	r := newCMTester(t, false)
	r.server.times.quiet = 20 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	m := newTestConn(t, r)
	defer m.Close()
	// The client's timeouts apply to the server too: 1 ms, eight times.
	fast := roce.DialOptions{ConnectOptions: roce.ConnectOptions{Timeout: 8}}
	if err := m.c.Dial(ctx, r.cm, fast); err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond)
	if err := m.Send(ctx, append([]byte("6.06"), make([]byte, 12)...)); err != nil {
		t.Fatalf("a slow client: %v", err)
	}
	if _, err := m.Receive(ctx); err != nil {
		t.Fatalf("a slow client: %v", err)
	}
	if err := r.Link.SetPlan(0, 1, loopback.Plan{Loss: 1}); err != nil {
		t.Fatal(err)
	}
	if err := <-r.failed; !errors.Is(err, perftest.ErrGone) ||
		!strings.Contains(err.Error(), "retry") {
		t.Errorf("the server's error is %v, want ErrGone with a retry status", err)
	}
	r.awaitReleased(t)
}

// A client that sends a request and never completes the connection does not hold a session.
func TestIncompleteConnection(t *testing.T) {
	r := newCMTester(t, false)
	r.server.times.connect = 300 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := r.Link.SetPlan(1, 0, loopback.Plan{Loss: 1}); err != nil { // the answers are lost
		t.Fatal(err)
	}
	m := newTestConn(t, r)
	go func() {
		_ = m.c.Dial(ctx, r.cm, roce.DialOptions{})
		m.Close()
	}()
	start := time.Now()
	if err := <-r.failed; !errors.Is(err, context.DeadlineExceeded) ||
		time.Since(start) > 5*time.Second {
		t.Errorf("after %v the server's error is %v, want DeadlineExceeded", time.Since(start), err)
	}
	cancel()
	r.awaitReleased(t)
}

// The error of a client that finds no server mentions -R.
func TestNoListener(t *testing.T) {
	r := newCMTester(t, false)
	p, _ := parse(t, "write-bw -n 5")
	r.cm = netip.AddrPortFrom(r.cm.Addr(), cmPort+1)
	if _, err := r.dial(t, p, Options{}); !errors.Is(err, roce.ErrRefused) ||
		!strings.Contains(err.Error(), "-R") {
		t.Errorf("dial() = %v, want ErrRefused with advice about -R", err)
	}
}
