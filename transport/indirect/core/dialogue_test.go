package core

import "testing"

// talk is a machine and what it sends; the test plays the peer.
type talk struct {
	t   *testing.T
	m   *Machine
	now Time

	wrote func(a *Action) // handles WRITEs while time passes; nil: nothing happens
}

func newTalk(t *testing.T, c Config) *talk {
	t.Helper()
	c.Timeout, c.Segment = 100, 1024
	c.Patience, c.Silence = 10_000, 20_000
	m, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return &talk{t: t, m: m, now: 1}
}

// next returns the machine's next action, which must have the kind want.
func (k *talk) next(want ActionKind) Action {
	k.t.Helper()
	var a Action
	if !k.m.Poll(k.now, &a) || a.Kind != want {
		k.t.Fatalf("the machine wants %+v; the protocol, kind %d", a, want)
	}
	return a
}

// says returns the control message that the machine sends next.
func (k *talk) says(want msgType) message {
	k.t.Helper()
	a := k.next(DoControl)
	var g message
	if !g.parse(a.Msg[:]) || g.typ != want {
		k.t.Fatalf("the machine says %+v; the protocol, type %d", g, want)
	}
	return g
}

func (k *talk) silent() {
	k.t.Helper()
	var a Action
	if k.m.Poll(k.now, &a) {
		k.t.Fatalf("unexpected action %+v", a)
	}
}

func (k *talk) hears(g message) {
	var b [MessageLen]byte
	g.put(&b, 0)
	k.m.HandleControl(k.now, b[:])
}

func (k *talk) waits(d Time) {
	k.now += d
	k.m.HandleTimeout(k.now)
}

var oneSlot = Config{Dynamic: true, PeerSlots: 1, PeerSlot: 4096, PeerBase: 1 << 20, PeerKey: 9,
	Slots: 1, Slot: 4096}

// "After an invalid answer the initiator begins an indirect transfer": at once, and the user is
// told before anything is sent. The real answer "is recorded in the status block and discarded".
func TestInvalidAnswer(t *testing.T) {
	k := newTalk(t, oneSlot)
	tid, err := k.m.Post(k.now, &Op{Local: Local{Addr: 50}, DBA: 7, Len: 1500, Cookie: 3})
	if err != nil {
		t.Fatal(err)
	}
	if g := k.says(msgRequest); g.tid != tid || g.flags != 0 || g.sba != 50 || g.dba != 7 ||
		g.len != 1500 {
		t.Errorf("%+v", g)
	}
	k.silent()
	k.hears(message{typ: msgAnswer, tid: tid})
	if a := k.next(DoAcked); a.Cookie != 3 {
		t.Errorf("%+v", a)
	}
	for i, want := range []struct{ addr, len uint64 }{{1 << 20, 1024}, {1<<20 + 1024, 476}} {
		a := k.next(DoWrite)
		if a.RemoteAddr != want.addr || uint64(a.Len) != want.len || !a.WithImm ||
			a.Imm != slotImm(tid, 0, uint32(i)) || a.RKey != 9 ||
			a.Local.Addr != 50+uint64(i)*1024 {
			t.Errorf("segment %d: %+v", i, a)
		}
	}
	k.silent() // it asks again only when its timer expires
	k.waits(100)
	if g := k.says(msgRequest); !g.has(flagIndirect) || g.slot != 0 {
		t.Errorf("%+v", g)
	}
	k.m.DataDone(k.now)
	k.m.DataDone(k.now)
	k.next(DoSent)
	k.silent() // the real answer is still outstanding
	k.hears(message{typ: msgAnswer, flags: flagValid, tid: tid, dba: 1, rkey: 2})
	if g := k.says(msgRelease); !g.has(flagIndirect) || g.slot != 0 {
		t.Errorf("%+v", g)
	}
	k.hears(message{typ: msgReleased, tid: tid})
	if a := k.next(DoDone); a.Status != StatusOK {
		t.Errorf("%+v", a)
	}
	k.silent()
}

// "If the initiator has not received any valid answer before the second timeout of the timer, it
// begins an indirect transfer", and continues to ask.
func TestSecondTimeout(t *testing.T) {
	k := newTalk(t, oneSlot)
	if _, err := k.m.Post(k.now, &Op{Len: 10}); err != nil {
		t.Fatal(err)
	}
	k.says(msgRequest)
	k.waits(99)
	k.silent()
	k.waits(1)
	k.says(msgRequest)
	k.silent()
	k.waits(100)
	k.next(DoAcked)
	k.says(msgRequest)
	k.next(DoWrite)
	k.waits(100)
	k.says(msgRequest)
}

// The traditional method: "after an invalid answer the initiator resets its timer and waits to ask
// again".
func TestTraditionalWaits(t *testing.T) {
	c := oneSlot
	c.Dynamic = false
	k := newTalk(t, c)
	tid, err := k.m.Post(k.now, &Op{Len: 10})
	if err != nil {
		t.Fatal(err)
	}
	k.says(msgRequest)
	k.waits(60)
	k.hears(message{typ: msgAnswer, tid: tid})
	k.waits(60)
	k.silent() // reset
	k.waits(40)
	k.says(msgRequest)
	for range 5 {
		k.waits(100)
		k.says(msgRequest)
		k.silent()
	}
	k.hears(message{typ: msgAnswer, flags: flagValid, tid: tid, dba: 77, rkey: 5})
	k.next(DoAcked)
	if a := k.next(DoWrite); a.RemoteAddr != 77 || a.RKey != 5 || a.WithImm {
		t.Errorf("%+v", a)
	}
}

// The responder moves parked data "only when it finds that the answer has been sent".
func TestMoveAfterAnswer(t *testing.T) {
	k := newTalk(t, oneSlot)
	const tid = 4
	// no request has arrived: "no information in the status block"
	k.m.HandleData(k.now, slotImm(tid, 0, 0), 1024)
	k.silent()
	k.hears(message{typ: msgRequest, flags: flagIndirect, tid: tid, dba: 7, len: 1500})
	a := k.next(DoRegister)
	k.m.Registered(k.now, a.Entry, tid, false, Local{}, 0, 0)
	if g := k.says(msgAnswer); g.has(flagValid) {
		t.Errorf("%+v", g)
	}
	k.silent()
	k.hears(message{typ: msgRequest, flags: flagIndirect, tid: tid, dba: 7, len: 1500})
	a = k.next(DoRegister)
	k.m.Registered(k.now, a.Entry, tid, true, Local{Addr: 1000}, 1000, 8)
	if g := k.says(msgAnswer); !g.has(flagValid) || g.dba != 1000 || g.rkey != 8 {
		t.Errorf("%+v", g)
	}
	if a := k.next(DoMove); a.Off != 0 || a.Len != 1024 || a.Slot != 0 {
		t.Errorf("%+v", a)
	}
	// It overtook the last segment: nothing is released yet.
	k.hears(message{typ: msgRelease, flags: flagIndirect, tid: tid})
	k.silent()
	k.m.HandleData(k.now, slotImm(tid, 0, 1), 476)
	if a := k.next(DoMove); a.Off != 1024 || a.Len != 476 {
		t.Errorf("%+v", a)
	}
	if a := k.next(DoRelease); !a.Delivered {
		t.Errorf("%+v", a)
	}
	k.says(msgReleased)
	// A duplicate, or the answer was lost.
	k.hears(message{typ: msgRelease, flags: flagIndirect, tid: tid})
	k.says(msgReleased)
	k.silent()
	if c := k.m.Counters; c.Parked != 1 || c.Straight != 0 || c.Delivered != 1 {
		t.Errorf("%+v", c)
	}
}

// A segment for a slot of another transfer may have overwritten data: the connection is unusable.
func TestOverwrittenSlotIsFatal(t *testing.T) {
	k := newTalk(t, oneSlot)
	k.m.HandleData(k.now, slotImm(4, 0, 0), 1024)
	k.m.HandleData(k.now, slotImm(5, 0, 0), 1024)
	if k.m.Err() != ErrProtocol {
		t.Errorf("%v", k.m.Err())
	}
	k.m.Fail(k.now)
	if c := k.m.Counters; c.Violations != 1 || c.Orphaned != 1 || c.ParkedBytes != 0 {
		t.Errorf("%+v", c)
	}
}

// Limits of Config are checked.
func TestConfig(t *testing.T) {
	for _, c := range []Config{
		{Segment: 0}, {Segment: MaxSegment + 1}, {Segment: 1, Entries: 3},
		{Segment: 1, Entries: 512}, {Segment: 1, Slots: 257, Slot: 1}, {Segment: 1, PeerSlots: 1},
		{Segment: 1, Slots: 1}, {Segment: 1, Timeout: -1},
		{Segment: 1, PeerSlots: 1, PeerSlot: 2 << 30},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%+v passes", c)
		}
	}
}

// A READ may take longer than Patience as long as the responder answers from time to time. If it is
// silent the READ is abandoned.
func TestSlowRead(t *testing.T) {
	k := newTalk(t, oneSlot)
	tid, err := k.m.Post(k.now, &Op{Kind: Read, Len: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	k.says(msgRequest)
	valid := message{typ: msgAnswer, flags: flagValid | flagRead, tid: tid}
	k.hears(valid)
	k.next(DoAcked)
	k.says(msgConfirm)
	for range 20 { // 50,000: two and a half times Silence
		k.waits(2500)
		k.says(msgRequest)
		k.hears(valid)
		k.says(msgConfirm)
	}
	for range 7 {
		k.waits(2500)
		k.says(msgRequest)
	}
	k.waits(2500)
	if g := k.says(msgRelease); !g.has(flagAbort) {
		t.Errorf("%+v", g)
	}
	k.hears(message{typ: msgReleased, tid: tid})
	if a := k.next(DoDone); a.Status != StatusNoAnswer {
		t.Errorf("%+v", a)
	}
}

// A request and its abort arrive before the driver acts. The user is not asked, so no answer is
// awaited. (Before a fix the responder never answered that transfer again, and its initiator
// considered it dead.)
func TestRequestAndAbortTogether(t *testing.T) {
	for _, c := range []struct {
		name  string
		flags uint8
	}{{"nothing parked", 0}, {"data parked", flagIndirect}} {
		t.Run(c.name, func(t *testing.T) {
			k := newTalk(t, oneSlot)
			const tid = 4
			if c.flags != 0 {
				k.m.HandleData(k.now, slotImm(tid, 0, 0), 1024)
			}
			k.hears(message{typ: msgRequest, flags: c.flags, tid: tid, dba: 7, len: 1500})
			k.hears(message{typ: msgRelease, flags: c.flags | flagAbort, tid: tid})
			k.says(msgReleased)
			k.silent()
			// The answer was lost.
			k.hears(message{typ: msgRelease, flags: c.flags | flagAbort, tid: tid})
			k.says(msgReleased)
			k.silent()
			if k.m.owing() || k.m.Counters.ParkedBytes != 0 {
				t.Errorf("unfinished work: %+v", k.m.Counters)
			}
			// The entry is usable for the next transfer.
			k.hears(message{typ: msgRequest, tid: tid + TID(len(k.m.in)), dba: 7, len: 1500})
			k.next(DoRegister)
		})
	}
}

// The user was asked and takes time. An initiator that has abandoned the transfer meanwhile gets
// its answer when the user has answered.
func TestAbortDuringRegistration(t *testing.T) {
	k := newTalk(t, oneSlot)
	const tid = 4
	k.hears(message{typ: msgRequest, tid: tid, dba: 7, len: 1500})
	a := k.next(DoRegister)
	k.hears(message{typ: msgRelease, flags: flagAbort, tid: tid})
	k.silent()
	k.m.Registered(k.now, a.Entry, tid, true, Local{}, 0, 0)
	if a := k.next(DoRelease); a.Delivered {
		t.Errorf("%+v", a)
	}
	k.says(msgReleased)
	k.silent()
}
