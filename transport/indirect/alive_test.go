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

// A program that gets no processor time does not count as dead: its NIC still acknowledges.
// Transfers with it finish when it runs again, even after ten minutes.
func TestResponderPaused(t *testing.T) {
	v := newVirtual(t, Config{})
	a, b := v.a, v.b
	want := fill(a.mr.Bytes()[:size], 1)
	if err := a.conn.Post(&Transfer{Kind: Write, MR: a.mr, Len: size}); err != nil {
		t.Fatal(err)
	}
	if _, ok := v.goOn(a, Sent, time.Second); !ok {
		t.Fatal("not sent")
	}
	b.still = true
	if ev, ok := v.goOn(a, Done, 10*time.Minute); ok || a.conn.Err() != nil {
		t.Fatalf("%+v, %v", ev, a.conn.Err())
	}
	b.still = false
	if ev, ok := v.goOn(a, Done, time.Minute); !ok || ev.Status != StatusOK || b.conn.Err() != nil {
		t.Fatalf("%+v, %v", ev, b.conn.Err())
	}
	if !bytes.Equal(b.mr.Bytes()[:size], want) {
		t.Error("data differs")
	}
}

// A dead host is detected although only a release is outstanding, which RC does not know about.
func TestResponderDies(t *testing.T) {
	v := newVirtual(t, Config{})
	a := v.a
	if err := a.conn.Post(&Transfer{Kind: Write, MR: a.mr, Len: size}); err != nil {
		t.Fatal(err)
	}
	if _, ok := v.goOn(a, Sent, time.Second); !ok {
		t.Fatal("not sent")
	}
	v.link.SetFilter(0, 1, func([]byte) loopback.Action { return loopback.Drop })
	began := v.link.Now()
	ev, ok := v.goOn(a, Down, time.Minute)
	if took := time.Duration(v.link.Now() - began); !ok || !errors.Is(ev.Err, ErrLost) ||
		took < silence || took > silence*9/8+10*time.Second {
		t.Errorf("%+v after %v", ev, took)
	} else {
		t.Logf("found out after %v", took)
	}
}

const silence = time.Duration(core.DefaultSilence)

// An idle connection to a dead host ends on both sides. A connection to a live host continues.
func TestIdleHostDies(t *testing.T) {
	v := newVirtual(t, Config{})
	a, b := v.a, v.b
	if ev, ok := v.goOn(a, Down, time.Hour); ok {
		t.Fatalf("%+v", ev)
	}
	v.link.SetFilter(0, 1, func([]byte) loopback.Action { return loopback.Drop })
	for _, e := range []*end{b, a} {
		if ev, ok := v.goOn(e, Down, 3*silence+time.Minute); !ok || !errors.Is(ev.Err, ErrLost) {
			t.Errorf("%+v, %v", ev, ok)
		}
	}
	if _, err := b.Prepare(); err != nil {
		t.Error(err)
	}
}

// Connections come and go in a program that reads no events. The transfers of the last one still
// complete.
func TestUnreadEvents(t *testing.T) {
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c := Config{MaxConns: 1, Entries: 1, Slots: 1, IndirectBuffer: DefaultMaxTransfer}
	a, b := newEnd(t, newDevice(t, link, 0, roce.WithProgress(roce.Manual)), c), newEnd(t,
		newDevice(t, link, 1, roce.WithProgress(roce.Manual)), c)
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
		for end := time.Now().Add(30 * time.Second); b.conn.Counters().Delivered != uint64(k+1) ||
			a.busyNow() > 0; {
			if a.Progress(); time.Now().After(end) {
				t.Fatalf("transfer %d did not end: %+v", k, b.conn.Counters())
			}
			b.Progress()
		}
		var evs [eventsEach]Event
		for n := 0; n < eventsEach; { // only transfer events: these must be read
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

// A connection that ends during its setup leaves nothing behind.
func TestEndsDuringSetup(t *testing.T) {
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

// A connection ends for its waiters and for the memory of its transfers even if no datagram can be
// sent.
func TestEndsWithFullQueue(t *testing.T) {
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
