package pingpong

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// The line as ibv_rc_pingpong writes it (seen on the wire): 52 bytes with its NUL.
func TestLine(t *testing.T) {
	d := destination{qpn: 0x11, psn: 0xfffffe, gid: roce.GID{10: 0xff, 11: 0xff, 12: 10, 13: 77, 14: 0, 15: 1}}
	want := "0000:000011:fffffe:00000000000000000000ffff0a4d0001\x00"
	if got := string(d.line()); got != want || len(got) != 52 || lineLen != 52 {
		t.Errorf("%q (%d bytes), want %q", got, len(got), want)
	}
	if got, err := parseLine([]byte(want)); err != nil || got != d {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestBadLines(t *testing.T) {
	good := "0000:000011:fffffe:00000000000000000000ffff0a4d0001\x00"
	for name, line := range map[string]string{
		"no NUL":        strings.Replace(good, "\x00", "0", 1),
		"HTTP":          "GET / HTTP/1.1\r\nHost: somewhere\r\nUser-Agent: a brows",
		"signs":         strings.Replace(good, "000011", "-00011", 1),
		"short GID":     strings.Replace(good, "0a4d0001", "0a4d:001", 1),
		"QPN too large": "0000:1000011:fffff:00000000000000000000ffff0a4d0001\x00",
		"empty":         strings.Repeat("\x00", 52),
	} {
		if d, err := parseLine([]byte(line)); err == nil {
			t.Errorf("%s passed as %v", name, d)
		} else if !strings.Contains(err.Error(), "instead of a queue pair") {
			t.Errorf("%s: the error does not say what came: %v", name, err)
		}
	}
}

// A client that is none gets told so, and the server does not hang.
func TestGarbageInsteadOfAClient(t *testing.T) {
	a, b := net.Pipe()
	go func() { _, _ = b.Write([]byte("hello?\r\n")); b.Close() }()
	err := hearFirst(context.Background(), a, "rc", func([]destination) ([]destination, error) {
		t.Error("took garbage for a client")
		return nil, nil
	})
	if err == nil || !strings.Contains(err.Error(), "hello?") {
		t.Errorf("the error does not name what was received: %v", err)
	}
}

// A server that strangers come to says what each of them sent, at once, and goes on waiting for its client.
func TestStrangersDoNotEndTheServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var said bytes.Buffer
	strangers := []string{"GET / HTTP/1.1\r\n", "6.06\x00\x00", "\xff\xff", destination{qpn: 1}.String()}
	served := make(chan error, 1)
	go func() {
		served <- serveOn(t.Context(), l, &said, func(c net.Conn) error {
			defer c.Close()
			return hearFirst(t.Context(), c, "rc", func([]destination) ([]destination, error) { return nil, io.EOF })
		})
	}()
	for _, s := range append(strangers, "", string(destination{qpn: 0x11}.line())) {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, s); err != nil {
			t.Fatal(err)
		}
		if s == "" { // hangs up; the others wait for an answer
			c.Close()
			continue
		}
		_ = c.SetReadDeadline(time.Now().Add(exchangeTime / 2))
		if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%q: the server hangs", s)
		}
	}
	if err := <-served; !errors.Is(err, io.EOF) {
		t.Errorf("the client's game ended with %v", err)
	}
	if n := strings.Count(said.String(), "gorxe pingpong: 127.0.0.1:"); n != len(strangers)+1 || !strings.Contains(said.String(), "HTTP") {
		t.Errorf("the server said\n%s", said.String())
	}
}

// tcpPair is a connection with addresses, as the game wants it.
func tcpPair(t *testing.T) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			close(got)
			return
		}
		got <- c
	}()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server = <-got; server == nil {
		t.Fatal("no connection")
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// Both roles against each other, over a wire in memory; RC also over one that loses packets.
func TestGames(t *testing.T) {
	for _, c := range []struct {
		kind string
		loss float64
	}{{"rc", 0}, {"uc", 0}, {"ud", 0}, {"srq", 0}, {"rc", 0.05}, {"srq", 0.05}} {
		t.Run(c.kind, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			link, err := loopback.NewLink(loopback.Config{Seed: 1, Plan: loopback.Plan{Loss: c.loss}})
			if err != nil {
				t.Fatal(err)
			}
			r := &rules{kind: c.kind, bytes: 1000, mtu: 1024, qps: 1, depth: 20, iters: 200, check: true}
			if c.kind == "srq" {
				r.qps = 4
			}
			client, server := tcpPair(t)
			served := make(chan error, 1)
			go func() { served <- one(ctx, link, 1, r, server, false, new(bytes.Buffer)) }()
			var out bytes.Buffer
			if err := one(ctx, link, 0, r, client, true, jsonOnly{&out}); err != nil {
				t.Fatal(err)
			}
			if err := <-served; err != nil {
				t.Fatal(err)
			}
			var res Result
			if err := json.Unmarshal(out.Bytes(), &res); err != nil || res.Kind != c.kind || res.Iters != 200 || res.Seconds <= 0 {
				t.Errorf("%s: %v", out.String(), err)
			}
		})
	}
}

func one(ctx context.Context, link *loopback.Link, port int, r *rules, conn net.Conn, client bool, out interface{ Write([]byte) (int, error) }) error {
	dev, err := roce.New(link.Port(port), roce.WithProgress(roce.Manual))
	if err != nil {
		return err
	}
	defer dev.Close()
	return play(ctx, dev, &device.Flags{GIDIndex: -1}, r, conn, client, out)
}
