package cm

import (
	"fmt"
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// subject is the connection under test in TestStateTables.
type subject struct {
	*side
	peer     *side
	id       CommID // of the connection
	peerID   CommID
	tid      uint64 // transaction of the setup
	localQPN bth.QPN
	now      Time
}

// reach brings a connection into a state in the shortest way.
func reach(t *testing.T, s State) *subject {
	a, b := pair(t)
	u := &subject{now: 1000, localQPN: 0x222}
	u.side, u.peer = b, a
	active := func() { u.side, u.peer, u.localQPN = a, b, 0x111 }
	finish := func(err error) *subject {
		u.must(err)
		u.drain()
		for _, e := range []*side{a, b} {
			for _, ok := e.m.PollEvent(); ok; _, ok = e.m.PollEvent() {
			}
		}
		u.inState(u.id, s)
		return u
	}
	u.peerID = a.connect(u.now, b)
	req := a.sends(AttrREQ)
	u.tid = req[0].TID()
	switch s {
	case StateREQSent, StateMRAREQRcvd:
		active()
		u.id, u.peerID = u.peerID, 0x7777
		if s == StateMRAREQRcvd {
			u.hears(u.now, b, u.message(AttrMRA, AnswersREQ))
		}
		return finish(nil)
	}
	b.hears(u.now, a, req...)
	u.id = b.event(EventConnectRequest).ID
	switch s {
	case StateREQRcvd:
		return finish(nil)
	case StateMRAREQSent:
		return finish(b.m.SendMRA(u.now, u.id, 20))
	case StateRefused:
		return finish(b.m.Reject(u.now, u.id, ReasonConsumer, nil, nil))
	}
	b.must(b.m.Accept(u.now, u.id, &acceptance))
	rep := b.sends(AttrREP)
	switch s {
	case StateREPSent:
		return finish(nil)
	case StateMRAREPRcvd:
		b.hears(u.now, a, u.message(AttrMRA, AnswersREP))
		return finish(nil)
	}
	a.hears(u.now, b, rep...)
	a.event(EventConnectResponse)
	switch s {
	case StateREPRcvd, StateMRAREPSent:
		active()
		u.id, u.peerID = u.peerID, u.id
		if s == StateMRAREPSent {
			return finish(a.m.SendMRA(u.now, u.id, 20))
		}
		return finish(nil)
	}
	a.must(a.m.Ready(u.now, u.peerID, nil))
	b.hears(u.now, a, a.sends(AttrRTU)...)
	switch s {
	case StateDREQSent:
		return finish(b.m.Disconnect(u.now, u.id, nil))
	case StateDREQRcvd, StateTimeWait:
		b.hears(u.now, a, u.message(AttrDREQ, 0))
		if s == StateTimeWait {
			return finish(b.m.Disconnect(u.now, u.id, nil))
		}
	}
	return finish(nil)
}

// message returns a message as the peer would send it to this connection.
func (u *subject) message(a Attribute, about Answered) (m MAD) {
	switch a {
	case AttrREQ:
		p := u.peer.params(u.side)
		p.defaults()
		r := p.request()
		r.LocalID, r.GUID = u.peerID, u.peer.m.guid
		r.Encode(&m, u.tid)
	case AttrMRA:
		r := MRA{LocalID: u.peerID, RemoteID: u.id, Message: about, ServiceTimeout: 20}
		r.Encode(&m, u.tid)
	case AttrREJ:
		r := REJ{LocalID: u.peerID, RemoteID: u.id, Message: about, Reason: ReasonConsumer}
		r.Encode(&m, u.tid)
	case AttrREP:
		r := REP{LocalID: u.peerID, RemoteID: u.id, QPN: 0x222, GUID: u.peer.m.guid}
		r.Encode(&m, u.tid)
	case AttrRTU:
		r := RTU{LocalID: u.peerID, RemoteID: u.id}
		r.Encode(&m, u.tid)
	case AttrDREQ:
		r := DREQ{LocalID: u.peerID, RemoteID: u.id, RemoteQPN: u.localQPN}
		r.Encode(&m, 99)
	case AttrDREP:
		r := DREP{LocalID: u.peerID, RemoteID: u.id}
		r.Encode(&m, 99)
	case AttrSIDRREQ:
		r := SIDRREQ{RequestID: u.peerID, Service: UDPService(1)}
		r.Encode(&m, 98)
	case AttrSIDRREP:
		r := SIDRREP{RequestID: u.id, QPN: 3}
		r.Encode(&m, 98)
	case AttrLAP:
		r := LAP{LocalID: u.peerID, RemoteID: u.id}
		r.Encode(&m, 97)
	case AttrAPR:
		r := APR{LocalID: u.peerID, RemoteID: u.id}
		r.Encode(&m, 97)
	}
	return m
}

// TestStateTables tries every message in every state. A message that the table does not list must
// change nothing and cause no answer (IBA 12.9).
func TestStateTables(t *testing.T) {
	type key struct {
		s State
		a Attribute
	}
	type effect struct {
		next State
		does string // MADs sent, then events
	}
	want := map[key]effect{
		{StateREQSent, AttrREP}: {StateREPRcvd, "connect response"},
		{StateREQSent, AttrMRA}: {StateMRAREQRcvd, ""},
		{StateREQSent, AttrREJ}: {StateIdle, "rejected closed"},

		{StateMRAREQRcvd, AttrREP}: {StateREPRcvd, "connect response"},
		{StateMRAREQRcvd, AttrMRA}: {StateMRAREQRcvd, ""},
		{StateMRAREQRcvd, AttrREJ}: {StateIdle, "rejected closed"},

		{StateREPRcvd, AttrREP}:  {StateMRAREPSent, "MRA"},
		{StateREPRcvd, AttrREJ}:  {StateIdle, "rejected closed"},
		{StateREPRcvd, AttrDREQ}: {StateTimeWait, "DREP disconnected"},

		{StateMRAREPSent, AttrREP}:  {StateMRAREPSent, "MRA"},
		{StateMRAREPSent, AttrREJ}:  {StateIdle, "rejected closed"},
		{StateMRAREPSent, AttrDREQ}: {StateTimeWait, "DREP disconnected"},

		{StateREQRcvd, AttrREQ}: {StateMRAREQSent, "MRA"},
		{StateREQRcvd, AttrREJ}: {StateIdle, "rejected closed"},

		{StateMRAREQSent, AttrREQ}: {StateMRAREQSent, "MRA"},
		{StateMRAREQSent, AttrREJ}: {StateIdle, "rejected closed"},

		{StateREPSent, AttrREQ}:  {StateREPSent, "REP"},
		{StateREPSent, AttrRTU}:  {StateEstablished, "established"},
		{StateREPSent, AttrMRA}:  {StateMRAREPRcvd, ""},
		{StateREPSent, AttrREJ}:  {StateIdle, "rejected closed"},
		{StateREPSent, AttrDREQ}: {StateDREQRcvd, "established disconnected"},

		{StateMRAREPRcvd, AttrREQ}:  {StateMRAREPRcvd, "REP"},
		{StateMRAREPRcvd, AttrRTU}:  {StateEstablished, "established"},
		{StateMRAREPRcvd, AttrMRA}:  {StateMRAREPRcvd, ""},
		{StateMRAREPRcvd, AttrREJ}:  {StateIdle, "rejected closed"},
		{StateMRAREPRcvd, AttrDREQ}: {StateDREQRcvd, "established disconnected"},

		{StateEstablished, AttrREJ}:  {StateTimeWait, "disconnected"},
		{StateEstablished, AttrDREQ}: {StateDREQRcvd, "disconnected"},
		{StateEstablished, AttrLAP}:  {StateEstablished, "APR"},

		{StateDREQSent, AttrREQ}:  {StateDREQSent, "REJ10"},
		{StateDREQSent, AttrREJ}:  {StateTimeWait, "disconnected"},
		{StateDREQSent, AttrDREQ}: {StateTimeWait, "DREP disconnected"},
		{StateDREQSent, AttrDREP}: {StateTimeWait, "disconnected"},

		{StateDREQRcvd, AttrREQ}:  {StateDREQRcvd, "REJ10"},
		{StateDREQRcvd, AttrREJ}:  {StateTimeWait, ""},
		{StateDREQRcvd, AttrDREQ}: {StateTimeWait, "DREP"},

		{StateTimeWait, AttrREQ}:  {StateTimeWait, "REJ10"},
		{StateTimeWait, AttrDREQ}: {StateTimeWait, "DREP"},

		{StateRefused, AttrREQ}:  {StateRefused, "REJ28"},
		{StateRefused, AttrREP}:  {StateRefused, "REJ28"},
		{StateRefused, AttrDREQ}: {StateRefused, "DREP"},
	}
	for s := StateREQSent; s <= StateRefused; s++ {
		for a := AttrREQ; a <= AttrAPR; a++ {
			t.Run(fmt.Sprintf("%v/%v", s, a), func(t *testing.T) {
				if a == AttrREQ && s <= StateMRAREPSent {
					t.Skip("no peer sends a REQ to a connection that this side requested")
				}
				u := reach(t, s)
				about := AnswersREQ
				if s == StateREPSent || s == StateMRAREPRcvd {
					about = AnswersREP
				}
				w, named := want[key{s, a}]
				if !named {
					w.next = s
				}
				if a == AttrSIDRREQ {
					w.does = "SIDR_REP" // no connection here
				}
				late := u.m.c.Late[a.Index()]
				u.hears(u.now+second, u.peer, u.message(a, about)) // not a network duplicate
				var events []Event
				mads := u.drain()
				for ev, ok := u.m.PollEvent(); ok; ev, ok = u.m.PollEvent() {
					events = append(events, ev)
				}
				if got := trace(mads, events); got != w.does || u.m.State(u.id) != w.next {
					t.Errorf("%v and %q, want %v and %q", u.m.State(u.id), got, w.next, w.does)
				}
				if isLate := u.m.c.Late[a.Index()] != late; a != AttrSIDRREP &&
					isLate != (!named && a != AttrSIDRREQ) {
					t.Errorf("counted as late: %v", isLate)
				}
			})
		}
	}
}

// TestIdleAnswers: messages for connections that do not exist (IBA 12.9, state Idle).
func TestIdleAnswers(t *testing.T) {
	for a, want := range map[Attribute]string{AttrREQ: "REJ8", AttrMRA: "", AttrREJ: "",
		AttrREP: "REJ6", AttrRTU: "", AttrDREQ: "DREP",
		AttrDREP: "", AttrSIDRREQ: "SIDR_REP", AttrSIDRREP: "", AttrLAP: "APR", AttrAPR: ""} {
		a1, b := newSide(t, gidA, guidA, 1), newSide(t, gidB, guidB, 2)
		u := &subject{side: b, peer: a1, id: 0x1234, peerID: 0x5678, tid: 55}
		m := u.message(a, 0)
		b.hears(1, a1, m)
		mads := b.drain()
		if got := trace(mads, nil); got != want {
			t.Errorf("%v is answered by %q, want %q", a, got, want)
		}
		for i := range mads {
			if mads[i].TID() != m.TID() {
				t.Errorf("%v: the answer's TID is %#x, want %#x", a, mads[i].TID(), m.TID())
			}
			// The answer has the communication IDs of the request in reverse; a REJ to a REQ knows
			// only one.
			local, remote := m.RemoteID(), m.LocalID()
			if a == AttrREQ {
				local = 0
			}
			if a != AttrSIDRREQ && (mads[i].LocalID() != local || mads[i].RemoteID() != remote) {
				t.Errorf("%v: the answer is from %#x to %#x", a, mads[i].LocalID(),
					mads[i].RemoteID())
			}
		}
		b.quiet()
		b.empty()
	}
}

// TestTimers lets the deadline of each state expire.
func TestTimers(t *testing.T) {
	for s, want := range map[State]struct {
		next State
		does string
	}{
		StateREQSent:    {StateREQSent, "REQ"},
		StateMRAREQRcvd: {StateREQSent, "REQ"},
		StateREQRcvd:    {StateIdle, "unreachable closed"},
		StateMRAREQSent: {StateIdle, "unreachable closed"},
		StateREPSent:    {StateREPSent, "REP"},
		StateMRAREPRcvd: {StateREPSent, "REP"},
		StateDREQSent:   {StateDREQSent, "DREQ"},
		StateDREQRcvd:   {StateTimeWait, "DREP"},
		StateTimeWait:   {StateIdle, "closed"},
		StateRefused:    {StateIdle, ""},
	} {
		u := reach(t, s)
		next, ok := u.m.NextTimeout()
		if !ok {
			t.Errorf("%v waits for ever", s)
			continue
		}
		u.m.HandleTimeout(next - 1)
		u.inState(u.id, s)
		u.m.HandleTimeout(next)
		var events []Event
		mads := u.drain()
		for ev, ok := u.m.PollEvent(); ok; ev, ok = u.m.PollEvent() {
			events = append(events, ev)
		}
		if got := trace(mads, events); got != want.does || u.m.State(u.id) != want.next {
			t.Errorf("%v: %v and %q, want %v and %q", s, u.m.State(u.id), got, want.next, want.does)
		}
	}
	for _, s := range []State{StateREPRcvd, StateMRAREPSent, StateEstablished} {
		if u := reach(t, s); !u.idle() {
			t.Errorf("%v is the user's to leave, but has a deadline", s)
		}
	}
}
