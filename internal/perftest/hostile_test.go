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

// with replaces the bytes of a good key from at on.
func with(at int, s string) string { return goodKey[:at] + s + goodKey[at+len(s):] }

// hostile is what a stranger says on the port, whether it then hangs up, and what our user hears.
var hostile = []struct {
	name string
	says string
	hang bool // it stays and is silent
	want error
	text string // a part of the error
}{
	{"closes at once", "", false, ErrGone, ""},
	{"is silent", "", true, ErrTimeout, ""},
	{"HTTP", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", true, ErrGarbage, `"GET / HTTP/1.1`},
	{"one letter, and waits", "S", true, ErrGarbage, `"S"`},
	{"SSH", "SSH-2.0-OpenSSH_9.2\r\n", false, ErrGarbage, "OpenSSH"},
	{"TLS", "\x16\x03\x01\x02\x00\x01\x00", true, ErrGarbage, `\x16\x03`},
	{"JSON", `{"gorxe":1,"kind":"request"}`, true, ErrGarbage, `{\"gorxe\"`},
	{"a NUL first", strings.Repeat("\x00", 200), true, ErrGarbage, `\x00`},
	{"ibv_rc_pingpong", "0000:00004a:df2588:00000000000000000000ffff0a4e0001\x00", true, ErrGarbage, "0000:00004a"},
	{"digits without end", strings.Repeat("6", 4000), true, ErrGarbage, "66666"},
	{"two points", "6.0.6" + strings.Repeat("\x00", 11), true, ErrGarbage, "6.0.6"},
	{"half a version", "6.0", false, ErrGarbage, `"6.0", and closed`},
	{"half a version, and waits", "6.0", true, ErrTimeout, `"6.0"`},
	{"too old", "5.33" + strings.Repeat("\x00", 12), true, ErrVersion, `"5.33"`},
	{"a page of -1", goodHello + "\xff\xff\xff\xff", true, ErrProtocol, "-1"},
	{"a page of 2 GiB", goodHello + "\x7f\xff\xff\xff", true, ErrProtocol, "2147483647"},
	{"a cache line of 0", goodHello + "\x00\x00\x10\x00\x00\x00\x00\x00", true, ErrProtocol, "0 bytes"},
	{"a letter for an MTU", goodHello + "\x00\x00\x10\x00\x00\x00\x00@M\x00", true, ErrGarbage, `"M\x00"`},
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
	{"a zero GID", goodSetup + with(gidAt, "00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:00:"), true, ErrNoGID, "-x"},
	{"a multicast GID", goodSetup + with(gidAt, "ff:02:"), true, ErrProtocol, "multicast"},
	{"QPN 0", goodSetup + with(10, "000000"), true, ErrProtocol, "QPN"},
	{"QPN of multicast", goodSetup + with(10, "ffffff"), true, ErrProtocol, "QPN"},
}

// Whatever speaks on the port, our server's user hears what came, in bounded time.
func TestHostileClients(t *testing.T) {
	for _, c := range hostile {
		t.Run(c.name, func(t *testing.T) {
			l := stranger(t, c.says, c.hang)
			check(t, serveOnce(t.Context(), l), c.want, c.text)
		})
	}
}

// Neither does a stranger in the server's place make our client wait without end.
func TestHostileServers(t *testing.T) {
	for _, c := range hostile {
		t.Run(c.name, func(t *testing.T) {
			l := stranger(t, c.says, c.hang)
			err := talkAsClient(t.Context(), l, Test{}, 1, make([]Key, 2), make([]Key, 2), &Report{})
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

// stranger makes a stream whose other end says something, whatever it hears.
func stranger(t *testing.T, says string, hang bool) *Link {
	t.Helper()
	a, b := net.Pipe()
	t.Cleanup(func() { a.Close(); b.Close() })
	go func() {
		_, _ = io.WriteString(b, says)
		if !hang {
			b.Close()
		}
	}()
	l := NewLink(deaf{a})
	l.timeout = shortTime
	return l
}

// deaf is a stream whose other end hears nothing, also after it has closed.
type deaf struct{ net.Conn }

func (deaf) Write(b []byte) (int, error) { return len(b), nil }

func serveOnce(ctx context.Context, l *Link) error {
	s, err := Answer(ctx, l)
	if err != nil {
		return err
	}
	if _, err := s.Agree(ctx, 4096); err != nil {
		return err
	}
	return s.Serve(ctx, &anyHost{})
}

// anyHost makes queue pairs as they come.
type anyHost struct {
	n     int
	fails error
}

func (h *anyHost) QueuePair(context.Context, Key) (Key, error) {
	h.n++
	return Key{QPN: roce.QPN(h.n), GID: roce.GID{15: 1}}, h.fails
}
func (h *anyHost) Meet() error     { return nil }
func (h *anyHost) Sync() error     { return nil }
func (h *anyHost) Report() Report  { return Report{} }
func (h *anyHost) Reported(Report) {}

// What comes after a good start: the run's end, or nonsense in its place.
func TestHostileMiddle(t *testing.T) {
	start := goodSetup + goodKey + goodKey
	for _, c := range []struct {
		name, says string
		want       error
		text       string
	}{
		{"closes in a run, as interrupted tests do", start, nil, ""},
		{"done", start + done, nil, ""},
		{"not quite done", start + "dome\x00", ErrGarbage, "dom"},
		{"half of done", start + "do", ErrProtocol, `"do"`},
		{"a word of ours", start + "thanks", ErrGarbage, "thanks"},
		{"half a report", start + strings.Repeat("\x00", 20), ErrProtocol, ""},
		{"a report", start + strings.Repeat("\x00", 40), nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := serveOnce(t.Context(), stranger(t, c.says, false))
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

// A client that brings queue pairs without end gets MaxQPs of them.
func TestTooManyQueuePairs(t *testing.T) {
	says := []byte(goodSetup)
	k, err := parseKey([]byte(goodKey))
	if err != nil {
		t.Fatal(err)
	}
	for i := range MaxQPs + 1 {
		k.QPN = roce.QPN(i + 1)
		says = append(says, k.text()...)
	}
	check(t, serveOnce(t.Context(), stranger(t, string(says), true)), ErrProtocol, "256")
}

// The host's own trouble ends the exchange and is its error.
func TestHostFails(t *testing.T) {
	l := stranger(t, goodSetup+goodKey, true)
	s, err := Answer(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Agree(t.Context(), 1024); err != nil {
		t.Fatal(err)
	}
	sad := errors.New("no more queue pairs")
	if err := s.Serve(t.Context(), &anyHost{fails: sad}); !errors.Is(err, sad) {
		t.Errorf("got %v", err)
	}
}

// Ctrl-C ends a wait at once, with its own cause; the next wait on the same stream is not cut short.
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
	if err := l.Gone(ctx); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
	go io.WriteString(b, goodHello)
	if _, _, err := l.receive(t.Context(), kindHello, time.Second); err != nil {
		t.Errorf("after a cancelled wait: %v", err)
	}
	go b.Close()
	if err := l.Gone(t.Context()); !errors.Is(err, ErrGone) {
		t.Errorf("got %v", err)
	}
}

// Two gorxe ends know each other, and nothing else takes them for one.
func TestGorxeKnowsGorxe(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	served := make(chan error, 1)
	go func() {
		s, err := Answer(t.Context(), NewLink(b))
		if err == nil && !s.Peer.Gorxe {
			err = errors.New("not known")
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

// Any key goes through its text unharmed, and any text is either refused or stays what it is.
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

// A whole exchange of arbitrary bytes ends, and never panics.
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
