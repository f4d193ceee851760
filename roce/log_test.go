package roce

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/syncbuf"
	"github.com/gorxe/gorxe/loopback"
)

// logText collects a log. It is safe for concurrent use.
type logText struct{ syncbuf.Buffer }

func (l *logText) option() Option {
	return WithLogger(slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug})))
}

// expect waits until a line contains all parts.
func (l *logText) expect(t *testing.T, parts ...string) {
	t.Helper()
	end := time.Now().Add(deadline)
	for {
		for line := range strings.Lines(l.String()) {
			missing := false
			for _, p := range parts {
				missing = missing || !strings.Contains(line, p)
			}
			if !missing {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("no line with %q in the log:\n%s", parts, l.String())
		}
		time.Sleep(time.Millisecond)
	}
}

// The log tells when devices and connections begin and end, and why.
func TestLogOfConnections(t *testing.T) {
	leakCheck(t)
	var text logText
	s := serve(t, ServeConfig{MaxConns: 1}, func(ctx context.Context, c *Conn) error {
		<-ctx.Done()
		return errors.New("handler's error")
	}, text.option())
	ctx := within(t)
	text.expect(t, `msg="device opened"`, "addresses=", "10.77.0.2", "mtu=")
	c, err := s.dial(ctx, t)
	must(t, err)
	text.expect(t, `msg="connection established"`, "remote="+s.addr.String(),
		"selective_repeat=true")
	text.expect(t, `msg="connection established"`, "local="+s.addr.String())
	if _, err := s.dial(ctx, t); !errors.Is(err, ErrRefused) {
		t.Errorf("Dial() = %v, want ErrRefused", err)
	}
	text.expect(t, `msg="request rejected"`, "reason=", "resources")
	text.expect(t, `msg="connection rejected by the peer"`, "by=dial", "remote="+s.addr.String())
	must(t, c.Close())
	text.expect(t, "level=INFO", `msg="connection ended"`, "remote="+s.addr.String(), "closed")
	text.expect(t, "level=INFO", `msg="connection ended"`, "local="+s.addr.String(),
		"disconnected by the peer")
	text.expect(t, "level=WARN", `msg="handler failed"`, "handler's error")
	must(t, s.server.Close())
	if !strings.Contains(text.String(), `msg="device closed"`) {
		t.Error("Close() returns before the log says that the device is closed")
	}
}

// brokenPeer returns a connection from a whose peer's device no longer answers.
func brokenPeer(t *testing.T, o ConnectOptions, opts ...Option) *Conn {
	t.Helper()
	k := newConnPair(t, rigConfig{opts: opts})
	c, _ := k.meetWith(t, o)
	k.cut(t)
	t.Cleanup(func() { // Close waits for answers
		for i := range 2 {
			must(t, k.link.SetPlan(i, 1-i, loopback.Plan{}))
		}
	})
	return c
}

// The error of a connection, the context, the event and the log carry the cause of its end.
func TestCauseOfConnectionEnd(t *testing.T) {
	var text logText
	c := brokenPeer(t, ConnectOptions{KeepAlive: -1, Timeout: 8, Retries: 1}, text.option())
	ctx, cancel := c.Context(context.Background())
	defer cancel()
	must(t, c.QP().PostSend(SendWR{ID: 5, Op: OpSend, Flags: Signaled}))
	wait(t, ctx)
	for _, err := range []error{c.Err(), context.Cause(ctx)} {
		if !errors.Is(err, ErrConnLost) || !errors.Is(err, RetryExcErr) ||
			errors.Is(err, RemAccessErr) || errors.Is(err, ErrKeepAlive) {
			t.Errorf("Err() = %v, want ErrConnLost and RetryExcErr", err)
		}
	}
	text.expect(t, "level=WARN", `msg="connection ended"`, RetryExcErr.String())
	var wcs [1]WC
	if n, err := c.QP().SendCQ().Wait(within(t), wcs[:]); n != 1 || err != nil {
		t.Fatalf("Wait() = %d, %v", n, err)
	}
	err := wcs[0].Err()
	if !errors.Is(err, RetryExcErr) || !strings.Contains(err.Error(), "work request 5") {
		t.Errorf("WC.Err() = %v, want RetryExcErr of work request 5", err)
	}

	c = brokenPeer(t, shortKeepAlive, text.option())
	ctx, cancel = c.Context(context.Background())
	defer cancel()
	wait(t, ctx)
	if err := c.Err(); !errors.Is(err, ErrKeepAlive) || !errors.Is(err, RetryExcErr) ||
		!errors.Is(err, ErrConnLost) || strings.Contains(err.Error(), "\n") {
		t.Errorf("Err() = %q, want a line with ErrKeepAlive, ErrConnLost and RetryExcErr", err)
	}
	text.expect(t, `msg="connection ended"`, "keepalives")
	e := nextEvent(t, c.QP().device(), EventQPFatal)
	if e.Conn != c || !errors.Is(e.Err, RetryExcErr) {
		t.Errorf("event %v, want the connection and RetryExcErr", e)
	}
	for _, part := range []string{"QP_FATAL of QP 0x", c.RemoteAddr().String(),
		RetryExcErr.String()} {
		if !strings.Contains(e.String(), part) {
			t.Errorf("String() = %q, want it to contain %q", e, part)
		}
	}
	text.expect(t, "event=QP_FATAL", "remote="+c.RemoteAddr().String())
}

func wait(t *testing.T, ctx context.Context) {
	t.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(deadline):
		t.Fatal("the context is not canceled")
	}
}

// A derived context ends with its parent, with the connection, or when it is canceled.
func TestConnContext(t *testing.T) {
	k := newConnPair(t, rigConfig{})
	c, _ := k.meet(t)
	parent, stop := context.WithCancel(context.Background())
	first, cancel := c.Context(parent)
	cancel()
	wait(t, first)
	second, cancel := c.Context(parent)
	defer cancel()
	stop()
	wait(t, second)
	c.mu.Lock()
	left := len(c.hooks)
	c.mu.Unlock()
	if second.Err() != context.Canceled || left > 1 {
		t.Errorf("Err() = %v, %d contexts are left", second.Err(), left)
	}
	must(t, c.Close())
	late, cancel := c.Context(context.Background())
	defer cancel()
	wait(t, late)
	if err := context.Cause(late); !errors.Is(err, ErrClosed) {
		t.Errorf("Cause() = %v, want ErrClosed", err)
	}
}

// Failures outside of the data path reach Events and the log: a CQ that overruns, an SRQ that runs
// low, an address that is removed, and an interface that disappears.
func TestFailuresAreReported(t *testing.T) {
	var text logText
	link := newLink(t, loopback.Config{})
	a, peer := newEnd(t, newDevice(t, link, 0, text.option()), rigConfig{}), newDevice(t, link, 1)
	b := newEnd(t, peer, rigConfig{})
	check := func(kind EventKind, parts ...string) Event {
		t.Helper()
		e := nextEvent(t, a.Device, kind)
		for _, p := range append(parts, string(kind)) {
			if !strings.Contains(e.String(), p) {
				t.Errorf("String() = %q, want it to contain %q", e, p)
			}
		}
		text.expect(t, append(parts, "event="+string(kind))...)
		return e
	}

	small, err := a.CreateCQ(1)
	must(t, err)
	srq, err := a.CreateSRQ(a.pd, SRQConfig{Depth: 4})
	must(t, err)
	q, err := a.CreateQP(a.pd, QPConfig{SendCQ: small, RecvCQ: a.cq, SRQ: srq})
	must(t, err)
	connect(t, q, b.qp)
	must(t, srq.PostRecv(RecvWR{}, RecvWR{}))
	must(t, srq.SetLimit(2))
	must(t, b.qp.PostSend(SendWR{Op: OpSend}))
	if e := check(EventSRQLimit, "SRQ with 1 receives"); e.SRQ != srq || e.Err != nil {
		t.Errorf("event %+v, want the SRQ", e)
	}
	must(t, b.qp.PostRecv(RecvWR{}, RecvWR{}, RecvWR{}))
	send := SendWR{Op: OpSend, Flags: Signaled}
	must(t, q.PostSend(send, send, send))
	if e := check(EventCQErr, "CQ of 1 completions", "overrun"); e.CQ != small ||
		!errors.Is(e.Err, ErrCQOverrun) {
		t.Errorf("event %+v, want the CQ and ErrCQOverrun", e)
	}
	if e := check(EventQPFatal, fmt.Sprintf("QP %#x", uint32(q.QPN()))); e.QP != q {
		t.Errorf("event %+v, want the QP", e)
	}

	addrs := link.Port(0).Addrs()
	link.Port(0).SetAddrs(addrs[0], netip.MustParsePrefix("192.0.2.9/24"))
	check(EventGIDChange, "removed 10.77.0.1", "added 192.0.2.9")
	text.expect(t, "level=WARN", "removed 10.77.0.1")
	must(t, link.Port(0).SetMTU(1500))
	check(EventMTUChange, "1024, before 4096")
	must(t, link.Port(0).Close())
	if e := check(EventDeviceFatal, ErrGone.Error()); !errors.Is(e.Err, ErrGone) {
		t.Errorf("event %+v, want ErrGone", e)
	}
}

// What one peer causes cannot flood the log, and the log says how much is missing.
func TestLogIsLimited(t *testing.T) {
	var text logText
	now := int64(1)
	g := newLogger(slog.New(slog.NewTextHandler(&text, nil)), func() int64 { return now })
	peer := netip.MustParseAddr("192.0.2.1")
	for i := range 10 * peerLineBurst {
		g.line(slog.LevelInfo, peer, fmt.Sprint("line ", i))
	}
	if n := strings.Count(text.String(), "\n"); n < peerLineBurst || n > peerLineBurst+1 {
		t.Errorf("%d lines, want %d", n, peerLineBurst)
	}
	now += int64(time.Hour)
	g.line(slog.LevelInfo, peer, "late")
	text.expect(t, "msg=late", "suppressed=")
	g.line(slog.LevelInfo, peer, "later")
	if n := strings.Count(text.String(), "suppressed="); n != 1 {
		t.Errorf("%d lines have the attribute suppressed, want 1", n)
	}
	g.line(slog.LevelDebug, peer, "not enabled")
	g.close()
	g.line(slog.LevelInfo, peer, "too late")
	if s := text.String(); strings.Contains(s, "not enabled") || strings.Contains(s, "too late") {
		t.Errorf("log: %s", s)
	}
}

// Every status and every kind of event has a text.
func TestStatusErrors(t *testing.T) {
	if (&WC{}).Err() != nil {
		t.Error("Err() of a successful completion is not nil")
	}
	for st := Success + 1; st <= GeneralErr; st++ {
		err := (&WC{Status: st, QPN: 17, ID: 3}).Err()
		var se *StatusError
		if !errors.Is(err, st) || errors.Is(err, Success) || !errors.As(err, &se) || se.Status != st {
			t.Errorf("Err() = %v, want %v", err, st)
		}
		if want := "roce: work request 3 of QP 0x11: " + st.String(); !strings.HasPrefix(err.Error(),
			want) {
			t.Errorf("Error() = %q, want %q", err, want)
		}
		if st < RemAbortErr && statusHints[st] == "" {
			t.Errorf("%v has no hint", st)
		}
	}
	for _, k := range eventKinds {
		if eventTexts[k] == "" && k != EventCQErr {
			t.Errorf("%v has no text", k)
		}
	}
}
