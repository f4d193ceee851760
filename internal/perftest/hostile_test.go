package perftest

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/roce"
)

var (
	goodHello = "6.06" + strings.Repeat("\x00", 12)
	goodSetup = goodHello + "\x00\x00\x10\x00" + "\x00\x00\x00@" + "5\x00"
	goodKey   = "0000:0001:00004a:df2588:00002730:00005596a624e000:00:00:00:00:00:00:00:00:00:00:ff:ff:0a:4e:00:01:00000000:\x00"
	shortKey  = "0003:0001:00004a:df2588:00002730:00005596a624e000:00000000\x00" // as on InfiniBand
)

// with returns goodKey with s at offset at.
func with(at int, s string) string { return goodKey[:at] + s + goodKey[at+len(s):] }

// hostile lists what an unexpected peer sends, and the expected error.
var hostile = []struct {
	name  string
	sends string
	hang  bool // it keeps the connection open
	want  error
	text  string // a part of the error
}{
	{"closes at once", "", false, ErrGone, ""},
	{"is silent", "", true, ErrTimeout, ""},
	{"HTTP", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", true, ErrGarbage, `"GET / HTTP/1.1`},
	{"one letter, and waits", "S", true, ErrGarbage, `"S"`},
	{"SSH", "SSH-2.0-OpenSSH_9.2\r\n", false, ErrGarbage, "OpenSSH"},
	{"TLS", "\x16\x03\x01\x02\x00\x01\x00", true, ErrGarbage, `\x16\x03`},
	{"JSON", `{"gorxe":1,"kind":"request"}`, true, ErrGarbage, `{\"gorxe\"`},
	{"a NUL first", strings.Repeat("\x00", 200), true, ErrGarbage, `\x00`},
	{"ibv_rc_pingpong", "0000:00004a:df2588:00000000000000000000ffff0a4e0001\x00", true, ErrGarbage,
		"0000:00004a"},
	{"endless digits", strings.Repeat("6", 4000), true, ErrGarbage, "66666"},
	{"two points", "6.0.6" + strings.Repeat("\x00", 11), true, ErrGarbage, "6.0.6"},
	{"half a version", "6.0", false, ErrGarbage, `"6.0" of 16 bytes and closed`},
	{"half a version, and waits", "6.0", true, ErrTimeout, `"6.0"`},
	{"too old", "5.33" + strings.Repeat("\x00", 12), true, ErrVersion, `"5.33"`},
	{"a page of -1", goodHello + "\xff\xff\xff\xff", true, ErrProtocol, "-1"},
	{"a page of 2 GiB", goodHello + "\x7f\xff\xff\xff", true, ErrProtocol, "2147483647"},
	{"a cache line of 0", goodHello + "\x00\x00\x10\x00\x00\x00\x00\x00", true, ErrProtocol,
		"0 bytes"},
	{"a letter for an MTU", goodHello + "\x00\x00\x10\x00\x00\x00\x00@M\x00", true, ErrGarbage,
		`"M\x00"`},
	{"MTU 9", goodHello + "\x00\x00\x10\x00\x00\x00\x00@9\x00", true, ErrProtocol, `"9"`},
	{"MTU 0", goodHello + "\x00\x00\x10\x00\x00\x00\x00@0\x00", true, ErrProtocol, `"0"`},
	{"silent after the MTU", goodSetup, true, ErrTimeout, ""},
	{"gone after the MTU", goodSetup, false, ErrGone, ""},
	{"garbage for a key", goodSetup + "hello, this is not a key", true, ErrGarbage, "hello, this"},
	{"half a key", goodSetup + goodKey[:60], false, ErrProtocol, "0000:0001:00004a"},
	{"half a key, and waits", goodSetup + goodKey[:60], true, ErrTimeout, "0000:0001:00004a"},
	{"a letter in a QPN", goodSetup + with(12, "x"), true, ErrGarbage, "0000:0001"},
	{"no colon", goodSetup + with(9, "0"), true, ErrGarbage, "0000:0001"},
	{"a letter in the GID", goodSetup + with(gidAt+4, "g"), true, ErrGarbage, "0000:0001"},
	{"no NUL", goodSetup + with(keyLen-1, "0"), true, ErrGarbage, "0000:0001"},
	{"no GID", goodSetup + shortKey, true, ErrNoGID, "-x"},
	{"a zero GID", goodSetup + with(gidAt, "00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:"),
		true, ErrNoGID, "-x"},
	{"a multicast GID", goodSetup + with(gidAt, "ff:02:"), true, ErrProtocol, "multicast"},
	{"QPN 0", goodSetup + with(10, "000000"), true, ErrProtocol, "QPN"},
	{"QPN of multicast", goodSetup + with(10, "ffffff"), true, ErrProtocol, "QPN"},
}

// Server returns an error that quotes what an unexpected client sent, in bounded time.
func TestHostileClients(t *testing.T) {
	for _, c := range hostile {
		t.Run(c.name, func(t *testing.T) {
			l := unexpectedPeer(t, c.sends, c.hang)
			check(t, serveOnce(t.Context(), l), c.want, c.text)
		})
	}
}

// Client returns an error that quotes what an unexpected server sent, in bounded time.
func TestHostileServers(t *testing.T) {
	for _, c := range hostile {
		t.Run(c.name, func(t *testing.T) {
			l := unexpectedPeer(t, c.sends, c.hang)
			err := talkAsClient(t.Context(), l, Test{}, 1, make([]Key, 2), make([]Key, 2),
				&Report{})
			check(t, err, c.want, c.text)
		})
	}
}

func check(t *testing.T, err, want error, text string) {
	t.Helper()
	if !errors.Is(err, want) || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v, want %v with %q", err, want, text)
	}
	if err != nil && len(err.Error()) > 400 {
		t.Errorf("%d bytes of error", len(err.Error()))
	}
}

const shortTime = 50 * time.Millisecond

// unexpectedPeer returns a link to a peer that sends a fixed text and ignores what it receives.
func unexpectedPeer(t *testing.T, sends string, hang bool) *Link {
	t.Helper()
	a, b := net.Pipe()
	t.Cleanup(func() { a.Close(); b.Close() })
	go func() {
		_, _ = io.WriteString(b, sends)
		if !hang {
			b.Close()
		}
	}()
	l := NewLink(deaf{a})
	l.timeout = shortTime
	return l
}

// deaf is a stream that discards what is written, even after the peer has closed it.
type deaf struct{ net.Conn }

func (deaf) Write(b []byte) (int, error) { return len(b), nil }

func serveOnce(ctx context.Context, l *Link) error {
	s, err := AnswerHello(ctx, l)
	if err != nil {
		return err
	}
	if _, err := s.AgreeMTU(ctx, 4096); err != nil {
		return err
	}
	return s.Serve(ctx, &anyHost{})
}

// anyHost accepts every queue pair.
type anyHost struct {
	n     int
	fails error
}

func (h *anyHost) QueuePair(context.Context, Key) (Key, error) {
	h.n++
	return Key{QPN: roce.QPN(h.n), GID: roce.GID{15: 1}}, h.fails
}
func (h *anyHost) BlankKey() error { return nil }
func (h *anyHost) Sync() error     { return nil }
func (h *anyHost) Report() Report  { return Report{} }
func (h *anyHost) Reported(Report) {}

// Messages after a valid setup: the end of a run, or garbage.
func TestHostileMiddle(t *testing.T) {
	start := goodSetup + goodKey + goodKey
	for _, c := range []struct {
		name, sends string
		want        error
		text        string
	}{
		{"closes during a run, as interrupted tests do", start, nil, ""},
		{"done", start + done, nil, ""},
		{"almost done", start + "dome\x00", ErrGarbage, "dom"},
		{"half of done", start + "do", ErrProtocol, `"do"`},
		{"a text", start + "thanks", ErrGarbage, "thanks"},
		{"half a report", start + strings.Repeat("\x00", 20), ErrProtocol, ""},
		{"a report", start + strings.Repeat("\x00", 40), nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := serveOnce(t.Context(), unexpectedPeer(t, c.sends, false))
			if c.want == nil {
				if err != nil {
					t.Errorf("got %v", err)
				}
				return
			}
			check(t, err, c.want, c.text)
		})
	}
}

// Server refuses more than MaxQPs queue pairs.
func TestTooManyQueuePairs(t *testing.T) {
	sends := []byte(goodSetup)
	k, err := parseKey([]byte(goodKey))
	if err != nil {
		t.Fatal(err)
	}
	for i := range MaxQPs + 1 {
		k.QPN = roce.QPN(i + 1)
		sends = append(sends, k.text()...)
	}
	check(t, serveOnce(t.Context(), unexpectedPeer(t, string(sends), true)), ErrProtocol, "256")
}

// Serve returns the error of its Host.
func TestHostFails(t *testing.T) {
	l := unexpectedPeer(t, goodSetup+goodKey, true)
	s, err := AnswerHello(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.AgreeMTU(t.Context(), 1024); err != nil {
		t.Fatal(err)
	}
	failure := errors.New("no more queue pairs")
	if err := s.Serve(t.Context(), &anyHost{fails: failure}); !errors.Is(err, failure) {
		t.Errorf("got %v", err)
	}
}

// Canceling the context ends WaitClosed with the context's cause and does not affect the next call.
func TestCancel(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	l := NewLink(a)
	why := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		time.Sleep(10 * time.Millisecond)
		cancel(why)
	}()
	if err := l.WaitClosed(ctx); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
	go io.WriteString(b, goodHello)
	if _, _, err := l.receive(t.Context(), kindHello, time.Second); err != nil {
		t.Errorf("after a canceled wait: %v", err)
	}
	go b.Close()
	if err := l.WaitClosed(t.Context()); !errors.Is(err, ErrGone) {
		t.Errorf("got %v", err)
	}
}

// Two gorxe sides recognize each other; perftest is not taken for gorxe.
func TestGorxeRecognizesGorxe(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	served := make(chan error, 1)
	go func() {
		s, err := AnswerHello(t.Context(), NewLink(b))
		if err == nil && !s.Peer.Gorxe {
			err = errors.New("the server does not recognize gorxe")
		}
		served <- err
	}()
	c, err := Greet(t.Context(), NewLink(a), true)
	if err != nil || !c.Peer.Gorxe || c.Peer.Version != announced {
		t.Errorf("%+v, %v", c, err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	if h, err := parseHello([]byte(goodHello)); err != nil || h.Gorxe || h.Version != "6.06" {
		t.Errorf("%+v, %v", h, err)
	}
}

// A text is either refused or parses into a key with the same text.
func FuzzKey(f *testing.F) {
	f.Add([]byte(goodKey))
	f.Add([]byte(with(gidAt, "fe:80:")))
	f.Fuzz(func(t *testing.T, b []byte) {
		for n := range b {
			if n < keyLen {
				_ = plausibleKey(b[:n])
			}
		}
		if len(b) != keyLen || plausibleKey(b) != nil {
			return
		}
		k, err := parseKey(b)
		if err != nil {
			return
		}
		if again := k.text(); len(again) != keyLen || !strings.EqualFold(string(again), string(b)) {
			t.Errorf("%q became %q", b, again)
		}
	})
}

// A session with arbitrary bytes ends and never panics.
func FuzzServer(f *testing.F) {
	f.Add([]byte(goodSetup + goodKey + goodKey + strings.Repeat("\x00", 40) + done))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, peer := net.Pipe()
		defer a.Close()
		go func() {
			_, _ = peer.Write(b)
			peer.Close()
		}()
		_ = serveOnce(t.Context(), NewLink(deaf{a}))
	})
}
