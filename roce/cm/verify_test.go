package cm

import (
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// forged returns a REQ with timeout exponent t and n CM retries.
func forged(s *stranger, t, n uint8) (m MAD) {
	m = s.request()
	var r REQ
	r.Decode(&m)
	r.LocalTimeout, r.RemoteTimeout, r.MaxCMRetries = t, t, n
	r.Encode(&m, 1)
	return m
}

func (s *stranger) says(b *side, now Time, m MAD) {
	b.t.Helper()
	if err := b.m.HandleMAD(now, s.addr(), m[:]); err != nil {
		b.t.Fatal(err)
	}
}

// A forged REQ causes at most three MADs to the spoofed host and a connection of at most 15 s,
// whatever times it names.
func TestForgedREQ(t *testing.T) {
	for _, exponent := range []uint8{0, 12, 16, 20, 31} {
		b, s := listening(t, 0), host(1)
		s.says(b, 0, forged(s, exponent, 15))
		id := b.event(EventConnectRequest).ID
		b.must(b.m.Accept(0, id, &AcceptParams{QPN: 5}))
		end, mads := b.until(0, func() bool { return b.m.Sizes().HalfOpen == 0 })
		_, more := b.until(end, b.idle)
		mads = append(mads, more...)
		if len(mads) > amplification || mads[len(mads)-1].Attribute() != AttrREJ {
			t.Errorf("exponent %d: the CM sends %s, want at most 2 REPs and a REJ", exponent,
				trace(mads, nil))
		}
		if end > maxUnverified {
			t.Errorf("exponent %d: half-open for %d ns, want at most %d", exponent, end,
				maxUnverified)
		}
		b.event(EventUnreachable)
		b.event(EventClosed)
		b.empty()
	}
}

// Each retransmission of a forged REQ is answered, in every state, by at most three MADs.
func TestRepeatedForgedREQ(t *testing.T) {
	for name, answer := range map[string]func(b *side, id CommID) error{
		"no answer": func(*side, CommID) error { return nil },
		"Accept": func(b *side, id CommID) error {
			return b.m.Accept(0, id, &AcceptParams{QPN: 5})
		},
		"Reject": func(b *side, id CommID) error {
			return b.m.Reject(0, id, ReasonConsumer, nil, nil)
		},
		"MRA and Accept": func(b *side, id CommID) error {
			b.must(b.m.SendMRA(0, id, 20))
			return b.m.Accept(0, id, &AcceptParams{QPN: 5})
		},
	} {
		b, s := listening(t, 0), host(1)
		req := forged(s, 12, 15)
		s.says(b, 0, req)
		b.must(answer(b, b.event(EventConnectRequest).ID))
		const n = 50
		sent := len(b.drain())
		for i := range n {
			s.says(b, Time(i)*second, req)
			for next, ok := b.m.NextTimeout(); ok &&
				next < Time(i+1)*second; next, ok = b.m.NextTimeout() {
				b.m.HandleTimeout(next)
				sent += len(b.drain())
			}
			for ev, ok := b.m.PollEvent(); ok; ev, ok = b.m.PollEvent() {
				if ev.Kind == EventConnectRequest {
					b.must(answer(b, ev.ID))
				}
			}
			sent += len(b.drain())
		}
		if sent > amplification*(n+1) {
			t.Errorf("%s: %d MADs for %d REQs", name, sent, n+1)
		}
	}
}

// A peer that sends our communication ID is verified: the REP is retransmitted as often as the peer
// wants. A message with a wrong communication ID does not count.
func TestMRAVerifies(t *testing.T) {
	for _, right := range []bool{true, false} {
		b, s := listening(t, 0), host(1)
		s.says(b, 0, forged(s, 12, 15))
		id := b.event(EventConnectRequest).ID
		b.must(b.m.Accept(0, id, &AcceptParams{QPN: 5}))
		mra := MRA{LocalID: CommID(s.n), RemoteID: id, Message: AnswersREP, ServiceTimeout: 12}
		b.sends(AttrREP)
		want := 15 + 1 // REPs, REJ
		if !right {
			mra.RemoteID++
			want = amplification - 1
		}
		var m MAD
		mra.Encode(&m, 1)
		s.says(b, 0, m)
		if _, mads := b.until(0, b.idle); len(mads) != want {
			t.Errorf("right ID %v: the CM sends %s, want %d MADs", right, trace(mads, nil), want)
		}
	}
}

// The addresses of an IPv6 /64 share the slots of one source.
func TestFloodFromOneSubnet(t *testing.T) {
	b := listening(t, 64)
	v6 := func(subnet, n uint32) *stranger {
		g := bth.GID{0x20, 0x01, 0x0d, 0xb8, 7: byte(subnet)}
		g[14], g[15] = byte(n>>8), byte(n)
		return &stranger{gid: g}
	}
	for i := range uint32(1000) {
		v6(1, i+1).knocks(b, 0, 1)
	}
	if s := b.m.Sizes(); s.Pending != 32 || s.Sources != 1 {
		t.Errorf("one subnet has %d slots as %d sources, want 32 as 1", s.Pending, s.Sources)
	}
	v6(2, 1).knocks(b, 0, 1)
	if s := b.m.Sizes(); s.Pending != 33 {
		t.Errorf("a request from another subnet was dropped: %+v", s)
	}
}
