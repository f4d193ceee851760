package indirect

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/indirect/core"
)

// virtualEnds are two ends in virtual time, with the shapes of real life.
func virtualEnds(t *testing.T, c Config) (link *loopback.Link, a, b *end) {
	t.Helper()
	link, err := loopback.NewLink(loopback.Config{Virtual: true, Seed: 1, Plan: loopback.Plan{Delay: 5 * time.Microsecond}})
	if err != nil {
		t.Fatal(err)
	}
	c.Clock = link.Now
	a, b = manualPairAt(t, link, c, func() []roce.Option { return []roce.Option{roce.WithClock(link.Now)} })
	return link, a, b
}

// goOn lets time pass until an end has this kind of news, and returns it; none: until so much has passed.
func goOn(t *testing.T, link *loopback.Link, a, b *end, kind EventKind, limit time.Duration) (ev Event, ok bool) {
	t.Helper()
	var evs [1]Event
	for until := link.Now() + int64(limit); link.Now() < until; {
		for a.Poll(evs[:]) > 0 {
			if evs[0].Kind == kind {
				return evs[0], true
			}
		}
		advance(t, link, a, b)
	}
	return ev, false
}

// A program that gets no processor time is not dead: its NIC acknowledges, on real packets as well. What was begun with it is finished as
// soon as it runs again, be that after ten minutes.
func TestResponderStandsStill(t *testing.T) {
	link, a, b := virtualEnds(t, Config{})
	want := fill(a.mr.Bytes()[:size], 1)
	if err := a.conn.Post(&Transfer{Kind: Write, MR: a.mr, Len: size}); err != nil {
		t.Fatal(err)
	}
	if _, ok := goOn(t, link, a, b, Sent, time.Second); !ok {
		t.Fatal("not sent")
	}
	b.still = true
	if ev, ok := goOn(t, link, a, b, Done, 10*time.Minute); ok || a.conn.Err() != nil {
		t.Fatalf("%+v, %v", ev, a.conn.Err())
	}
	b.still = false
	if ev, ok := goOn(t, link, a, b, Done, time.Minute); !ok || ev.Status != StatusOK || b.conn.Err() != nil {
		t.Fatalf("%+v, %v", ev, b.conn.Err())
	}
	if !bytes.Equal(b.mr.Bytes()[:size], want) {
		t.Error("data differs")
	}
}

// A host that is gone is found out, though nothing but a release is under way, which RC knows nothing of.
func TestResponderIsGone(t *testing.T) {
	link, a, b := virtualEnds(t, Config{})
	if err := a.conn.Post(&Transfer{Kind: Write, MR: a.mr, Len: size}); err != nil {
		t.Fatal(err)
	}
	if _, ok := goOn(t, link, a, b, Sent, time.Second); !ok {
		t.Fatal("not sent")
	}
	link.SetFilter(0, 1, func([]byte) loopback.Action { return loopback.Drop })
	began := link.Now()
	ev, ok := goOn(t, link, a, b, Down, time.Minute)
	if took := time.Duration(link.Now() - began); !ok || !errors.Is(ev.Err, ErrLost) || took < silence || took > silence*9/8+10*time.Second {
		t.Errorf("%+v after %v", ev, took)
	} else {
		t.Logf("found out after %v", took)
	}
}

const silence = time.Duration(core.DefaultSilence)

// An idle connection whose peer's host has died does not hold its place for ever, at neither end; one whose peer lives goes on.
func TestIdleHostIsGone(t *testing.T) {
	link, a, b := virtualEnds(t, Config{})
	if ev, ok := goOn(t, link, a, b, Down, time.Hour); ok {
		t.Fatalf("%+v", ev)
	}
	link.SetFilter(0, 1, func([]byte) loopback.Action { return loopback.Drop })
	for _, e := range []*end{b, a} {
		if ev, ok := goOn(t, link, e, map[*end]*end{a: b, b: a}[e], Down, 3*silence+time.Minute); !ok || !errors.Is(ev.Err, ErrLost) {
			t.Errorf("%+v, %v", ev, ok)
		}
	}
	if _, err := b.Prepare(); err != nil {
		t.Error(err)
	}
}

// Connections come and go at a program that reads no events: the transfers of the last one happen all the same.
func TestUnreadEvents(t *testing.T) {
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c := Config{MaxConns: 1, Entries: 1, Slots: 1, IndirectBuffer: DefaultMaxTransfer}
	a, b := newEnd(t, newDevice(t, link, 0, roce.WithProgress(roce.Manual)), c), newEnd(t, newDevice(t, link, 1, roce.WithProgress(roce.Manual)), c)
	for range 20 {
		joinEnds(t, a, b)
		if err := errors.Join(a.conn.Close(), b.conn.Close()); err != nil {
			t.Fatal(err)
		}
	}
	joinEnds(t, a, b)
	for k := range 5 {
		if err := a.conn.Post(&Transfer{Kind: Write, MR: a.mr, Len: size}); err != nil {
			t.Fatalf("transfer %d: %v", k, err)
		}
		for end := time.Now().Add(30 * time.Second); b.conn.Counters().Delivered != uint64(k+1) || a.busyNow() > 0; {
			if a.Progress(); time.Now().After(end) {
				t.Fatalf("transfer %d: no end: %+v", k, b.conn.Counters())
			}
			b.Progress()
		}
		var evs [eventsEach]Event
		for n := 0; n < eventsEach; { // of transfers alone: they have to be read
			if got := a.Poll(evs[:1]); got == 0 {
				t.Fatalf("%d events of transfer %d", n, k)
			} else if evs[0].Kind != Down {
				n++
			}
		}
	}
}

func (e *end) busyNow() int {
	e.Endpoint.mu.Lock()
	defer e.Endpoint.mu.Unlock()
	return e.busy
}

// A connection that ends while the connection manager still greets leaves nothing behind.
func TestEndsBeforeItIsHeld(t *testing.T) {
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		t.Fatal(err)
	}
	a, b := newEnd(t, newDevice(t, link, 0), Config{}), newEnd(t, newDevice(t, link, 1), Config{})
	l, err := b.Listen(netip.MustParseAddrPort("10.77.0.2:7002"))
	if err != nil {
		t.Fatal(err)
	}
	ctx := within(t)
	go func() { _, _ = l.Accept(ctx) }()
	conn, err := a.Dial(ctx, l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	ended, err := a.Prepare()
	if err != nil {
		t.Fatal(err)
	}
	if err := ended.Close(); err != nil {
		t.Fatal(err)
	}
	if err := ended.hold(conn.rc); !errors.Is(err, ErrClosed) {
		t.Errorf("%v; want ErrClosed", err)
	}
	if conn.rc.Err() == nil {
		t.Error("the connection manager's half lives on")
	}
}

// A connection ends for those who wait for it, and for the memory of its transfers, even when no datagram gets out any more.
func TestEndsWithoutRoom(t *testing.T) {
	a, b := newPair(t, loopback.Plan{}, Config{Timeout: 2 * time.Millisecond}, Config{})
	b.space.Hold(0, size)
	failed, ctx := make(chan error, 1), within(t)
	go func() { failed <- a.conn.Write(ctx, a.mr, 0, size, 0) }()
	until(t, "the data is parked", func() bool { return b.conn.Counters().ParkedBytes == size })
	a.Endpoint.mu.Lock()
	a.udOut += controlDepth
	a.Endpoint.mu.Unlock()
	if err := a.conn.Close(); err != nil {
		t.Error(err)
	}
	if err := <-failed; !errors.Is(err, ErrClosed) {
		t.Errorf("%v; want ErrClosed", err)
	}
	if n := a.busyNow(); n != 0 {
		t.Errorf("%d transfers are left", n)
	}
}
