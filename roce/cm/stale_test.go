package cm

import "testing"

// reboot returns the same host with a new CM.
func reboot(e *side) *side { return newSide(e.t, e.gid, e.m.guid, 77) }

func TestStaleConnection(t *testing.T) {
	a, b := pair(t)
	_, ib := establish(0, a, b)
	a = reboot(a)
	a.connect(1, b) // with a QP that b takes for connected
	b.hears(1, a, a.sends(AttrREQ)...)

	// IBA 12.9.8.3.1: the new request is refused, and the user ends the old connection.
	if e := b.event(EventSuspect); e.ID != ib {
		t.Errorf("event %+v", e)
	}
	b.inState(ib, StateEstablished)
	b.must(b.m.Disconnect(1, ib, nil))
	var rej, dreq MAD
	for _, m := range b.drain() {
		switch m.Attribute() {
		case AttrREJ:
			rej = m
		case AttrDREQ:
			dreq = m
		default:
			t.Errorf("sends %v", m.Attribute())
		}
	}
	a.hears(1, b, rej)
	if e := a.event(EventRejected); e.Reason != ReasonStaleConnection || e.Local {
		t.Errorf("event %+v", e)
	}
	// a's QP may receive packets of the old connection, so it goes to TIME-WAIT first.
	a.quiet()
	if s := a.m.Sizes(); s.TimeWait != 1 {
		t.Errorf("%+v", s)
	}
	a.hears(1, b, dreq)
	b.hears(1, a, a.sends(AttrDREP)...)
	b.event(EventDisconnected)
	b.inState(ib, StateTimeWait)

	// The next attempt succeeds, even while the old connection is in TIME-WAIT.
	a.connect(2, b)
	b.hears(2, a, a.sends(AttrREQ)...)
	b.event(EventConnectRequest)
	if b.m.c.Stale != 1 {
		t.Errorf("%d stale", b.m.c.Stale)
	}
}

func TestStaleInEveryState(t *testing.T) {
	for s, want := range map[State]struct {
		next State
		does string // MADs, including the REJ for the new request, then events
	}{
		StateREQRcvd:     {StateREQRcvd, "REJ10"},
		StateMRAREQSent:  {StateMRAREQSent, "REJ10"},
		StateREPSent:     {StateREPSent, "REJ10"},
		StateMRAREPRcvd:  {StateMRAREPRcvd, "REJ10"},
		StateEstablished: {StateEstablished, "REJ10 suspect"},
		StateDREQSent:    {StateDREQSent, "REJ10"},
		StateDREQRcvd:    {StateDREQRcvd, "REJ10"},
	} {
		u := reach(t, s)
		u.listen2()
		u.peerID, u.tid = u.peerID+1, 4711
		u.hears(u.now, u.peer, u.message(AttrREQ, 0))
		var events []Event
		mads := u.drain()
		for ev, ok := u.m.PollEvent(); ok; ev, ok = u.m.PollEvent() {
			events = append(events, ev)
		}
		if got := trace(mads, events); got != want.does || u.m.State(u.id) != want.next {
			t.Errorf("%v: %v and %q, want %v and %q", s, u.m.State(u.id), got, want.next, want.does)
		}
	}
	// In TIME-WAIT, and after a REJ, another request may use the peer's QP.
	for _, s := range []State{StateTimeWait, StateRefused} {
		u := reach(t, s)
		u.peerID, u.tid = u.peerID+1, 4711
		u.hears(u.now, u.peer, u.message(AttrREQ, 0))
		u.event(EventConnectRequest)
	}
}

// listen2 makes both sides of a pair listen.
func (u *subject) listen2() {
	if len(u.m.listeners) == 0 {
		u.listen()
	}
}

// TestSameIDOtherTransaction: the peer has restarted and chosen the same communication ID.
func TestSameIDOtherTransaction(t *testing.T) {
	u := reach(t, StateEstablished)
	u.tid++
	u.hears(u.now, u.peer, u.message(AttrREQ, 0))
	u.event(EventSuspect)
	u.sends(AttrREJ)
	u.inState(u.id, StateEstablished)

	u = reach(t, StateRefused)
	u.tid++
	u.hears(u.now, u.peer, u.message(AttrREQ, 0))
	u.event(EventConnectRequest) // the refused request is over, this is another one
}

func TestStaleOnTheActiveSide(t *testing.T) {
	a, b := pair(t)
	ia, _ := establish(0, a, b)
	b = reboot(b)
	b.listen()
	p := a.params(b)
	p.QPN++
	id, err := a.m.Connect(1, p)
	a.must(err)
	b.hears(1, a, a.sends(AttrREQ)...)
	b.must(b.m.Accept(1, b.event(EventConnectRequest).ID, &acceptance))
	a.hears(1, b, b.sends(AttrREP)...)
	first, second := a.event(EventSuspect), a.event(EventRejected)
	if first.ID != ia {
		t.Errorf("event %+v", first)
	}
	a.inState(ia, StateEstablished)
	if second.ID != id || second.Reason != ReasonStaleConnection || !second.Local {
		t.Errorf("event %+v", second)
	}
	for _, m := range a.drain() {
		b.hears(1, a, m)
	}
	if e := b.event(EventRejected); e.Reason != ReasonStaleConnection {
		t.Errorf("event %+v", e)
	}
}

// TestForgedStaleREQ: requests that name an established connection's QP neither end it nor cause
// more than one event per second.
func TestForgedStaleREQ(t *testing.T) {
	a, b := pair(t)
	_, ib := establish(0, a, b)
	forger := newSide(t, gidA, guidA, 99) // uses a's address, GUID and QPN
	events := 0
	for i := range 3000 {
		now := Time(i) * second / 1000
		forger.connect(now, b)
		b.hears(now, a, forger.drain()...)
		b.sends(AttrREJ)
		for e, ok := b.m.PollEvent(); ok; e, ok = b.m.PollEvent() {
			if e.Kind != EventSuspect || e.ID != ib {
				t.Fatalf("event %+v", e)
			}
			events++
		}
	}
	b.inState(ib, StateEstablished)
	if events != 3 || b.m.c.Stale != 3000 {
		t.Errorf("%d events in 3 s for %d requests, want 3", events, b.m.c.Stale)
	}
}

// TestForeignGUID: a REQ with the GUID and QPN of another host ends no connection.
func TestForeignGUID(t *testing.T) {
	a, b := pair(t)
	_, ib := establish(0, a, b)
	c := newSide(t, gidC, guidA, 9)
	c.connect(1, b)
	b.hears(1, c, c.sends(AttrREQ)...)
	b.inState(ib, StateEstablished)
	b.event(EventConnectRequest)
}

// TestBothSidesInOneCM connects a CM to itself.
func TestBothSidesInOneCM(t *testing.T) {
	a := newSide(t, gidA, guidA, 1)
	a.listen()
	ia, ib := establish(0, a, a)
	if ia == ib {
		t.Fatalf("both sides have communication ID %v", ia)
	}
	a.must(a.m.Disconnect(0, ia, nil))
	a.hears(0, a, a.sends(AttrDREQ)...)
	a.event(EventDisconnected)
	a.must(a.m.Disconnect(0, ib, nil))
	a.hears(0, a, a.sends(AttrDREP)...)
	a.event(EventDisconnected)
	a.until(0, a.idle)
	a.event(EventClosed)
	a.event(EventClosed)
	a.empty()
}
