package pingpong

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// The line was recorded from ibv_rc_pingpong.
const recordedLine = "0000:000011:fffffe:00000000000000000000ffff0a4d0001\x00"

func TestLine(t *testing.T) {
	a := Address{QPN: 0x11, PSN: 0xfffffe,
		GID: roce.GID{10: 0xff, 11: 0xff, 12: 10, 13: 77, 14: 0, 15: 1}}
	if got := string(a.line()); got != recordedLine || len(got) != lineLen {
		t.Errorf("line() = %q (%d bytes), want %q", got, len(got), recordedLine)
	}
	if got, err := parseLine([]byte(recordedLine)); err != nil || got != a {
		t.Errorf("parseLine() = %+v, %v, want %+v", got, err, a)
	}
}

func TestBadLines(t *testing.T) {
	for name, line := range map[string]string{
		"no NUL":        strings.Replace(recordedLine, "\x00", "0", 1),
		"HTTP":          "GET / HTTP/1.1\r\nHost: somewhere\r\nUser-Agent: a brows",
		"sign":          strings.Replace(recordedLine, "000011", "-00011", 1),
		"short GID":     strings.Replace(recordedLine, "0a4d0001", "0a4d:001", 1),
		"QPN too large": "0000:1000011:fffff:00000000000000000000ffff0a4d0001\x00",
		"multicast QPN": "0000:ffffff:fffffe:00000000000000000000ffff0a4d0001\x00",
		"empty":         strings.Repeat("\x00", lineLen),
	} {
		if a, err := parseLine([]byte(line)); err == nil {
			t.Errorf("%s: parseLine() = %v, want an error", name, a)
		} else if !strings.Contains(err.Error(), "instead of the address of a queue pair") {
			t.Errorf("%s: parseLine() = %v, want an error that quotes the line", name, err)
		}
	}
}

// A server rejects a client of another protocol without delay and quotes what it sent.
func TestServerRejectsGarbage(t *testing.T) {
	a, b := net.Pipe()
	go func() { _, _ = b.Write([]byte("hello?\r\n")); b.Close() }()
	err := serverExchange(context.Background(), a, 1, func([]Address) ([]Address, error) {
		t.Error("serverExchange accepted garbage as an address")
		return nil, nil
	})
	if !errors.Is(err, ErrExchange) || !strings.Contains(err.Error(), "hello?") {
		t.Errorf("serverExchange() = %v, want ErrExchange with the bytes received", err)
	}
}

// Connections of other programs are reported at once, and the server keeps waiting for its client.
func TestServeSkipsOtherPrograms(t *testing.T) {
	l, err := Listen(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	log := make(chan error, 10)
	garbage := []string{"GET / HTTP/1.1\r\n", "6.06\x00\x00", "\xff\xff", Address{QPN: 1}.String()}
	served := make(chan error, 1)
	go func() {
		served <- Serve(t.Context(), l, RC, nil, func(c net.Conn) error {
			defer c.Close()
			return serverExchange(t.Context(), c, 1,
				func([]Address) ([]Address, error) { return nil, io.EOF })
		}, func(_ netip.AddrPort, err error) {
			log <- err
		})
	}()
	quoted := false
	silent, err := net.Dial("tcp", l.Addr().String()) // sends nothing and blocks nobody
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for i, s := range append(garbage, "", string(Address{QPN: 0x11}.line())) {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, s); err != nil {
			t.Fatal(err)
		}
		if s == "" { // closes the connection; the others wait for an answer
			c.Close()
		}
		if i <= len(garbage) {
			select {
			case err := <-log:
				quoted = quoted || strings.Contains(err.Error(), "HTTP")
			case <-time.After(exchangeTimeout / 2):
				t.Errorf("the server does not reject %q", s)
			}
		}
		if s == "" {
			continue
		}
		_ = c.SetReadDeadline(time.Now().Add(exchangeTimeout / 2))
		if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the server does not react to %q", s)
		}
	}
	if err := <-served; !errors.Is(err, io.EOF) {
		t.Errorf("Serve() = %v, want the result of the client's session, io.EOF", err)
	}
	if len(log) > 0 || !quoted {
		t.Errorf("%d more connections were rejected, and the garbage was quoted: %v", len(log),
			quoted)
	}
}

// A server does not send to a host that is not its client, and keeps waiting for its client.
func TestForeignGID(t *testing.T) {
	client, server := connPair(t)
	foreign := errors.New("the GID of another host")
	cfg := Config{Kind: SRQ, QPs: 2, MTU: 1024, Bytes: 1, RecvDepth: 2, Iterations: 1,
		GID: func(*roce.Device, netip.Addr) (*int, error) { return new(int), nil },
		CheckGID: func(_ context.Context, peer netip.Addr, gid roce.GID) error {
			if gid.Addr() != peer {
				return foreign
			}
			return nil
		}}
	go func() {
		own := Address{QPN: 1, GID: roce.GIDFromAddr(netip.MustParseAddr("127.0.0.1"))}
		other := Address{QPN: 2, GID: roce.GIDFromAddr(netip.MustParseAddr("192.0.2.1"))}
		_ = writeLines(client, []Address{own, other}, cfg.lines())
	}()
	_, err := Server(t.Context(), nil, cfg, server)
	if !errors.Is(err, foreign) || !errors.As(err, new(notAClient)) {
		t.Errorf("Server() = %v, want the error of CheckGID, which does not end Serve", err)
	}
}

// connPair returns both sides of a TCP connection.
func connPair(t *testing.T) (client, server net.Conn) {
	t.Helper()
	l, err := Listen(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			close(accepted)
			return
		}
		accepted <- c
	}()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server = <-accepted; server == nil {
		t.Fatal("no connection")
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// Client and server run against each other on a memory link; the reliable kinds also with packet
// loss.
func TestSessions(t *testing.T) {
	for _, c := range []struct {
		kind Kind
		loss float64
	}{{RC, 0}, {UC, 0}, {UD, 0}, {SRQ, 0}, {RC, 0.05}, {SRQ, 0.05}} {
		t.Run(string(c.kind), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			bed, err := testbed.New(testbed.Config{
				Seed: 1, Plan: loopback.Plan{Loss: c.loss},
				Options: []roce.Option{roce.WithProgress(roce.Manual)},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer bed.Close()
			connected := 0
			cfg := Config{
				Kind: c.kind, Bytes: 1000, MTU: 1024, QPs: 1, RecvDepth: 20, Iterations: 200,
				Check:    true,
				GID:      func(*roce.Device, netip.Addr) (*int, error) { return new(int), nil },
				CheckGID: func(context.Context, netip.Addr, roce.GID) error { return nil },
			}
			if c.kind == SRQ {
				cfg.QPs = 4
			}
			serverCfg := cfg
			client, server := connPair(t)
			served := make(chan error, 1)
			go func() {
				_, err := Server(ctx, bed.Dev[1], serverCfg, server)
				served <- err
			}()
			cfg.Connected = func(local, remote []Address) { connected += len(local) + len(remote) }
			took, err := Client(ctx, bed.Dev[0], cfg, client)
			if err != nil || took <= 0 {
				t.Errorf("Client() = %v, %v", took, err)
			}
			if err := <-served; err != nil {
				t.Errorf("Server() = %v", err)
			}
			if connected != 2*cfg.QPs {
				t.Errorf("Connected got %d addresses, want %d", connected, 2*cfg.QPs)
			}
		})
	}
}
