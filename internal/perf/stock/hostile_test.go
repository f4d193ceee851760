package stock

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/guard"
	"github.com/gorxe/gorxe/internal/limit"
	"github.com/gorxe/gorxe/internal/perf"
	"github.com/gorxe/gorxe/internal/perftest"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// The server reports unexpected bytes on its TCP port and releases all resources. Package perftest
// tests many more kinds of unexpected bytes.
func TestUnexpectedBytes(t *testing.T) {
	const (
		hello = "6.06\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
		setup = hello + "\x00\x00\x10\x00\x00\x00\x00@5\x00"
		key   = "0000:0001:00004a:df2588:00002730:00005596a624e000:" +
			"00:00:00:00:00:00:00:00:00:00:ff:ff:0a:4d:00:01:00000000:\x00"
		other = "0000:0001:00004b:df2588:00002730:00005596a624e000:" +
			"00:00:00:00:00:00:00:00:00:00:ff:ff:0a:4d:00:01:00000000:\x00"
	)
	r := newTCPTester(t, roce.Auto, roce.WithExpert(roce.Expert{MaxQP: maxTestQPs}))
	r.free = r.freeQPs(t)
	for _, c := range []struct {
		name, sends string
		want        error
		text        string
	}{
		{"nothing", "", exchange.ErrGone, ""},
		{"HTTP", "GET / HTTP/1.1\r\n\r\n", perftest.ErrGarbage, `"GET / HTTP/1.1`},
		{"old version", "5.33" + hello[4:], perftest.ErrVersion, `"5.33"`},
		{
			"future version with an additional step",
			"9.99" + hello[4:] + "\x00\x00\x10\x00\x00\x00\x00@5\x00{\"tests\"",
			perftest.ErrGarbage, `"{`,
		},
		{"page of 1 GiB", hello + "\x40\x00\x00\x00", perftest.ErrProtocol, "1073741824"},
		{"garbage instead of a key", setup + "hello, this is not a key", perftest.ErrGarbage,
			"hello, this"},
		{"one and a half keys", setup + key + key[:50], perftest.ErrProtocol, "0000:0001"},
		{"two queue pairs, then closes", setup + key + other, errNoTest, ""},
		{"garbage after the keys", setup + key + other + key + "\xff\xff", perftest.ErrGarbage,
			`\xff\xff`},
		{"barriers, then closes", setup + key + key + key + key, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			nc, err := net.Dial("tcp", r.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			_ = nc.SetDeadline(time.Now().Add(10 * time.Second))
			if _, err := io.WriteString(nc, c.sends); err != nil {
				t.Fatal(err)
			}
			if err := nc.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, nc) // until the server closes the connection
			if c.want == nil {
				r.awaitReleased(t)
				return
			}
			select {
			case err := <-r.failed:
				if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
					t.Errorf("the server's error is %v, want %v with %q", err, c.want, c.text)
				}
			case <-time.After(10 * time.Second):
				t.Error("the server has no error")
			}
			r.awaitReleased(t)
		})
	}
}

// Connections that stop in the middle of the first message do not block a server for one client,
// with either protocol.
func TestIncompleteHellosDoNotBlock(t *testing.T) {
	r := newTCPTester(t, roce.Auto)
	r.serve(t, &exchange.Server{Sessions: 1})
	for _, half := range []string{"6", "6.06", "{"} {
		nc, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		if _, err := io.WriteString(nc, half); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(50 * time.Millisecond) // let the server read them
	p, runs := parse(t, "write-bw -n 100 -s 1k")
	r.reset(p)
	r.measure(t, p, Options{}, runs[0])
	// The server ends the session after the client has its result.
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		c, err := r.dialGorxe(t, p)
		if err == nil {
			defer c.Close(nil)
			_, err = c.Run(t.Context(), runs[0])
		}
		if err == nil {
			return
		}
		if !strings.Contains(err.Error(), "busy with another client") ||
			time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// The server does not connect a queue pair to a GID that is not the client's address.
func TestForeignGID(t *testing.T) {
	r := newTester(t, testbed.Config{})
	g := guard.New(limit.Access{}, nil)
	r.serve(t, &exchange.Server{Guard: g, CheckGID: exchange.SameAddr,
		Log: func(_ netip.AddrPort, err error) { r.failed <- err }})
	p, _ := parse(t, "write-bw")
	if _, err := r.dial(t, p, Options{}); err == nil {
		t.Error("the server accepted a GID that is not the address of the TCP connection")
	}
	if err := <-r.failed; !errors.Is(err, exchange.ErrAddress) {
		t.Errorf("the server's error is %v, want ErrAddress", err)
	}
	for name, n := range g.Counts() {
		if name == "refused_address" && n != 1 {
			t.Errorf("%s = %d, want 1", name, n)
		}
	}
}

// The server ends the session of a client that sends nothing.
func TestIdleClient(t *testing.T) {
	for _, args := range []string{"write-lat", "send-bw -q 2"} {
		r := newTCPTester(t, roce.Auto)
		r.server.Idle = 300 * time.Millisecond
		p, _ := parse(t, args)
		if c, err := r.dial(t, p, Options{}); err == nil { // the session may end before
			defer c.Close(nil)
		}
		if err := <-r.failed; !errors.Is(err, session.ErrIdle) {
			t.Errorf("%s: the server's error is %v, want ErrIdle", args, err)
		}
		r.awaitIdle(t)
	}
}

// The server limits the time of a session.
func TestMaxRun(t *testing.T) {
	r := newTCPTester(t, roce.Auto)
	r.server.MaxRun = 200 * time.Millisecond
	p, _ := parse(t, "write-bw")
	if c, err := r.dial(t, p, Options{}); err == nil { // the session may end before
		defer c.Close(nil)
	}
	if err := <-r.failed; !errors.Is(err, perf.ErrRunTooLong) {
		t.Errorf("the server's error is %v, want ErrRunTooLong", err)
	}
	r.awaitIdle(t)
}

// The server does not send write-lat's first message to a client that does not answer on the RDMA
// path.
func TestNoFirstMessageWithoutAnswer(t *testing.T) {
	r := newTCPTester(t, roce.Auto)
	p, _ := parse(t, "write-lat")
	r.reset(p) // the server sends the first message at once
	if err := r.Link.SetPlan(0, 1, loopback.Plan{Loss: 1}); err != nil {
		t.Fatal(err)
	}
	c, err := r.dial(t, p, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(nil)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		n := r.server.Dev.Counters()
		if n.SentBytes > 0 {
			t.Fatalf("the server has sent %d bytes of payload, want 0", n.SentBytes)
		}
		if n.SentPkts > 2 { // the empty WRITE was repeated
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the server has sent %d packets, want a few", n.SentPkts)
		}
	}
}

func (r *tester) dialGorxe(t *testing.T, p *perf.Params) (perf.Client, error) {
	return Dial(t.Context(), r.client, r.gid, r.addr, p, Options{})
}

// A busy server sends an error in gorxe's exchange before the client has shown which protocol it
// uses.
func TestBusyServer(t *testing.T) {
	r := newTCPTester(t, roce.Auto)
	p, _ := parse(t, "write-bw")
	for range exchange.DefaultPerPrefix {
		c, err := r.dialGorxe(t, p)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(nil)
	}
	_, err := r.dialGorxe(t, p)
	if !errors.Is(err, exchange.ErrRemote) || !strings.Contains(err.Error(), "busy") {
		t.Errorf("Dial() = %v, want a busy error", err)
	}
}
