package cm

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// stranger sends requests from its own address.
type stranger struct {
	gid bth.GID
	n   uint32
}

func host(n uint32) *stranger {
	return &stranger{gid: bth.GIDFromIPv4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})}
}

func (s *stranger) addr() Addr {
	return Addr{GIDPair: bth.GIDPair{Local: gidB, Remote: s.gid}, QPN: 1, PKey: bth.DefaultPKey}
}

// request returns a new REQ with each call.
func (s *stranger) request() (m MAD) {
	s.n++
	p := ConnectParams{Local: s.gid, Remote: gidB, Service: TCPService(port), QPN: bth.QPN(s.n + 1),
		MTU: 1024}
	p.defaults()
	r := p.request()
	r.LocalID, r.GUID = CommID(s.n), GUID(s.gid[15])
	r.Encode(&m, uint64(s.n))
	return m
}

func (s *stranger) knocks(b *side, now Time, times int) {
	b.t.Helper()
	for range times {
		m := s.request()
		if err := b.m.HandleMAD(now, s.addr(), m[:]); err != nil {
			b.t.Fatal(err)
		}
	}
}

func listening(t *testing.T, backlog int, change ...func(*Config)) *side {
	b := newSide(t, gidB, guidB, 2, change...)
	if _, err := b.m.Listen(ListenParams{Service: TCPService(port), Backlog: backlog}); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestFloodFromOneAddress: one address uses at most half of the backlog, and others are served.
func TestFloodFromOneAddress(t *testing.T) {
	b := listening(t, 64)
	host(1).knocks(b, 0, 1000)
	if s := b.m.Sizes(); s.Pending != 32 || s.HalfOpen != 32 || s.Conns != 32 {
		t.Errorf("%+v", s)
	}
	if b.m.c.DropSource != 968 {
		t.Errorf("%d dropped", b.m.c.DropSource)
	}
	for i := range uint32(8) {
		before := b.m.Sizes().Pending
		host(100+i).knocks(b, 0, 1)
		if b.m.Sizes().Pending != before+1 {
			t.Errorf("request of address %d is dropped", i)
		}
	}
	b.sends() // drops are silent
}

// TestFloodFromSeveralAddresses: n addresses leave 1/(n+1) of the slots free.
func TestFloodFromSeveralAddresses(t *testing.T) {
	b := listening(t, 100)
	for i := range uint32(4) {
		host(i+1).knocks(b, 0, 1000)
	}
	host(9).knocks(b, 0, 1)
	if s := b.m.Sizes(); s.Pending >= 100 || s.Sources != 5 {
		t.Errorf("%+v", s)
	}
}

// TestFloodFromManyAddresses: the backlog is the limit, and answered requests free slots.
func TestFloodFromManyAddresses(t *testing.T) {
	b := listening(t, 50)
	for i := range uint32(1000) {
		host(i+1).knocks(b, 0, 1)
	}
	if s := b.m.Sizes(); s.Pending != 50 || b.m.c.DropBacklog != 950 {
		t.Errorf("%+v, %d dropped", s, b.m.c.DropBacklog)
	}
	b.must(b.m.Reject(0, b.event(EventConnectRequest).ID, ReasonConsumer, nil, nil))
	b.event(EventConnectRequest) // the second of the 50
	host(2000).knocks(b, 0, 1)
	if s := b.m.Sizes(); s.Pending != 50 {
		t.Errorf("%+v", s)
	}
	// When their senders have given up, all requests are removed.
	b.until(0, b.idle)
	b.event(EventClosed)
	b.event(EventUnreachable)
	b.event(EventClosed)
	b.quiet()
	b.empty()
}

// TestHalfOpenFlood: many addresses get connections accepted and do not proceed. The oldest ones
// are evicted.
func TestHalfOpenFlood(t *testing.T) {
	const slots = 64
	b := listening(t, 0, func(c *Config) { c.MaxHalfOpen = slots })
	now := Time(0)
	for i := range uint32(10 * slots) {
		now += answerGrace / 32
		host(i+1).knocks(b, now, 1)
		if s := b.m.Sizes(); s.HalfOpen > slots || s.Conns > slots+maxLinger {
			t.Fatalf("%+v", s)
		}
		for ev, ok := b.m.PollEvent(); ok; ev, ok = b.m.PollEvent() {
			if ev.Kind == EventConnectRequest {
				b.must(b.m.Accept(now, ev.ID, &AcceptParams{QPN: 5}))
			}
		}
	}
	if b.m.c.EvictedHalfOpen != 9*slots || b.m.c.DropHalfOpen != 0 {
		t.Errorf("%d evicted, %d dropped", b.m.c.EvictedHalfOpen, b.m.c.DropHalfOpen)
	}
	// Within the grace period new requests are dropped, so that accepted ones have time for a round
	// trip.
	for i := range uint32(10 * slots) {
		host(i+100000).knocks(b, now, 1)
	}
	if b.m.c.DropHalfOpen == 0 || b.m.Sizes().HalfOpen > slots {
		t.Errorf("%d dropped, %+v", b.m.c.DropHalfOpen, b.m.Sizes())
	}
	b.drain()
	b.until(now, b.idle)
	for _, ok := b.m.PollEvent(); ok; _, ok = b.m.PollEvent() {
	}
	b.empty()
}

// TestRefusalsAreBounded: the number of refusals that are kept is limited.
func TestRefusalsAreBounded(t *testing.T) {
	b := listening(t, 0)
	for i := range uint32(maxLinger + 100) {
		host(i+1).knocks(b, 0, 1)
		b.must(b.m.Reject(0, b.event(EventConnectRequest).ID, ReasonConsumer, nil, nil))
		b.event(EventClosed)
	}
	if s := b.m.Sizes(); s.Linger != maxLinger || b.m.c.EvictedLinger != 100 {
		t.Errorf("%+v, %d evicted", s, b.m.c.EvictedLinger)
	}
	b.drain()
	b.until(0, b.idle)
	b.empty()
}

func TestMaxConns(t *testing.T) {
	a := newSide(t, gidA, guidA, 1, func(c *Config) { c.MaxConns = 2 })
	b := listening(t, 0, func(c *Config) { c.MaxConns = 1 })
	a.connect(0, b)
	a.connect(0, b)
	if _, err := a.m.Connect(0, a.params(b)); !errors.Is(err, ErrTooMany) {
		t.Errorf("a third connection: %v", err)
	}
	host(1).knocks(b, 0, 1)
	id := b.event(EventConnectRequest).ID
	b.must(b.m.Accept(0, id, &AcceptParams{QPN: 5}))
	b.m.CommEstablished(0, id)
	b.event(EventEstablished)
	host(2).knocks(b, 0, 1)
	b.quiet()
	if b.m.c.DropFull != 1 {
		t.Errorf("%d dropped", b.m.c.DropFull)
	}
	// A connection in TIME-WAIT is evicted.
	b.must(b.m.Disconnect(0, id, nil))
	for range 16 {
		next, _ := b.m.NextTimeout()
		b.m.HandleTimeout(next)
	}
	b.inState(id, StateTimeWait)
	host(2).knocks(b, 0, 1)
	b.event(EventDisconnected)
	b.event(EventClosed)
	b.event(EventConnectRequest)
	if b.m.c.EvictedTimeWait != 1 {
		t.Errorf("%d evicted", b.m.c.EvictedTimeWait)
	}
}

// TestReleasesAreEvicted: peers that do not answer DREQs, and chose a timeout of nine minutes, do
// not block new connections.
func TestReleasesAreEvicted(t *testing.T) {
	const conns = 4
	b := listening(t, 0, func(c *Config) { c.MaxConns = conns })
	for i := range uint32(conns) {
		host(i+1).knocks(b, 0, 1)
		id := b.event(EventConnectRequest).ID
		b.must(b.m.Accept(0, id, &AcceptParams{QPN: 5}))
		b.m.CommEstablished(0, id)
		b.event(EventEstablished)
		b.must(b.m.Disconnect(0, id, nil))
	}
	oldest := b.seen[0].ID
	host(100).knocks(b, answerGrace-1, 1) // too early to evict
	b.quiet()
	host(100).knocks(b, answerGrace, 1)
	for _, k := range []EventKind{EventDisconnected, EventClosed, EventConnectRequest} {
		if e := b.event(k); (e.ID == oldest) != (k != EventConnectRequest) {
			t.Errorf("%v of %v, the oldest is %v", k, e.ID, oldest)
		}
	}
	if c := &b.m.c; c.DropFull != 1 || c.EvictedRelease != 1 {
		t.Errorf("%d dropped, %d evicted", c.DropFull, c.EvictedRelease)
	}
	b.drain()
	b.until(answerGrace, b.idle)
	for ok := true; ok; _, ok = b.m.PollEvent() {
	}
	b.empty()
}

func TestAnswersAreBounded(t *testing.T) {
	b := newSide(t, gidB, guidB, 1) // no listener
	host(1).knocks(b, 0, 3*answerRing)
	if n := len(b.drain()); n != answerRing || b.m.c.DropAnswer != 2*answerRing {
		t.Errorf("%d answers, %d dropped", n, b.m.c.DropAnswer)
	}
	b.empty()
}

// TestAnswersAndConnectionsAlternate: many answers do not delay the messages of connections.
func TestAnswersAndConnectionsAlternate(t *testing.T) {
	a := newSide(t, gidB, guidB, 1)
	host(1).knocks(a, 0, answerRing)
	for range 10 {
		a.connect(0, newSide(t, gidA, guidA, 3))
	}
	reqs := 0
	for _, m := range a.drain()[:20] {
		if m.Attribute() == AttrREQ {
			reqs++
		}
	}
	if reqs != 10 {
		t.Errorf("%d of the first 20 are REQs", reqs)
	}
}

// TestPeerTimesAreBounded: times in a peer's REQ cause neither rapid nor endless retransmissions.
func TestPeerTimesAreBounded(t *testing.T) {
	for _, c := range []struct {
		exponent uint8
		want     Time
	}{{0, exponentTime(minPeerExponent)}, {31, exponentTime(maxPeerExponent)}} {
		a, b := pair(t)
		p := a.params(b)
		p.ResponseTimeout, p.AckTimeout = 1, 1
		_, err := a.m.Connect(0, p)
		a.must(err)
		var r REQ
		req := a.sends(AttrREQ)
		r.Decode(&req[0])
		r.LocalTimeout, r.RemoteTimeout, r.Primary.AckTimeout = c.exponent, c.exponent, c.exponent
		r.Encode(&req[0], 1)
		b.hears(0, a, req...)
		if next, _ := b.m.NextTimeout(); next != min(16*c.want, maxPending) {
			t.Errorf("%d: request waits until %d", c.exponent, next)
		}
		id := b.event(EventConnectRequest).ID
		b.must(b.m.Accept(0, id, &AcceptParams{QPN: 7}))
		if next, _ := b.m.NextTimeout(); next != c.want {
			t.Errorf("%d: REP retransmitted at %d", c.exponent, next)
		}
		b.hears(0, a, func() (m MAD) {
			d := DREQ{LocalID: r.LocalID, RemoteID: id, RemoteQPN: 7}
			d.Encode(&m, 1)
			return m
		}())
		b.must(b.m.Disconnect(0, id, nil))
		if next, _ := b.m.NextTimeout(); next != c.want {
			t.Errorf("%d: TIME-WAIT until %d", c.exponent, next)
		}
	}
}

func TestListeners(t *testing.T) {
	b := newSide(t, gidB, guidB, 1)
	all, err := b.m.Listen(ListenParams{Service: TCPService(port)})
	b.must(err)
	one, err := b.m.Listen(ListenParams{Service: TCPService(port), Local: gidB})
	b.must(err)
	if _, err := b.m.Listen(ListenParams{Service: TCPService(port)}); !errors.Is(err,
		ErrListening) {
		t.Error(err)
	}
	for _, n := range []int{-1, maxBacklog + 1} {
		if _, err := b.m.Listen(ListenParams{Service: 1, Backlog: n}); !errors.Is(err, ErrParams) {
			t.Errorf("backlog %d: %v", n, err)
		}
	}
	// A listener on the address of the request has precedence over one on all addresses.
	s := host(1)
	s.knocks(b, 0, 1)
	if e := b.event(EventConnectRequest); e.Listener != one {
		t.Errorf("listener %d, want %d", e.Listener, one)
	}
	s.knocks(b, 0, 2)
	b.must(b.m.Unlisten(0, one))
	if got := trace(b.drain(), nil); got != "REJ8 REJ8" {
		t.Errorf("unseen requests get %q", got)
	}
	b.quiet()
	s.knocks(b, 0, 1)
	if e := b.event(EventConnectRequest); e.Listener != all {
		t.Errorf("listener %d, want %d", e.Listener, all)
	}
	if err := b.m.Unlisten(0, one); !errors.Is(err, ErrNoListener) {
		t.Error(err)
	}
	b.must(b.m.Unlisten(0, all))
	s.knocks(b, 0, 1)
	if got := trace(b.drain(), nil); got != "REJ8" {
		t.Errorf("no listener: %q", got)
	}
}

// Listeners on all addresses of a family are different ones.
func TestListenFamilies(t *testing.T) {
	b := newSide(t, gidB, guidB, 1)
	six, err := b.m.Listen(ListenParams{Service: TCPService(port), Family: IPv6})
	b.must(err)
	s := host(1) // has an IPv4 address
	s.knocks(b, 0, 1)
	if got := trace(b.drain(), nil); got != "REJ8" {
		t.Errorf("only a listener on IPv6: %q", got)
	}
	both, err := b.m.Listen(ListenParams{Service: TCPService(port)})
	b.must(err)
	four, err := b.m.Listen(ListenParams{Service: TCPService(port), Family: IPv4})
	b.must(err)
	for _, want := range []ListenerID{four, both} {
		s.knocks(b, 0, 1)
		if e := b.event(EventConnectRequest); e.Listener != want {
			t.Errorf("listener %d, want %d of %d, %d and %d", e.Listener, want, six, both, four)
		}
		b.must(b.m.Unlisten(0, want))
	}
	if _, err := b.m.Listen(ListenParams{Service: 1, Family: IPv6 + 1}); !errors.Is(err,
		ErrParams) {
		t.Error(err)
	}
}

func TestRefusedRequests(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(r *REQ)
		does  string
	}{
		"RD":                 {func(r *REQ) { r.Transport = 2 }, "REJ9"},
		"XRC":                {func(r *REQ) { r.Transport, r.ExtendedTransport = 3, 1 }, "REJ9"},
		"path MTU 0":         {func(r *REQ) { r.MTU = 0 }, "REJ26"},
		"path MTU 6":         {func(r *REQ) { r.MTU = 6 }, "REJ26"},
		"unknown service":    {func(r *REQ) { r.Service++ }, "REJ8"},
		"rdma_cm version 1":  {func(r *REQ) { r.Private[0] = 0x10 }, "REJ5"},
		"IP version 5":       {func(r *REQ) { r.Private[1] = 0x50 }, "REJ5"},
		"communication ID 0": {func(r *REQ) { r.LocalID = 0 }, ""},
		"QP1 as data QP":     {func(r *REQ) { r.QPN = 1 }, ""},
		"multicast QP":       {func(r *REQ) { r.QPN = bth.QPNMulticast }, ""},
		"valid":              {func(r *REQ) {}, "connect request"},
	} {
		b := listening(t, 0)
		m := host(1).request()
		var r REQ
		r.Decode(&m)
		c.spoil(&r)
		r.Encode(&m, 1)
		if err := b.m.HandleMAD(0, host(1).addr(), m[:]); err != nil {
			t.Fatal(err)
		}
		mads := b.drain()
		var events []Event
		for ev, ok := b.m.PollEvent(); ok; ev, ok = b.m.PollEvent() {
			events = append(events, ev)
		}
		if got := trace(mads, events); got != c.does {
			t.Errorf("%s: %q, want %q", name, got, c.does)
		}
	}
}

func TestConfig(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1)).Uint64
	for i, c := range []Config{{}, {GUID: 1}, {Rand: r}, {GUID: 1, Rand: r, AckDelay: 32},
		{GUID: 1, Rand: r, MaxConns: -1},
		{GUID: 1, Rand: r, MaxConns: maxMaxConns + 1},
		{GUID: 1, Rand: r, MaxConns: 5, MaxHalfOpen: 6}} {
		if _, err := New(c); !errors.Is(err, ErrConfig) {
			t.Errorf("config %d: %v", i, err)
		}
	}
	// A broken random source causes an error, not an endless loop.
	m, err := New(Config{GUID: 1, Rand: func() uint64 { return 0 }})
	if err != nil {
		t.Fatal(err)
	}
	a := newSide(t, gidA, guidA, 1)
	if _, err := m.Connect(0, a.params(newSide(t, gidB, guidB, 1))); !errors.Is(err, ErrTooMany) {
		t.Error(err)
	}
}

func TestBadMADsAreCounted(t *testing.T) {
	b := listening(t, 0)
	good := host(1).request()
	for _, c := range []struct {
		spoil func(m *MAD, a *Addr) int
		count *uint64
		want  error
	}{
		{func(m *MAD, a *Addr) int { return 100 }, &b.m.c.BadLength, ErrMADLength},
		{func(m *MAD, a *Addr) int { m[0] = 9; return MADLen }, &b.m.c.BadHeader, ErrMADVersion},
		{func(m *MAD, a *Addr) int { m[1] = 9; return MADLen }, &b.m.c.BadClass, ErrClass},
		{func(m *MAD, a *Addr) int { m[17] = 9; return MADLen }, &b.m.c.BadAttribute, ErrAttribute},
		{func(m *MAD, a *Addr) int { a.Remote = bth.GID{}; return MADLen }, &b.m.c.BadSource,
			ErrSource},
		{func(m *MAD, a *Addr) int { a.Remote = bth.GID{0: 0xff}; return MADLen }, &b.m.c.BadSource,
			ErrSource},
		{func(m *MAD, a *Addr) int { a.QPN = 0; return MADLen }, &b.m.c.BadSource, ErrSource},
	} {
		m, from, before := good, host(1).addr(), *c.count
		n := c.spoil(&m, &from)
		if err := b.m.HandleMAD(0, from, m[:n]); !errors.Is(err, c.want) || *c.count != before+1 {
			t.Errorf("%v, want %v; counted %d", err, c.want, *c.count-before)
		}
	}
	b.quiet()
	b.sends()
	b.empty()
}

// TestDroppingDoesNotAllocate floods a CM in several ways.
func TestDroppingDoesNotAllocate(t *testing.T) {
	full, s := listening(t, 1), host(1)
	s.knocks(full, 0, 1) // fills the backlog
	est, tw := reach(t, StateEstablished), reach(t, StateTimeWait)
	fromA := Addr{GIDPair: bth.GIDPair{Local: gidB, Remote: gidA}, QPN: 1, PKey: bth.DefaultPKey}

	req, rep, dreq, lost := s.request(), est.message(AttrREP, 0), tw.message(AttrDREQ,
		0), est.message(AttrDREQ, 0)
	unknown := req
	unknown[MADHeaderLen+8] = 1 // another service
	lost[MADHeaderLen+4] ^= 1   // another communication ID
	var out MAD
	for name, f := range map[string]func(){
		"garbage":                 func() { _ = full.m.HandleMAD(0, s.addr(), out[:17]) },
		"a connection's old REPs": func() { _ = est.m.HandleMAD(0, fromA, rep[:]) },
		"REQs to a full backlog": func() {
			req[MADHeaderLen+3]++ // another communication ID each
			_ = full.m.HandleMAD(0, s.addr(), req[:])
		},
		"DREQs in TIME-WAIT": func() {
			_ = tw.m.HandleMAD(0, fromA, dreq[:])
			tw.m.PollTransmit(0, out[:])
		},
		"DREQs without connection": func() {
			_ = est.m.HandleMAD(0, fromA, lost[:])
			est.m.PollTransmit(0, out[:])
		},
		"REQs without listener": func() {
			_ = full.m.HandleMAD(0, s.addr(), unknown[:])
			full.m.PollTransmit(0, out[:])
		},
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %.1f allocations each", name, n)
		}
	}
	if full.m.c.DropSource+full.m.c.DropBacklog < 100 || full.m.c.Sent[AttrREJ.Index()] < 100 ||
		est.m.c.Sent[AttrDREP.Index()] < 100 ||
		tw.m.c.Sent[AttrDREP.Index()] < 100 || est.m.c.Late[AttrREP.Index()] < 100 {
		t.Error("the messages were not dropped as intended")
	}
}
