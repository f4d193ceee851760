package cm

import (
	"bytes"
	"errors"
	"testing"

	"github.com/gorxe/gorxe/bth"
)

func sidrPair(t *testing.T) (a, b *side) {
	a, b = pair(t)
	if _, err := b.m.Listen(ListenParams{Service: UDPService(port), Local: gidB}); err != nil {
		t.Fatal(err)
	}
	return a, b
}

func (e *side) resolve(to *side, s ServiceID) CommID {
	e.t.Helper()
	id, err := e.m.Resolve(0,
		&SIDRParams{Local: e.gid, Remote: to.gid, Service: s, SourcePort: 5,
			PrivateData: []byte("who?")})
	e.must(err)
	return id
}

func TestSIDR(t *testing.T) {
	a, b := sidrPair(t)
	ia := a.resolve(b, UDPService(port))
	req := a.sends(AttrSIDRREQ)
	b.hears(0, a, req...)
	e := b.event(EventSIDRRequest)
	if !bytes.HasPrefix(e.PrivateData, []byte("who?\x00")) || len(e.PrivateData) != 180 ||
		e.Request.Source.String() != "10.77.0.1:5" ||
		e.Request.Destination.String() != "10.77.0.2:7174" || e.Request.Addr.Remote != gidA {
		t.Errorf("event %+v", e)
	}
	b.hears(0, a, req...) // the user has not answered yet
	b.quiet()
	b.must(b.m.ReplySIDR(0, e.ID,
		&SIDRReply{QPN: 0x333, QKey: 0x1234567, PrivateData: []byte("me")}))
	b.event(EventClosed)
	rep := b.sends(AttrSIDRREP)
	b.hears(1, a, req...) // the reply is lost, and the request is retransmitted
	if again := b.sends(AttrSIDRREP); again[0] != rep[0] {
		t.Error("another reply for the duplicate")
	}
	b.quiet()
	a.hears(1, b, rep...)
	r := a.event(EventSIDRResponse)
	if r.ID != ia || r.Reply.Status != SIDRSuccess || r.Reply.QPN != 0x333 ||
		r.Reply.QKey != 0x1234567 || !bytes.HasPrefix(r.PrivateData, []byte("me\x00")) {
		t.Errorf("event %+v, reply %+v", r, *r.Reply)
	}
	a.event(EventClosed)
	a.hears(1, b, rep...) // too late
	a.quiet()
	a.empty()
	b.until(1, b.idle)
	b.empty()
}

func TestSIDRUnanswered(t *testing.T) {
	a, b := sidrPair(t)
	a.resolve(b, UDPService(port))
	retransmitted(t, a, 0, Time(bth.AckTimeout(DefaultResponseTimeout)), AttrSIDRREQ, 0)
	_, mads := a.until(0, a.idle)
	if len(mads) != 16 {
		t.Errorf("%d requests", len(mads))
	}
	a.event(EventUnreachable)
	a.event(EventClosed)
	a.empty()

	b.hears(0, a, mads[0])
	b.event(EventSIDRRequest)
	now, _ := b.until(0, b.idle)
	if now != sidrPending {
		t.Errorf("withdrawn at %d", now)
	}
	b.event(EventUnreachable)
	b.event(EventClosed)
	b.empty()
}

func TestSIDRRefused(t *testing.T) {
	a, b := sidrPair(t)
	for s, want := range map[ServiceID]SIDRStatus{
		UDPService(port + 1): SIDRUnsupportedService,
		TCPService(port):     SIDRUnsupportedService, // there is a listener, but for connections
	} {
		a.resolve(b, s)
		b.hears(0, a, a.sends(AttrSIDRREQ)...)
		a.hears(0, b, b.sends(AttrSIDRREP)...)
		if e := a.event(EventSIDRResponse); e.Reply.Status != want {
			t.Errorf("%v: %v", s, e.Reply.Status)
		}
		a.event(EventClosed)
	}
	a.resolve(b, UDPService(port))
	b.hears(0, a, a.sends(AttrSIDRREQ)...)
	id := b.event(EventSIDRRequest).ID
	for _, bad := range []*SIDRReply{{}, {QPN: 5, Info: make([]byte, 73)}} {
		if err := b.m.ReplySIDR(0, id, bad); !errors.Is(err, ErrParams) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if err := b.m.ReplySIDR(0, id,
		&SIDRReply{QPN: 5, PrivateData: make([]byte, 137)}); !errors.Is(err, ErrPrivateData) {
		t.Error(err)
	}
	b.must(b.m.Abort(0, id))
	b.event(EventClosed)
	a.hears(0, b, b.sends(AttrSIDRREP)...)
	if e := a.event(EventSIDRResponse); e.Reply.Status != SIDRRejected {
		t.Errorf("%v", e.Reply.Status)
	}
	// A connection request to a datagram service is refused, too.
	p := a.params(b)
	p.Service = UDPService(port)
	_, err := a.m.Connect(0, p)
	a.must(err)
	b.hears(0, a, a.sends(AttrREQ)...)
	if got := trace(b.drain(), nil); got != "REJ8" {
		t.Errorf("answered by %q", got)
	}
}
