package qp

import "testing"

// A peer that repeats a READ at will gets a limited number of responses. New requests are still
// answered, and time adds credit.
func TestRepeatedReadsAreLimited(t *testing.T) {
	const requests = 3 * repeatBurst / 4
	k := newTalk(t, RC)
	k.say(k.read(0, 0, 900))
	k.equal("responses", len(k.listen()), 4)
	repeat := func(n int) (sent int) {
		for range n {
			k.say(k.read(0, 0, 900))
			sent += len(k.listen())
		}
		return sent
	}
	burst := func(what string) {
		t.Helper()
		// The virtual clock advances a little, which adds credit.
		if n := repeat(requests); n < repeatBurst || n > repeatBurst+repeatBurst/50 {
			t.Errorf("%s: %d repeated packets for %d requests, want about %d", what, n, requests,
				repeatBurst)
		}
	}
	burst("at first")
	if k.Counters().DropReplay == 0 {
		t.Error("no request was counted as dropped")
	}
	k.say(k.read(4, 0, 900))
	k.equal("responses to a new READ", len(k.listen()), 4)
	k.equal("repeated packets after it", repeat(100), 4*repeatsPerNew)
	k.now += 10 * repeatInterval
	if n := repeat(100); n < 10 || n > 11 { // the clock also advances with each request
		t.Errorf("%d repeated packets later, want 10 or 11", n)
	}
	k.now += 2 * repeatFullPeriod
	burst("after a long time")
	k.is(RTS)
}

// A duplicate that sets back a READ whose answer is being sent costs credit, too.
func TestSettingBackReadsIsLimited(t *testing.T) {
	k := newTalk(t, RC)
	k.say(k.read(0, 0, 900))
	var buf [4096]byte
	sent := 0
	for range 2 * repeatBurst {
		for range 2 {
			if k.PollTransmit(k.now, buf[:]) != nil {
				sent++
			}
		}
		k.say(k.read(0, 0, 900))
	}
	if sent < repeatBurst || sent > repeatBurst+4*repeatsPerNew+4 {
		t.Errorf("%d packets sent, want about %d", sent, repeatBurst)
	}
	k.listen()
	k.say(k.read(4, 0, 100))
	k.hears("RDMA READ response Only +4 msn=2 100B")
}
