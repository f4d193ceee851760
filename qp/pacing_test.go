package qp

import (
	"math"
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// A paced QP sends at 1.25 times the rate of its window, never more than a burst at once, and waits
// for its timer in between.
func TestPacing(t *testing.T) {
	k := lossy(t, 200, 200, 1)
	k.q.cc.epoch = 1 // a loss turns on pacing
	k.q.rec.srtt, k.q.rec.rttvar = ms, 1
	k.q.setPace()
	k.post(k.wr(1, OpWrite, 200*talkMTU))
	start, sent, most := k.now, 0, 0
	for sent < 200 {
		n := len(k.listen())
		sent, most = sent+n, max(most, n)
		at, ok := k.NextTimeout()
		if !ok {
			t.Fatalf("%d packets sent and no timer", sent)
		}
		if sent < 200 {
			k.now = max(at, k.now)
			k.HandleTimeout(k.now)
		}
	}
	took, want := k.now-start, float64(ms)/1.25
	if math.Abs(float64(took)-want) > 0.2*want {
		t.Errorf("a window of packets took %d ns, want %.0f", took, want)
	}
	// The burst is 1/8 of the round trip, and the timer may be a tick late.
	if limit := int(250*(ms/8+1<<tickShift)/ms) + 2; most > limit {
		t.Errorf("%d packets at once, want at most %d", most, limit)
	}
}

// A QP that waits for the pacer continues if its congestion control changes meanwhile, even if
// nothing is in flight whose ACK would make it send.
func TestChangeCongestionWhilePaced(t *testing.T) {
	k := lossy(t, 200, 200, 1)
	k.q.cc.epoch = 1
	k.q.setPace()
	k.post(k.wr(1, OpWrite, 200*talkMTU))
	sent := len(k.listen())
	if sent == 0 || sent == 200 || k.q.cc.wake == 0 {
		t.Fatalf("%d packets sent, the QP waits until %d", sent, k.q.cc.wake)
	}
	k.say(pkt{op: bth.RCAck, psn: sent - 1, syndrome: bth.ACKNoLimit})
	if n := len(k.listen()); n != 0 || k.q.una != k.q.max {
		t.Fatalf("%d packets after the ACK, %d in flight", n, k.q.max-k.q.una)
	}
	must(t, k.q.Modify(k.now, &Attr{Congestion: CongestionNone}, AttrCongestion))
	n := len(k.listen())
	for at, ok := k.NextTimeout(); ok && n == 0; at, ok = k.NextTimeout() {
		k.now = max(at, k.now)
		n = len(k.listen())
	}
	if n == 0 {
		t.Error("the QP sends nothing and has no timer")
	}
}

// A pause does not save up tokens: the burst after it is not larger.
func TestNoBurstAfterIdle(t *testing.T) {
	k := lossy(t, 200, 200, 1)
	k.q.cc.epoch = 1
	k.q.setPace()
	k.now += 500 * ms
	k.post(k.wr(1, OpWrite, 200*talkMTU))
	if n := len(k.listen()); n > 50 {
		t.Errorf("%d packets at once after a pause, want at most 50", n)
	}
}

// A QP that is not paced starts again with the first window, and reaches the previous one fast.
func TestWindowAfterIdle(t *testing.T) {
	k := newTalk(t, RC)
	k.q.win.cwnd, k.q.rec.srtt, k.q.rec.rttvar = 256, 10_000, 100
	k.q.rec.sampleAt = k.now
	for _, c := range []struct {
		idle Time
		want uint32
	}{{ms / 2, 256}, {20 * ms, firstWindow}} {
		k.now += c.idle
		k.q.afterIdle(k.now)
		k.equal("window", k.q.win.size(), c.want)
	}
	if k.q.win.threshold < 192 {
		t.Errorf("growth is exponential up to %d packets, want at least 192", k.q.win.threshold)
	}
}

// Fast paths without loss are not paced.
func TestNoPacingWithoutLoss(t *testing.T) {
	for _, c := range []struct {
		cwnd  uint32
		srtt  Time
		epoch Time
		paced bool
	}{
		{256, ms, 0, false}, {257, ms, 0, true}, {100, ms, 1, true}, {1000, minPacedRTT - 1, 1, false},
	} {
		k := lossy(t, c.cwnd, 100, 1)
		k.q.rec.srtt, k.q.cc.epoch = c.srtt, c.epoch
		k.q.setPace()
		if got := k.q.cc.perKB != 0; got != c.paced {
			t.Errorf("%+v: paced is %v", c, got)
		}
	}
}

// Pacing works far from time zero and with any amount.
func TestPacingBounds(t *testing.T) {
	k := lossy(t, maxMaxWindow, 1e6, 1)
	for _, cwnd := range []uint32{minWindow, maxMaxWindow} {
		k.q.win.cwnd, k.q.cc.epoch = cwnd, 1
		k.q.setPace()
		for _, now := range []Time{0, 1 << 50, 1<<62 - 1} {
			k.q.paced(now, math.MaxUint32)
			if at := k.q.paceUntil(now); at < now {
				t.Errorf("window %d: paceUntil(%d) = %d, which has passed", cwnd, now, at)
			}
			k.q.cc.at = 0
		}
	}
}

// Pacing and the model of the path allocate nothing once they exist.
func TestCongestionAllocatesNothing(t *testing.T) {
	for _, alg := range []Congestion{CongestionAdaptive, CongestionDCQCN} {
		k := lossy(t, 100, 100, 1)
		k.q.win.algorithm = alg
		k.q.cnpReceived(k.now)
		n := testing.AllocsPerRun(100, func() {
			k.now += ms
			k.q.max += 10
			k.q.paced(k.now, 1000)
			k.q.paceUntil(k.now)
			k.q.una += 10
			k.q.delivered(10)
			k.q.cc.sampled(k.now, ms, 100)
			k.q.lossEvent(k.now, 1)
			k.q.cnpReceived(k.now)
		})
		if n != 0 {
			t.Errorf("%v: %v allocations", alg, n)
		}
	}
}
