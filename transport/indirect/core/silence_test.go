package core

import (
	"errors"
	"testing"
)

// newSlow creates a talk with realistic times: the defaults.
func newSlow(t *testing.T) *talk {
	t.Helper()
	c := oneSlot
	c.Segment = 1024
	m, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return &talk{t: t, m: m, now: 1}
}

const second = Time(1e9)

// passes lets time pass while the driver performs the actions. It returns the number of messages
// sent, and ends early if the machine gives up.
func (k *talk) passes(d Time) (sent int) {
	k.t.Helper()
	var a Action
	for end := k.now + d; ; {
		for k.m.Poll(k.now, &a) {
			switch {
			case a.Kind == DoControl:
				sent++
			case a.Kind == DoWrite && k.wrote != nil:
				k.wrote(&a)
			}
		}
		next := k.m.Timeout()
		if k.m.Err() != nil || next > end {
			k.now = end
			return sent
		}
		k.now = max(k.now, next)
		k.m.HandleTimeout(k.now)
	}
}

// releasing starts a WRITE that lacks only the release.
func (k *talk) releasing() TID {
	k.t.Helper()
	tid, err := k.m.Post(k.now, &Op{Len: 10})
	if err != nil {
		k.t.Fatal(err)
	}
	k.says(msgRequest)
	k.hears(message{typ: msgAnswer, flags: flagValid, tid: tid})
	k.next(DoAcked)
	k.next(DoWrite)
	k.m.DataDone(k.now)
	k.next(DoSent)
	k.says(msgRelease)
	return tid
}

// A responder without processor time for as long as RC itself tolerates is not dead. (Before a fix
// 64 releases without an answer, 5.7 s, ended the connection.)
func TestStarvedResponder(t *testing.T) {
	k := newSlow(t)
	tid := k.releasing()
	sent := k.passes(18 * second)
	if err := k.m.Err(); err != nil {
		t.Fatal(err)
	}
	if sent < 100 || sent > 300 {
		t.Errorf("%d releases in 18 s", sent)
	}
	k.hears(message{typ: msgReleased, tid: tid})
	if a := k.next(DoDone); a.Status != StatusOK {
		t.Errorf("%+v", a)
	}
}

// asked delivers a request of the peer and the user's answer.
func (k *talk) asked(flags uint8, ok bool) {
	k.t.Helper()
	k.hears(message{typ: msgRequest, flags: flags, tid: 4, len: 1500})
	a := k.next(DoRegister)
	k.m.Registered(k.now, a.Entry, 4, ok, Local{}, 0, 0)
}

// An initiator that is silent for Silence is dead, whatever it has started; not earlier, and at
// most an eighth later.
func TestSilence(t *testing.T) {
	for _, c := range []struct {
		name  string
		begin func(k *talk)
	}{
		{"a registration that was refused", func(k *talk) { k.asked(0, false) }},
		{"a WRITE's registered memory", func(k *talk) { k.asked(0, true) }},
		{"a READ's registered memory", func(k *talk) { k.asked(flagRead, true) }},
		{"parked data, registered",
			func(k *talk) {
				k.asked(flagIndirect, true)
				k.m.HandleData(k.now, slotImm(4, 0, 0),
					1024)
			}},
		{"parked data that no request has come for",
			func(k *talk) { k.m.HandleData(k.now, slotImm(4, 0, 0), 1024) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newSlow(t)
			c.begin(k)
			k.passes(DefaultSilence - 1)
			if err := k.m.Err(); err != nil {
				t.Fatalf("too early: %v", err)
			}
			if k.passes(DefaultSilence/keepalives + 2); !errors.Is(k.m.Err(), ErrSilent) {
				t.Fatalf("%v; want ErrSilent", k.m.Err())
			}
			k.m.Fail(k.now)
			if k.passes(second); k.m.Counters.ParkedBytes != 0 || k.m.owing() {
				t.Errorf("unfinished work: %+v", k.m.Counters)
			}
		})
	}
}

// Any message of the peer is a sign of life, even about another transfer.
func TestSignsOfLife(t *testing.T) {
	for _, c := range []struct {
		name string
		sign func(k *talk)
	}{
		{"an answer that is of no use",
			func(k *talk) { k.hears(message{typ: msgAnswer, tid: 77}) }},
		{"data", func(k *talk) { k.m.HandleData(k.now, readImm(3), 1) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newSlow(t)
			k.asked(0, true)
			for range 4 {
				k.passes(DefaultSilence * 3 / 4)
				c.sign(k)
			}
			if err := k.m.Err(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A silent responder's NIC is probed after Silence, not earlier, and at most an eighth later. RC
// detects the rest.
func TestSilentResponder(t *testing.T) {
	post := func(kind Kind) func(k *talk) {
		return func(k *talk) {
			if _, err := k.m.Post(k.now, &Op{Kind: kind, Len: 10}); err != nil {
				k.t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name  string
		begin func(k *talk)
	}{
		{"a WRITE without an answer", post(Write)},
		{"a READ without an answer", post(Read)},
		{"a WRITE that is to be released", func(k *talk) { k.releasing() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newSlow(t)
			probes := 0
			k.wrote = func(a *Action) {
				if a.Len == 0 {
					probes++
				} else {
					k.m.DataDone(k.now)
				}
			}
			c.begin(k)
			if k.passes(DefaultSilence - 1); probes != 0 {
				t.Error("too early")
			}
			if k.passes(DefaultSilence/keepalives + 2); probes != 1 {
				t.Errorf("%d empty WRITEs", probes)
			}
			// One in flight is enough.
			if k.passes(DefaultSilence); probes != 1 || k.m.Err() != nil {
				t.Errorf("%d empty WRITEs, %v", probes, k.m.Err())
			}
		})
	}
}

// A responder whose NIC acknowledges is waited for as long as necessary, with an empty WRITE from
// time to time.
func TestResponderNICAlive(t *testing.T) {
	k := newSlow(t)
	tid := k.releasing()
	probes := 0
	k.wrote = func(a *Action) {
		if probes++; a.Len != 0 || a.WithImm {
			t.Errorf("%+v", a)
		}
		k.m.DataDone(k.now)
	}
	if k.passes(600 * second); k.m.Err() != nil || probes < 200 || probes > 250 {
		t.Fatalf("%v after %d empty WRITEs", k.m.Err(), probes)
	}
	k.hears(message{typ: msgReleased, tid: tid})
	if a := k.next(DoDone); a.Status != StatusOK {
		t.Errorf("%+v", a)
	}
}

// For a responder, which has memory at stake, the initiator's NIC is not enough, even if this side
// has an outstanding transfer.
func TestInitiatorNICIsNotEnough(t *testing.T) {
	k := newSlow(t)
	k.releasing()
	k.wrote = func(*Action) { k.m.DataDone(k.now) }
	k.m.HandleData(k.now, slotImm(4, 0, 0), 1024)
	if k.passes(DefaultSilence * 5 / 4); !errors.Is(k.m.Err(), ErrSilent) {
		t.Errorf("%v; want ErrSilent", k.m.Err())
	}
}

// While nothing is unfinished only an empty WRITE is sent from time to time. RC ends the connection
// if it is not acknowledged.
func TestIdle(t *testing.T) {
	k := newSlow(t)
	k.passes(second)
	probes := 0
	k.wrote = func(a *Action) {
		if probes++; a.Len != 0 {
			t.Errorf("%+v", a)
		}
		k.m.DataDone(k.now)
	}
	if sent := k.passes(600 * second); k.m.Err() != nil || sent != 0 || probes < 9 || probes > 11 {
		t.Fatalf("%v; %d messages, %d empty WRITEs in ten minutes", k.m.Err(), sent, probes)
	}
	probes, k.wrote = 0, func(*Action) { probes++ }
	if k.passes(600 * second); probes != 1 { // not acknowledged, which RC would detect
		t.Errorf("%d empty WRITEs in flight", probes)
	}
	k.m.DataDone(k.now)
	probes = 0
	k.releasing() // a transfer that starts in between is guarded at once
	if k.passes(DefaultSilence * 9 / 8); k.m.Err() != nil || probes != 1 {
		t.Errorf("%v, %d empty WRITEs", k.m.Err(), probes)
	}
}

// A responder that sends other messages but never answers a release is broken: its initiator does
// not wait forever. One that has just returned from a long pause is not.
func TestUnansweredRelease(t *testing.T) {
	for _, c := range []struct {
		name   string
		quiet  Time // before it sends
		talks  Time
		broken bool
	}{
		{"all the while", 0, DefaultSilence * 3 / 2, true},
		{"not so long", 0, DefaultSilence * 9 / 10, false},
		{"after a pause", 3 * DefaultSilence, DefaultSilence * 9 / 10, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newSlow(t)
			tid := k.releasing()
			k.wrote = func(*Action) { k.m.DataDone(k.now) }
			k.passes(c.quiet)
			for end := k.now + c.talks; k.now < end; k.passes(second) {
				k.hears(message{typ: msgAnswer, tid: 77})
			}
			if broken := errors.Is(k.m.Err(), ErrProtocol); broken != c.broken ||
				(!broken && k.m.Err() != nil) {
				t.Fatalf("%v", k.m.Err())
			}
			if c.broken {
				return
			}
			k.hears(message{typ: msgReleased, tid: tid})
			if a := k.next(DoDone); a.Status != StatusOK {
				t.Errorf("%+v", a)
			}
		})
	}
}

// A driver that was stopped for a minute does not count that minute against the peer.
func TestLocalPauseDoesNotCount(t *testing.T) {
	for _, c := range []struct {
		name  string
		begin func(k *talk)
	}{
		{"asking", func(k *talk) {
			if _, err := k.m.Post(k.now, &Op{Len: 10}); err != nil {
				k.t.Fatal(err)
			}
			k.passes(second)
		}},
		{"reading", func(k *talk) {
			tid, err := k.m.Post(k.now, &Op{Kind: Read, Len: 10})
			if err != nil {
				k.t.Fatal(err)
			}
			k.hears(message{typ: msgAnswer, flags: flagValid | flagRead, tid: tid})
			k.passes(second)
		}},
		{"releasing", func(k *talk) { k.releasing(); k.passes(second) }},
		{"serving", func(k *talk) { k.asked(0, true); k.passes(second) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newSlow(t)
			c.begin(k)
			k.waits(60 * second) // nothing that arrived meanwhile has been processed
			if k.passes(second); k.m.Err() != nil || k.m.Counters.Failed != 0 ||
				(k.m.Busy() > 0 && k.m.out[0].state == outAborting) {
				t.Errorf("%v, %+v", k.m.Err(), k.m.Counters)
			}
		})
	}
}

// An indirect transfer with a known answer whose data waits behind others sends a sign of life from
// time to time: nothing else shows the responder that this side lives.
func TestKeepAliveWhileQueued(t *testing.T) {
	k := newSlow(t)
	k.m.cfg.PeerSlots = 0 // the first one goes directly
	first, err := k.m.Post(k.now, &Op{Len: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	k.says(msgRequest)
	k.hears(message{typ: msgAnswer, flags: flagValid, tid: first})
	k.m.cfg.PeerSlots = 1
	second1, err := k.m.Post(k.now, &Op{Len: 10})
	if err != nil {
		t.Fatal(err)
	}
	k.hears(message{typ: msgAnswer, tid: second1})
	k.hears(message{typ: msgAnswer, flags: flagValid, tid: second1})
	if o := &k.m.out[second1&k.m.mask]; o.state != outIndirect || !o.answered ||
		o.stream.sent != 0 {
		t.Fatalf("%+v", o)
	}
	k.passes(second)
	said := map[TID]int{}
	for end := k.now + 2*DefaultSilence; k.now < end; k.now = k.m.Timeout() {
		k.m.HandleTimeout(k.now)
		k.m.watch.heard = true // acknowledgments arrive
		var a Action
		for k.m.Poll(k.now, &a) {
			var g message
			if a.Kind == DoControl && g.parse(a.Msg[:]) {
				said[g.tid]++
			}
		}
	}
	if said[first] < 2*keepalives-2 || said[second1] < 2*keepalives-2 {
		t.Errorf("%v in twice Silence", said)
	}
}
