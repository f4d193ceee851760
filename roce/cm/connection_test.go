package cm

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/gorxe/gorxe/bth"
)

func TestConnectAndDisconnect(t *testing.T) {
	a, b := pair(t)
	ia, ib := establish(1, a, b)
	req, resp := b.seen[0], a.seen[0]
	if r := req.Request; r.QPN != 0x111 || r.PSN != 0x123456 || r.MTU != 1024 ||
		r.ResponderResources != 4 || r.InitiatorDepth != 2 ||
		r.RetryCount != 7 || r.RNRRetry != 6 || r.AckTimeout != 14 || r.GUID != guidA ||
		r.Addr.Remote != gidA || r.Source.Port() != 999 {
		t.Errorf("request %+v", *r)
	}
	if !bytes.HasPrefix(req.PrivateData, []byte("hello\x00")) || len(req.PrivateData) != 56 {
		t.Errorf("private data %q", req.PrivateData)
	}
	if r := resp.Response; r.QPN != 0x222 || r.PSN != 0x654321 || r.ResponderResources != 2 ||
		r.InitiatorDepth != 4 || r.RNRRetry != 5 ||
		r.AckDelay != DefaultAckDelay || r.GUID != guidB {
		t.Errorf("response %+v", *r)
	}
	if !bytes.HasPrefix(resp.PrivateData, []byte("welcome\x00")) ||
		len(resp.PrivateData) != REPPrivateLen {
		t.Errorf("private data %q", resp.PrivateData)
	}

	a.must(a.m.Disconnect(2, ia, []byte("bye")))
	b.hears(2, a, a.sends(AttrDREQ)...)
	if e := b.event(EventDisconnected); !bytes.HasPrefix(e.PrivateData, []byte("bye\x00")) ||
		e.Reason != ReasonNone {
		t.Errorf("event %+v", e)
	}
	b.must(b.m.Disconnect(2, ib, []byte("goodbye")))
	a.hears(2, b, b.sends(AttrDREP)...)
	if e := a.event(EventDisconnected); !bytes.HasPrefix(e.PrivateData, []byte("goodbye\x00")) {
		t.Errorf("event %+v", e)
	}
	// TIME-WAIT lasts for the Local ACK Timeout, 4.096 us x 2^14, on both sides.
	for _, e := range []*side{a, b} {
		now, _ := e.until(2, e.idle)
		if want := 2 + Time(bth.AckTimeout(14)); now != want {
			t.Errorf("TIME-WAIT until %d, want %d", now, want)
		}
		e.event(EventClosed)
		e.quiet()
		e.empty()
	}
	if err := a.m.Disconnect(3, ia, nil); !errors.Is(err, ErrUnknownID) {
		t.Errorf("Disconnect after the side: %v", err)
	}
}

// retransmitted checks that a side retransmits its message the given number of times, in the given
// interval.
func retransmitted(t *testing.T, e *side, start Time, interval Time, a Attribute, times int) {
	t.Helper()
	for i := range times {
		next, ok := e.m.NextTimeout()
		if want := start + interval*Time(i+1); !ok || next != want {
			t.Fatalf("retransmission %d of %v at %d, want %d", i+1, a, next, want)
		}
		e.m.HandleTimeout(next)
		e.sends(a)
	}
}

func TestREQRetransmission(t *testing.T) {
	a, b := pair(t)
	p := a.params(b)
	p.ResponseTimeout, p.MaxRetries = 20, 5
	ia, err := a.m.Connect(100, p)
	a.must(err)
	first := a.sends(AttrREQ)[0]
	retransmitted(t, a, 100, Time(bth.AckTimeout(20)), AttrREQ, 5)
	a.quiet()
	// The peer has received the REQ, but its user has not polled the event. The REJ withdraws the
	// request; it names it by the GUID, because this side does not know the peer's communication
	// ID.
	b.hears(101, a, first)
	next, _ := a.m.NextTimeout()
	a.m.HandleTimeout(next)
	rej := a.sends(AttrREJ)
	var j REJ
	j.Decode(&rej[0])
	if j.LocalID != ia || j.RemoteID != 0 || j.Reason != ReasonTimeout ||
		j.Message != AnswersOther || j.InfoLen != 8 || j.guid() != guidA {
		t.Errorf("REJ %+v", j)
	}
	b.hears(next, a, rej...)
	b.quiet()
	b.empty()
	a.event(EventUnreachable)
	a.event(EventClosed)
	a.until(next, a.idle)
	a.empty()
	if a.m.c.GaveUp != 1 || a.m.c.Timeouts != 6 || a.m.c.Retransmitted[AttrREQ.Index()] != 5 {
		t.Errorf("counters %+v", a.m.c)
	}
}

func TestREPRetransmission(t *testing.T) {
	a, b := pair(t)
	p := a.params(b)
	p.ResponseTimeout, p.MaxRetries = 19, 3
	_, err := a.m.Connect(0, p)
	a.must(err)
	b.hears(50, a, a.sends(AttrREQ)...)
	ib := b.event(EventConnectRequest).ID
	b.must(b.m.Accept(60, ib, &acceptance))
	b.sends(AttrREP)
	// Only one: a has not shown that it receives anything.
	retransmitted(t, b, 60, Time(bth.AckTimeout(19)), AttrREP, 1)
	next, mads := b.until(60, func() bool { return b.m.Sizes().HalfOpen == 0 })
	mads = append(mads, b.drain()...)
	if got := trace(mads, nil); got != "REJ4" || next != 60+4*Time(bth.AckTimeout(19)) {
		t.Errorf("the end at %d causes %q, want REJ4 after four timeouts", next, got)
	}
	a.hears(next, b, mads...)
	b.event(EventUnreachable)
	b.event(EventClosed)
	if e := a.event(EventRejected); e.Reason != ReasonTimeout {
		t.Errorf("rejected with reason %v", e.Reason)
	}
	a.event(EventClosed)
	a.empty()
	b.until(next, b.idle)
	b.empty()
}

func TestLostRTU(t *testing.T) {
	t.Run("sent again for a retransmitted REP", func(t *testing.T) {
		a, b := pair(t)
		ia := a.connect(0, b)
		b.hears(0, a, a.sends(AttrREQ)...)
		ib := b.event(EventConnectRequest).ID
		b.must(b.m.Accept(0, ib, &acceptance))
		a.hears(0, b, b.sends(AttrREP)...)
		a.event(EventConnectResponse)
		a.must(a.m.Ready(0, ia, []byte("go")))
		rtu := a.sends(AttrRTU)
		next, _ := b.m.NextTimeout()
		b.m.HandleTimeout(next)
		a.hears(next, b, b.sends(AttrREP)...)
		again := a.sends(AttrRTU)
		if again[0] != rtu[0] {
			t.Error("the second RTU differs")
		}
		b.hears(next, a, again...)
		if e := b.event(EventEstablished); !bytes.HasPrefix(e.PrivateData, []byte("go\x00")) {
			t.Errorf("private data %q", e.PrivateData)
		}
		b.hears(next, a, again...) // once more: too late, no second event
		b.quiet()
	})
	t.Run("not needed after CommEstablished", func(t *testing.T) {
		u := reach(t, StateREPSent)
		u.m.CommEstablished(u.now, u.id)
		u.event(EventEstablished)
		u.m.CommEstablished(u.now, u.id)
		u.quiet()
		if !u.idle() {
			t.Error("the retransmission timer of the REP still runs")
		}
	})
	t.Run("sent before the DREQ that follows", func(t *testing.T) {
		a, b := pair(t)
		ia := a.connect(0, b)
		b.hears(0, a, a.sends(AttrREQ)...)
		b.must(b.m.Accept(0, b.event(EventConnectRequest).ID, &acceptance))
		a.hears(0, b, b.sends(AttrREP)...)
		a.event(EventConnectResponse)
		a.must(a.m.Ready(0, ia, nil))
		a.must(a.m.Disconnect(0, ia, nil))
		a.sends(AttrRTU, AttrDREQ)
	})
}

func TestMRADelaysAnswer(t *testing.T) {
	for _, s := range []State{StateREQSent, StateREPSent} {
		u := reach(t, s)
		about := map[State]Answered{StateREQSent: AnswersREQ, StateREPSent: AnswersREP}[s]
		// An MRA for another message is ignored.
		before, _ := u.m.NextTimeout()
		u.hears(u.now, u.peer, u.message(AttrMRA, 1-about))
		if next, _ := u.m.NextTimeout(); next != before {
			t.Errorf("%v: an MRA for another message moved the deadline", s)
		}
		for i := range maxMRA {
			u.now += 5
			u.hears(u.now, u.peer, u.message(AttrMRA, about))
			want := u.now + Time(bth.AckTimeout(20)) + exponentTime(DefaultResponseTimeout)
			if next, _ := u.m.NextTimeout(); next != want {
				t.Fatalf("%v: MRA %d moved the deadline to %d, want %d", s, i+1, next, want)
			}
		}
		before, _ = u.m.NextTimeout()
		u.hears(u.now+5, u.peer, u.message(AttrMRA, about))
		if next, _ := u.m.NextTimeout(); next != before {
			t.Errorf("%v: MRAs move the deadline without limit", s)
		}
		if u.m.c.Late[AttrMRA.Index()] != 2 {
			t.Errorf("%v: %d MRAs counted as late", s, u.m.c.Late[AttrMRA.Index()])
		}
	}
}

func TestSlowUserSendsMRA(t *testing.T) {
	a, b := pair(t)
	ia := a.connect(0, b)
	b.hears(0, a, a.sends(AttrREQ)...)
	ib := b.event(EventConnectRequest).ID
	now, _ := a.m.NextTimeout()
	a.m.HandleTimeout(now)
	b.hears(now, a, a.sends(AttrREQ)...)
	a.hears(now, b, b.sends(AttrMRA)...)
	a.inState(ia, StateMRAREQRcvd)
	b.must(b.m.Accept(now, ib, &acceptance))
	rep := b.sends(AttrREP)
	a.hears(now, b, rep...)
	a.event(EventConnectResponse)
	now, _ = b.m.NextTimeout()
	b.m.HandleTimeout(now)
	a.hears(now, b, b.sends(AttrREP)...)
	b.hears(now, a, a.sends(AttrMRA)...)
	b.inState(ib, StateMRAREPRcvd)
	a.must(a.m.Ready(now, ia, nil))
	b.hears(now, a, a.sends(AttrRTU)...)
	b.event(EventEstablished)
}

// TestNoMRAForNetworkDuplicate: the network may duplicate a REQ or REP. Its sender waits as long as
// it said, and must not be told to wait longer.
func TestNoMRAForNetworkDuplicate(t *testing.T) {
	a, b := pair(t)
	const soon = second / 10
	ia := a.connect(0, b)
	req := a.sends(AttrREQ)
	b.hears(0, a, req...)
	b.hears(soon, a, req...)
	b.sends()
	ib := b.event(EventConnectRequest).ID
	b.inState(ib, StateREQRcvd)
	b.must(b.m.Accept(soon, ib, &acceptance))
	rep := b.sends(AttrREP)
	a.hears(soon, b, rep...)
	a.hears(2*soon, b, rep...)
	a.sends()
	a.inState(ia, StateREPRcvd)
	if a.m.c.Duplicate[AttrREP.Index()] != 1 || b.m.c.Duplicate[AttrREQ.Index()] != 1 {
		t.Error("duplicates are not counted")
	}
	// The RTU is lost. b retransmits its REP after one interval, not after the 17 s of an MRA.
	a.must(a.m.Ready(2*soon, ia, nil))
	a.sends(AttrRTU)
	now, _ := b.m.NextTimeout()
	if now > soon+exponentTime(DefaultResponseTimeout) {
		t.Errorf("b retransmits the REP at %v", now)
	}
}

// TestUnansweredRequest: a request expires when its sender has given up, whether or not the user
// has polled it.
func TestUnansweredRequest(t *testing.T) {
	for _, seen := range []bool{false, true} {
		a, b := pair(t)
		p := a.params(b)
		p.ResponseTimeout, p.MaxRetries = 18, 2
		_, err := a.m.Connect(0, p)
		a.must(err)
		b.hears(0, a, a.sends(AttrREQ)...)
		if seen {
			b.event(EventConnectRequest)
		}
		now, _ := b.until(0, b.idle)
		if want := 3 * Time(bth.AckTimeout(18)); now != want {
			t.Errorf("request expired at %d, want %d", now, want)
		}
		if seen {
			b.event(EventUnreachable)
			b.event(EventClosed)
		}
		b.quiet()
		b.empty()
	}
}

func TestCrossedDREQs(t *testing.T) {
	a, b := pair(t)
	ia, ib := establish(0, a, b)
	a.must(a.m.Disconnect(0, ia, nil))
	b.must(b.m.Disconnect(0, ib, nil))
	da, db := a.sends(AttrDREQ), b.sends(AttrDREQ)
	a.hears(1, b, db...)
	b.hears(1, a, da...)
	a.event(EventDisconnected)
	b.event(EventDisconnected)
	pa, pb := a.sends(AttrDREP), b.sends(AttrDREP)
	a.hears(2, b, pb...)
	b.hears(2, a, pa...)
	for _, e := range []*side{a, b} {
		e.until(2, e.idle)
		e.event(EventClosed)
		e.quiet()
		e.empty()
	}
}

func TestLostRelease(t *testing.T) {
	t.Run("DREP lost", func(t *testing.T) {
		a, b := pair(t)
		ia, ib := establish(0, a, b)
		a.must(a.m.Disconnect(0, ia, nil))
		b.hears(0, a, a.sends(AttrDREQ)...)
		b.event(EventDisconnected)
		b.must(b.m.Disconnect(0, ib, nil))
		b.sends(AttrDREP)
		b.until(0, b.idle) // TIME-WAIT is over at b
		b.event(EventClosed)
		b.empty()
		now, _ := a.m.NextTimeout()
		a.m.HandleTimeout(now)
		b.hears(now, a, a.sends(AttrDREQ)...)
		a.hears(now, b, b.sends(AttrDREP)...)
		a.event(EventDisconnected)
	})
	t.Run("dead peer", func(t *testing.T) {
		a, b := pair(t)
		ia, _ := establish(0, a, b)
		a.must(a.m.Disconnect(0, ia, nil))
		now, mads := a.until(0, a.idle)
		if want := 16*exponentTime(DefaultResponseTimeout) + Time(bth.AckTimeout(14)); now != want {
			t.Errorf("connection ended at %d, want %d", now, want)
		}
		if len(mads) != 16 {
			t.Errorf("%d DREQs sent", len(mads))
		}
		a.event(EventDisconnected)
		a.event(EventClosed)
		a.empty()
	})
	t.Run("user does not answer", func(t *testing.T) {
		u := reach(t, StateEstablished)
		u.hears(0, u.peer, u.message(AttrDREQ, 0))
		u.event(EventDisconnected)
		u.until(0, func() bool { return u.m.State(u.id) == StateTimeWait })
		if u.m.c.Sent[AttrDREP.Index()] != 1 {
			t.Error("no DREP")
		}
		if err := u.m.Disconnect(0, u.id, nil); !errors.Is(err, ErrState) {
			t.Errorf("Disconnect after the DREP: %v", err)
		}
	})
	t.Run("DREQ for another QP", func(t *testing.T) {
		u := reach(t, StateEstablished)
		u.localQPN++
		u.hears(0, u.peer, u.message(AttrDREQ, 0))
		u.inState(u.id, StateEstablished)
		if u.m.c.Malformed != 1 {
			t.Error("the DREQ is not counted as malformed")
		}
	})
}

func TestRejectWithPrivateData(t *testing.T) {
	a, b := pair(t)
	ia := a.connect(0, b)
	req := a.sends(AttrREQ)
	b.hears(0, a, req...)
	ib := b.event(EventConnectRequest).ID
	b.must(b.m.Reject(0, ib, ReasonConsumer, []byte{1, 2}, []byte("refused")))
	b.event(EventClosed)
	rej := b.sends(AttrREJ)
	// The REJ is lost. The retransmitted REQ is answered by the same REJ, without an event.
	b.hears(1, a, req...)
	if again := b.sends(AttrREJ); again[0] != rej[0] {
		t.Error("the second REJ differs")
	}
	b.quiet()
	a.hears(0, b, rej...)
	e := a.event(EventRejected)
	if e.ID != ia || e.Reason != ReasonConsumer ||
		!bytes.HasPrefix(e.PrivateData, []byte("refused\x00")) ||
		!slices.Equal(e.Info, []byte{1, 2}) || e.Local {
		t.Errorf("event %+v", e)
	}
	a.event(EventClosed)
	a.empty()
	if err := b.m.Accept(1, ib, &acceptance); !errors.Is(err, ErrUnknownID) {
		t.Errorf("Accept after Reject: %v", err)
	}
	b.until(1, b.idle)
	b.empty()

	// The active side may also refuse the response.
	u := reach(t, StateREPRcvd)
	u.must(u.m.Reject(u.now, u.id, ReasonConsumer, nil, nil))
	u.peer.hears(u.now, u.side, u.sends(AttrREJ)...)
	u.peer.event(EventRejected)
}

// TestAbort aborts connections in each state: the peer gets the right message, EventClosed is the
// only event, and nothing is left over.
func TestAbort(t *testing.T) {
	for s, want := range map[State]string{StateREQSent: "REJ4", StateMRAREQRcvd: "REJ4",
		StateREPRcvd: "REJ28", StateMRAREPSent: "REJ28",
		StateREQRcvd: "REJ28", StateMRAREQSent: "REJ28", StateREPSent: "REJ4",
		StateMRAREPRcvd: "REJ4", StateEstablished: "DREQ",
		StateDREQSent: "", StateDREQRcvd: "DREP", StateTimeWait: ""} {
		u := reach(t, s)
		u.must(u.m.Abort(u.now, u.id))
		if got := trace(u.drain(), nil); got != want {
			t.Errorf("%v: sends %q, want %q", s, got, want)
		}
		u.until(u.now, u.idle)
		u.event(EventClosed)
		u.quiet()
		u.empty()
		if err := u.m.Abort(u.now, u.id); !errors.Is(err, ErrUnknownID) {
			t.Errorf("%v, second Abort: %v", s, err)
		}
	}
}

// TestOnlyPeerIsAccepted: messages from another address or with a wrong communication ID are
// dropped.
func TestOnlyPeerIsAccepted(t *testing.T) {
	for _, a := range []Attribute{AttrDREQ, AttrREJ, AttrRTU} {
		for _, s := range []State{StateREPSent, StateEstablished} {
			u := reach(t, s)
			u.hears(u.now, newSide(t, gidC, 0xc, 3), u.message(a, AnswersREP))
			u.inState(u.id, s)
			u.peerID++
			u.hears(u.now, u.peer, u.message(a, AnswersREP))
			u.inState(u.id, s)
			u.quiet()
			if u.m.c.WrongPeer != 2 {
				t.Errorf("%v in %v: %d counted", a, s, u.m.c.WrongPeer)
			}
		}
	}
}
