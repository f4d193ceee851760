package roce

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce/cm"
)

// meetWith is meet with connection options on both sides.
func (k connPair) meetWith(t *testing.T, o ConnectOptions) (a, b *Conn) {
	t.Helper()
	l := k.listen(t)
	ctx := within(t)
	accepted := make(chan *Conn, 1)
	go func() {
		defer close(accepted)
		r, err := l.Accept(ctx)
		if err == nil {
			var c *Conn
			if c, err = r.Accept(ctx, k.b.qp, AcceptOptions{ConnectOptions: o}); err == nil {
				accepted <- c
			}
		}
		if err != nil {
			t.Errorf("accept: %v", err)
		}
	}()
	a, err := k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{ConnectOptions: o})
	if err != nil {
		t.Fatal(err)
	}
	if b = <-accepted; b == nil {
		t.FailNow()
	}
	must(t, l.Close())
	return a, b
}

// cut makes the link lose all packets.
func (k connPair) cut(t *testing.T) {
	t.Helper()
	for i := range 2 {
		must(t, k.link.SetPlan(i, 1-i, loopback.Plan{Loss: 1}))
	}
}

var shortKeepAlive = ConnectOptions{KeepAlive: 20 * time.Millisecond, Timeout: 14}

// An idle connection notices that its peer is dead: both sides end with the status of exhausted
// retries, without completions in the user's CQ.
func TestKeepAliveFindsDeadPeer(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		pair := func(o ConnectOptions) (k connPair, a, b *Conn) {
			k = newConnPair(t, rigConfig{opts: []Option{WithProgress(p)}})
			a, b = k.meetWith(t, o)
			if p == Manual {
				k.drive(t)
			}
			return k, a, b
		}
		k, a, b := pair(ConnectOptions{KeepAlive: 20 * time.Millisecond})
		eventually(t, "answered keepalives", func() bool { // of one side: its peer hears them
			return k.a.Counters().KeepAlivesSent+k.b.Counters().KeepAlivesSent > 5
		})
		if a.Err() != nil || b.Err() != nil {
			t.Fatalf("connections to live peers ended: %v, %v", a.Err(), b.Err())
		}
		k, a, b = pair(shortKeepAlive)
		k.cut(t)
		for _, c := range []*Conn{a, b} {
			ends(t, c, ErrConnLost)
			var st *StatusError
			if !errors.As(c.Err(), &st) || st.Status != RetryExcErr {
				t.Errorf("Err() = %v, want a StatusError with RetryExcErr", c.Err())
			}
		}
		if n := k.a.cq.Len() + k.b.cq.Len(); n != 0 {
			t.Errorf("%d completions of keepalives", n)
		}
	})
}

// A negative KeepAlive turns the checks off, and QP.Connect has none by default.
func TestKeepAliveOff(t *testing.T) {
	off := newConnPair(t, rigConfig{})
	a, _ := off.meetWith(t, ConnectOptions{KeepAlive: -1})
	never := newConnPair(t, rigConfig{})
	must(t, never.a.qp.Connect(within(t), never.b.qp.Local(),
		ConnectOptions{KeepAlive: time.Second, Timeout: -1}))
	connected, _ := newRig(t, rigConfig{})
	uc := newConnPair(t, rigConfig{typ: UC})
	uc.meetWith(t, ConnectOptions{})
	for name, d := range map[string]*Device{"negative": a.qp.device(), "no timeout": never.a.Device,
		"Connect": connected.Device, "UC": uc.a.Device} {
		if n := d.watched(); n != 0 {
			t.Errorf("%s: %d QPs are watched, want 0", name, n)
		}
	}
	on := newConnPair(t, rigConfig{})
	b, _ := on.meetWith(t, ConnectOptions{})
	if on.a.watched() != 1 || on.b.watched() != 1 {
		t.Errorf("by default %d and %d QPs are watched, want 1 each", on.a.watched(),
			on.b.watched())
	}
	must(t, b.Close())
	eventually(t, "end of the checks", func() bool {
		return on.a.watched()+on.b.watched() == 0
	})
}

// watched returns the number of QPs with keepalives.
func (d *Device) watched() (n int) {
	_ = d.do(func(qp.Time) { n = len(d.gsi.alive.of) })
	return n
}

// QP.Connect has keepalives if they are asked for. Their failure is an event.
func TestKeepAliveOfConnect(t *testing.T) {
	link := newLink(t, loopback.Config{})
	k := connPair{link: link}
	var e [2]*end
	for i := range e {
		e[i] = newEnd(t, newDevice(t, link, i), rigConfig{})
	}
	for i := range e {
		must(t, e[i].qp.Connect(within(t), e[1-i].qp.Local(), shortKeepAlive))
	}
	k.cut(t)
	for ev := range e[0].Events() {
		if ev.Kind == EventQPFatal {
			if ev.QP != e[0].qp || ev.QP.State() != StateErr {
				t.Errorf("event for %v in %v", ev.QP, ev.QP.State())
			}
			break
		}
	}
}

// Many forged requests that name a live connection's QP as their own do not end it. If the peer is
// dead, they do.
func TestForgedStaleRequest(t *testing.T) {
	pair := func(timeout int) (connPair, *rawPeer, *Conn, *Conn) {
		k := newConnPair(t, rigConfig{link: loopback.Config{Ports: 3}})
		a, b := k.meetWith(t, ConnectOptions{KeepAlive: -1, Timeout: timeout})
		return k, &rawPeer{port: k.link.Port(2), to: k.link.Port(1)}, a, b
	}
	k, s, a, b := pair(0)
	forge := func(i int) {
		r := cm.REQ{
			LocalID: cm.CommID(i + 1000), Service: cm.TCPService(testPort),
			GUID: guidOf(k.a.Info().MAC), QPN: k.a.qp.QPN(), PKey: bth.DefaultPKey,
			MTU: MTU(1024).Enum(), RemoteTimeout: 14, LocalTimeout: 14,
		}
		h := cm.IPCMHeader{Src: netip.AddrPortFrom(a.LocalAddr().Addr(), 9),
			Dst: a.RemoteAddr().Addr()}
		h.Encode((*[cm.IPCMHeaderLen]byte)(r.Private[:]))
		var m cm.MAD
		r.Encode(&m, uint64(i+1))
		s.send(t, a.LocalAddr().Addr(), m[:])
	}
	for i := range 100 {
		forge(i)
	}
	eventually(t, "100 stale requests", func() bool { return k.b.Counters().CM.Stale == 100 })
	if n := k.b.Counters().KeepAlivesSent; n == 0 || n > 3 {
		t.Errorf("%d keepalives, want one per second", n)
	}
	if a.Err() != nil || b.Err() != nil {
		t.Fatalf("a forged request ended the connection: %v, %v", a.Err(), b.Err())
	}
	k, s, a, b = pair(14)
	k.cut(t)
	for i := 100; !isDone(b) && i < 1000; i++ { // one request per second counts
		forge(i)
		time.Sleep(10 * time.Millisecond)
	}
	ends(t, b, ErrConnLost)
}

// TestKeepAliveEndsAtReset: a change to RESET ends the keepalives. The next connection of the QP
// has its own option.
func TestKeepAliveEndsAtReset(t *testing.T) {
	a, b := newRig(t, rigConfig{})
	reset := func() {
		for _, e := range []*end{a, b} {
			must(t, e.qp.Modify(&Attr{State: StateReset}, AttrState))
		}
	}
	reset()
	ctx := within(t)
	must(t, b.qp.Connect(ctx, a.qp.Local(), ConnectOptions{}))
	must(t, a.qp.Connect(ctx, b.qp.Local(), shortKeepAlive))
	eventually(t, "keepalives", func() bool { return a.Counters().KeepAlivesSent > 0 })
	reset()
	connect(t, a.qp, b.qp)
	must(t, a.do(func(qp.Time) {
		if n := a.gsi.alive.due.Len() + len(a.gsi.alive.of); n != 0 {
			t.Errorf("%d keepalives are scheduled after the reset, want none", n)
		}
	}))
}

// TestDialTimeoutNever: a request cannot ask for no timeout, so Dial takes the longest.
func TestDialTimeoutNever(t *testing.T) {
	k := newConnPair(t, rigConfig{})
	k.meetWith(t, ConnectOptions{Timeout: -1})
	for _, e := range []*end{k.a, k.b} {
		attr, err := e.qp.Query()
		must(t, err)
		if attr.Timeout != MaxAckTimeout {
			t.Errorf("Timeout = %d, want %d", attr.Timeout, MaxAckTimeout)
		}
	}
}
