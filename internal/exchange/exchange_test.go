package exchange

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/guard"
	"github.com/gorxe/gorxe/internal/limit"
	"github.com/gorxe/gorxe/roce"
)

// socket returns a Conn and the other side of its TCP connection.
func socket(t *testing.T) (c *Conn, peer net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	peer, err = net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	nc, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close(); peer.Close() })
	return NewConn(nc), peer
}

func goodQP() QP {
	return QP{
		Endpoint: roce.Endpoint{QPN: 0x11, PSN: 0xffffff,
			GID: bth.GIDFromIPv4([4]byte{10, 77, 0, 1}), MTU: 1024, PKey: roce.DefaultPKey},
		Buffer: roce.RemoteBuffer{Addr: 1 << 63, RKey: 0xffffffff, Len: 65536},
	}
}

func TestRoundTrip(t *testing.T) {
	c, nc := socket(t)
	peer := NewConn(nc)
	sent := &Message{Kind: KindRequest, Service: "perf", Params: Encode(map[string]int{"bytes": 5}),
		QPs: []QP{goodQP()}}
	if err := c.Send(t.Context(), sent); err != nil {
		t.Fatal(err)
	}
	got, err := peer.Receive(t.Context(), KindRequest)
	if err != nil {
		t.Fatal(err)
	}
	if got.Service != "perf" || len(got.QPs) != 1 || got.QPs[0] != goodQP() {
		t.Errorf("got %+v", got)
	}
	var params struct {
		Bytes int `json:"bytes"`
	}
	if err := got.Decode(&params); err != nil || params.Bytes != 5 {
		t.Errorf("parameters: %+v, %v", params, err)
	}
	var other struct {
		Size int `json:"size"`
	}
	if err := got.Decode(&other); !errors.Is(err, ErrProtocol) {
		t.Errorf("unknown parameters: %v, want ErrProtocol", err)
	}
}

// A listener for both IP versions reports IPv4 peers by their IPv4 addresses.
func TestAddressesAreUnmapped(t *testing.T) {
	ln, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"),
		uint16(ln.Addr().(*net.TCPAddr).Port))
	peer, err := net.Dial("tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	nc, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c := NewConn(nc)
	defer c.Close()
	if got := c.Local().AddrPort(); got != to {
		t.Errorf("Local() = %v, want %v", got, to)
	}
	if got := c.Remote().AddrPort().String(); got != peer.LocalAddr().String() {
		t.Errorf("Remote() = %v, want %v", got, peer.LocalAddr())
	}
}

// Receive recognizes another protocol by its first bytes, without waiting for more, and quotes
// them.
func TestGarbage(t *testing.T) {
	for _, c := range []struct {
		name, sent, named string
		err               error
	}{
		{"perftest", "0000:0011:5d6b8f:00000000:0000000000000000", "0000:0011", ErrGarbage},
		{"HTTP", "GET / HTTP/1.1\r\nHost: x\r\n", "GET / HTTP", ErrGarbage},
		{"TLS", "\x16\x03\x01\x02\x00\x01\x00", `\x16\x03`, ErrGarbage},
		{"one NUL", "\x00", `\x00`, ErrGarbage},
		{"similar preamble", `{"gorxf":1}`, `{\"gorxf\"`, ErrGarbage},
		{"no JSON", `{"gorxe":what` + "\n", "what", ErrGarbage},
		{"unknown field", `{"gorxe":1,"kind":"ready","color":"red"}` + "\n", "color", ErrGarbage},
		{"two objects", `{"gorxe":1,"kind":"ready"} {}` + "\n", "more than one", ErrGarbage},
		{"newer version", `{"gorxe":2,"kind":"ready","color":"red"}` + "\n", "version 2",
			ErrVersion},
		{"wrong kind", `{"gorxe":1,"kind":"done"}` + "\n", "done", ErrProtocol},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, peer := socket(t)
			io.WriteString(peer, c.sent) // then the peer waits
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			_, err := conn.Receive(ctx, KindReady)
			if !errors.Is(err, c.err) {
				t.Fatalf("Receive() = %v, want %v", err, c.err)
			}
			if !strings.Contains(err.Error(), c.named) {
				t.Errorf("error %q does not contain %q", err, c.named)
			}
		})
	}
}

// Receive refuses values that gorxe never sends.
func TestOutOfRange(t *testing.T) {
	for name, spoil := range map[string]func(*QP){
		"QPN 0":         func(q *QP) { q.Endpoint.QPN = 0 },
		"QPN multicast": func(q *QP) { q.Endpoint.QPN = 0xffffff },
		"QPN 25 bits":   func(q *QP) { q.Endpoint.QPN = 1 << 24 },
		"PSN 25 bits":   func(q *QP) { q.Endpoint.PSN = 1 << 24 },
		"MTU":           func(q *QP) { q.Endpoint.MTU = 1000 },
		"class":         func(q *QP) { q.Endpoint.Class = 8 },
		"no GID":        func(q *QP) { q.Endpoint.GID = bth.GID{} },
		"multicast GID": func(q *QP) { q.Endpoint.GID = bth.GID{0: 0xff, 15: 1} },
		"buffer wraps":  func(q *QP) { q.Buffer.Addr, q.Buffer.Len = ^uint64(0), 2 },
	} {
		t.Run(name, func(t *testing.T) {
			c, nc := socket(t)
			q := goodQP()
			spoil(&q)
			if err := NewConn(nc).Send(t.Context(),
				&Message{Kind: KindRequest, QPs: []QP{q}}); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Receive(t.Context(), KindRequest); !errors.Is(err, ErrProtocol) {
				t.Errorf("got %v, want ErrProtocol", err)
			}
		})
	}
}

func TestTooLong(t *testing.T) {
	c, peer := socket(t)
	go func() {
		io.WriteString(peer, preamble)
		for range 2 * MaxMessage / 1024 {
			if _, err := peer.Write(bytes.Repeat([]byte{' '}, 1024)); err != nil {
				return
			}
		}
	}()
	if _, err := c.Receive(t.Context(), KindReady); !errors.Is(err, ErrTooLong) {
		t.Errorf("got %v, want ErrTooLong", err)
	}
	big := &Message{Kind: KindError, Error: strings.Repeat("x", MaxMessage)}
	if err := c.Send(t.Context(), big); !errors.Is(err, ErrTooLong) {
		t.Errorf("sending: %v, want ErrTooLong", err)
	}
}

// Receive returns if the peer sends nothing, stops or closes the connection.
func TestSilence(t *testing.T) {
	for name, sent := range map[string]string{"nothing": "", "half a preamble": `{"go`,
		"half a message": `{"gorxe":1,"ki`} {
		t.Run(name, func(t *testing.T) {
			c, peer := socket(t)
			io.WriteString(peer, sent)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if _, err := c.Receive(ctx, KindReady); !errors.Is(err, ErrTimeout) {
				t.Errorf("got %v, want ErrTimeout", err)
			}
		})
	}
	t.Run("gone", func(t *testing.T) {
		c, peer := socket(t)
		peer.Close()
		if _, err := c.Receive(t.Context(), KindReady); !errors.Is(err, ErrGone) {
			t.Errorf("got %v, want ErrGone", err)
		}
	})
	t.Run("canceled", func(t *testing.T) {
		c, _ := socket(t)
		why := errors.New("stopped by the user")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(20*time.Millisecond, func() { cancel(why) })
		if _, err := c.Await(ctx, KindReady); !errors.Is(err, why) {
			t.Errorf("got %v, want the cause", err)
		}
		// The connection still works afterwards.
		ctx, cancel2 := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel2()
		if _, err := c.Receive(ctx, KindReady); !errors.Is(err, ErrTimeout) {
			t.Errorf("afterwards: %v, want ErrTimeout", err)
		}
	})
}

// The error text of a peer reaches the user without control characters, and is clipped.
func TestRefuse(t *testing.T) {
	c, nc := socket(t)
	NewConn(nc).Refuse(errors.New("no \x1b[31mmemory\x07" + strings.Repeat("!", 2*maxText)))
	_, err := c.Receive(t.Context(), KindAccept)
	if !errors.Is(err, ErrRemote) || !strings.Contains(err.Error(), "no  [31mmemory !") {
		t.Fatalf("got %q", err)
	}
	if len(err.Error()) > maxText+64 {
		t.Errorf("%d bytes of a peer's text", len(err.Error()))
	}
}

// server runs a Server and returns its address.
func server(t *testing.T, s *Server) string {
	t.Helper()
	ln, err := Listen(t.Context(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Serve: %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Error("Serve did not end with its context")
		}
	})
	return fmt.Sprintf("127.0.0.1:%d", ln.Addr().(*net.TCPAddr).Port)
}

func dial(t *testing.T, addr string) *Conn {
	t.Helper()
	c, err := Dial(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// hold is a service that keeps its session until the client closes the connection.
func hold(ctx context.Context, c *Conn, _ *Message) error {
	if err := c.Send(ctx, &Message{Kind: KindAccept}); err != nil {
		return err
	}
	if _, err := c.Await(ctx, KindDone); !errors.Is(err, ErrGone) {
		return err
	}
	return nil
}

func request(t *testing.T, c *Conn, service string) error {
	t.Helper()
	if err := c.Send(t.Context(), &Message{Kind: KindRequest, Service: service}); err != nil {
		t.Fatal(err)
	}
	_, err := c.Receive(t.Context(), KindAccept)
	return err
}

// The failure of one client does not affect the others.
func TestServer(t *testing.T) {
	logged := make(chan error, 10)
	addr := server(t, &Server{
		Services: map[string]Handler{"hold": hold,
			"fail": func(context.Context, *Conn,
				*Message) error {
				return errors.New("out of memory")
			}},
		Log: func(_ netip.AddrPort, err error) { logged <- err },
	})
	good := dial(t, addr)
	if err := request(t, good, "hold"); err != nil {
		t.Fatal(err)
	}

	other, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	io.WriteString(other, "SSH-2.0-OpenSSH_9.2\r\n")
	if err := <-logged; !errors.Is(err, ErrGarbage) || !strings.Contains(err.Error(), "SSH-2.0") {
		t.Errorf("the log says %v", err)
	}
	answer, _ := io.ReadAll(other)
	if !strings.Contains(string(answer), "SSH-2.0") {
		t.Errorf("the server answered %q", answer)
	}

	if err := request(t, dial(t, addr), "fail"); !errors.Is(err, ErrRemote) ||
		!strings.Contains(err.Error(), "out of memory") {
		t.Errorf("a failing service: %v", err)
	}
	if err := request(t, dial(t, addr), "nonsense"); !errors.Is(err, ErrRemote) ||
		!strings.Contains(err.Error(), "nonsense") {
		t.Errorf("an unknown service: %v", err)
	}
	// The first client's session still works.
	if err := good.Send(t.Context(), &Message{Kind: KindReady}); err != nil {
		t.Error(err)
	}
}

// The server limits its sessions, in total and per address, and accepts new ones when others end.
func TestServerIsBounded(t *testing.T) {
	for name, s := range map[string]*Server{"in total": {Sessions: 3},
		"from one address": {PerPrefix: 2}} {
		t.Run(name, func(t *testing.T) {
			s.Services = map[string]Handler{"hold": hold}
			addr := server(t, s)
			first, second := dial(t, addr), dial(t, addr)
			for _, c := range []*Conn{first, second} {
				if err := request(t, c, "hold"); err != nil {
					t.Fatal(err)
				}
			}
			if err := request(t, dial(t, addr), "hold"); !errors.Is(err, ErrRemote) ||
				!strings.Contains(err.Error(), "busy") {
				t.Fatalf("a third session: %v, want a busy error", err)
			}
			first.Close()
			for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
				if err := request(t, dial(t, addr), "hold"); err == nil {
					break
				} else if time.Now().After(deadline) {
					t.Fatalf("no new session after one has ended: %v", err)
				}
			}
		})
	}
}

// Connections that send nothing do not count as sessions, and a flood of them does not fill the
// log.
func TestSilentConnectionsAreNoSessions(t *testing.T) {
	logged := make(chan error, 100)
	g := guard.New(limit.Access{}, nil)
	addr := server(t, &Server{Sessions: 1, Services: map[string]Handler{"hold": hold}, Guard: g,
		Log: g.Limit(func(_ netip.AddrPort, err error) { logged <- err })})
	var silent []net.Conn
	for range maxPending + 10 {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		silent = append(silent, nc)
	}
	for _, nc := range silent[:10] { // the oldest are closed
		_ = nc.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := nc.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("Read on one of the oldest connections = %v, want EOF", err)
		}
	}
	if err := request(t, dial(t, addr), "hold"); err != nil {
		t.Errorf("a client among silent connections: %v", err)
	}
	if err := request(t, dial(t, addr), "hold"); !errors.Is(err, ErrRemote) ||
		!strings.Contains(err.Error(), "busy with another client") {
		t.Errorf("a second client: %v", err)
	}
	for deadline := time.Now().Add(5 * time.Second); counted(g, "refused_lobby") < 10; {
		if time.Now().After(deadline) {
			t.Fatalf("refused_lobby = %d, want at least 10", counted(g, "refused_lobby"))
		}
		time.Sleep(time.Millisecond)
	}
	if n := counted(g, "refused_busy"); n != 1 {
		t.Errorf("refused_busy = %d, want 1", n)
	}
	if n := len(logged); n == 0 || n > 8 {
		t.Errorf("%d log lines for the connections without a session, want 1 to 8", n)
	}
}

func counted(g *guard.Guard, name string) uint64 {
	for n, v := range g.Counts() {
		if n == name {
			return v
		}
	}
	return 0
}

// Connections that stop in the middle of a request do not count as sessions either, whether they
// speak gorxe's exchange or another protocol.
func TestIncompleteRequestsAreNoSessions(t *testing.T) {
	for name, say := range map[string]string{"a request": `{"gorxe":1,"kind":"requ`,
		"another protocol": "6"} {
		t.Run(name, func(t *testing.T) {
			var detected atomic.Int32
			srv := &Server{
				Sessions: 1, Services: map[string]Handler{"hold": hold},
				Detect: func(ctx context.Context, c *Conn) (func(context.Context) error, error) {
					detected.Add(1)
					if first, err := c.PeekByte(ctx, Timeout); err != nil || first == '{' {
						return nil, err
					}
					_, err := io.ReadFull(c.Stream(), make([]byte, 2))
					return func(context.Context) error { return errors.New("served") }, err
				},
			}
			addr := server(t, srv)
			for range 3 {
				nc, err := net.Dial("tcp", addr)
				if err != nil {
					t.Fatal(err)
				}
				defer nc.Close()
				if _, err := io.WriteString(nc, say); err != nil {
					t.Fatal(err)
				}
			}
			for deadline := time.Now().Add(5 * time.Second); detected.Load() < 3; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("the server called Detect for %d of 3 connections", detected.Load())
				}
			}
			first := dial(t, addr)
			if err := request(t, first, "hold"); err != nil {
				t.Fatalf("a client among incomplete requests: %v", err)
			}
			if n := srv.waiting(); n != 3 {
				t.Errorf("%d pending connections, want the 3 without a complete request", n)
			}
			// A busy server says so after the first byte, in either protocol.
			nc, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			_ = nc.SetDeadline(time.Now().Add(5 * time.Second))
			if _, err := io.WriteString(nc, say[:1]); err != nil {
				t.Fatal(err)
			}
			if m, err := NewConn(nc).Receive(t.Context()); !errors.Is(err, ErrRemote) ||
				!strings.Contains(err.Error(), "busy with another client") {
				t.Errorf("a second client receives %v, %v; want a busy error", m, err)
			}
		})
	}
}

// waiting returns the number of connections without a request.
func (s *Server) waiting() int {
	s.pending.mu.Lock()
	defer s.pending.mu.Unlock()
	return len(s.pending.conns)
}

func TestListenPortInUse(t *testing.T) {
	ln, err := Listen(t.Context(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	port := ln.Addr().(*net.TCPAddr).Port
	if _, err := Listen(t.Context(), "", port); err == nil ||
		!strings.Contains(err.Error(), "--port") {
		t.Errorf("got %v, want advice about --port", err)
	}
}

// A server on a loopback address uses the same port as one on an interface.
func TestListenLoopback(t *testing.T) {
	ifaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(ifaces, func(i net.Interface) bool { return i.Flags&net.FlagLoopback == 0 })
	if i < 0 {
		t.Skip("no interface but loopback")
	}
	ln, err := Listen(t.Context(), ifaces[i].Name, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	port := ln.Addr().(*net.TCPAddr).Port
	lo, err := Listen(t.Context(), "127.0.0.1", port)
	if err != nil {
		t.Fatalf("beside a server on %s: %v", ifaces[i].Name, err)
	}
	defer lo.Close()
	nc, err := net.Dial("tcp", lo.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
	if other, err := Listen(t.Context(), "lo", port); err == nil {
		other.Close()
		t.Error("two servers have the same port of a loopback address")
	}
}

func TestDialError(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	_, err = Dial(t.Context(), addr)
	if err == nil || !strings.Contains(err.Error(), "connection refused") ||
		!strings.Contains(err.Error(), "gorxe up") {
		t.Errorf("got %v", err)
	}
}

// For any input, Receive returns a message that passed its checks or one of this package's errors.
func FuzzReceive(f *testing.F) {
	for _, s := range []string{"", "{", preamble, `{"gorxe":1,"kind":"ready"}` + "\n",
		`{"gorxe":1,"kind":"accept","qps":[{}]}` + "\n", "0000:0011"} {
		f.Add([]byte(s))
	}
	known := []error{ErrGarbage, ErrVersion, ErrProtocol, ErrTooLong, ErrTimeout, ErrGone,
		ErrRemote}
	f.Fuzz(func(t *testing.T, b []byte) {
		local, remote := net.Pipe()
		defer local.Close()
		go func() {
			remote.Write(b)
			remote.Close()
		}()
		m, err := NewConn(local).Receive(t.Context(), KindReady, KindAccept)
		if err == nil {
			err = m.check()
			if err == nil {
				return
			}
		}
		for _, k := range known {
			if errors.Is(err, k) {
				return
			}
		}
		t.Errorf("%q gives %v", b, err)
	})
}

// A host that does not answer the attempt to connect leads to one advice, not two.
func TestUnreachable(t *testing.T) {
	err := unreachable("10.0.0.1:1", &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded})
	if n := strings.Count(err.Error(), "check that"); !errors.Is(err, ErrTimeout) || n != 1 {
		t.Errorf("%v", err)
	}
}
