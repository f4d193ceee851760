package netsim

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
)

// tcpScenario has n TCP flows through a bottleneck of 100 Mb/s with an RTT of 10 ms and a queue of
// 1 BDP.
func tcpScenario(n int) *Scenario {
	const bits, rtt = 100e6, 10 * time.Millisecond
	s := &Scenario{Seed: 1, Frames: 1024, Warmup: 5 * time.Second, Time: 10 * time.Second,
		Bottleneck: &loopback.Bottleneck{Bandwidth: bits, Queue: int(bits / 8 * rtt.Seconds())}}
	for i := range n {
		s.Senders = append(s.Senders, Sender{TCP: &TCP{}, Start: time.Duration(i) * 5 * rtt,
			Plan: loopback.Plan{Bandwidth: 2 * bits, Delay: rtt / 2}})
	}
	return s
}

// mssShare is the payload as a share of the frames.
const mssShare = 1448.0 / 1514

// One flow fills the link. Each loss reduces its window to 0.7, which then grows to the plateau.
func TestTCPAlone(t *testing.T) {
	s := tcpScenario(1)
	w := &world{Scenario: s, ctx: t.Context()}
	defer w.close()
	if err := w.open(); err != nil {
		t.Fatal(err)
	}
	w.start = w.link.Now()
	flow := &w.hosts[0].(*tcpHost).flow
	var most, least, cuts = 0.0, math.Inf(1), 0
	for at := w.start; at < w.start+int64(20*time.Second); at += int64(5 * time.Millisecond) {
		if err := w.until(at); err != nil {
			t.Fatal(err)
		}
		if at < w.start+int64(s.Warmup) {
			cuts = flow.cuts
			continue
		}
		most, least = max(most, flow.window), min(least, flow.window)
	}
	if cuts = flow.cuts - cuts; cuts < 2 || cuts > 20 {
		t.Errorf("the window was reduced %d times in 15 s, want 2 to 20", cuts)
	}
	const pipe = 2 * 100e6 / 8 * 0.010 / 1514 // link and queue, segments
	if math.Abs(least/most-cubicBeta) > 0.05 || math.Abs(most/pipe-1) > 0.1 {
		t.Errorf("the window is between %.0f and %.0f segments, want a ratio of 0.7 and at most %.0f",
			least, most, pipe)
	}
	share := float64(w.bytes()[0]) * 8 / 20 / 100e6
	if share < 0.95*mssShare || share > mssShare {
		t.Errorf("the flow has %.3f of the link, want %.3f", share, mssShare)
	}
}

// Two flows share the link equally, although one starts earlier.
func TestTCPFair(t *testing.T) {
	s := tcpScenario(2)
	s.Time = 30 * time.Second
	r := run(t, s)
	if j := r.Jain(); j < 0.95 || r.Bits < 0.95*mssShare*100e6 {
		t.Errorf("Jain's index %.3f and %.1f Mb/s, want 0.95 and 95 %% of the link", j, r.Bits/1e6)
	}
}

// A TCP flow and a QP both get some of the link, and do not disturb each other's frames.
func TestTCPNextToQP(t *testing.T) {
	s := tcpScenario(1)
	s.Senders = append(s.Senders, small().Senders[0])
	s.Senders[1].Plan = s.Senders[0].Plan
	s.Warmup, s.Time = 100*time.Millisecond, time.Second
	r := run(t, s)
	if len(r.Flows) != 2 || r.Flows[0].Bits < 1e6 || r.Flows[1].Bits < 1e6 || r.Bits < 70e6 {
		t.Errorf("%+v: want two flows that use the link", r.Flows)
	}
}

// Lost segments are sent again once each, and the receiver misses none.
func TestTCPRecovers(t *testing.T) {
	s := tcpScenario(1)
	s.Bottleneck = nil
	s.Senders[0].Plan.Loss = 0.01
	s.Senders[0].Plan.Bandwidth = 100e6
	w := &world{Scenario: s, ctx: t.Context()}
	defer w.close()
	if err := w.open(); err != nil {
		t.Fatal(err)
	}
	w.start = w.link.Now()
	flow, remote := &w.hosts[0].(*tcpHost).flow, w.hosts[0].(*tcpHost).remote
	if err := w.until(w.start + int64(2*time.Second)); err != nil {
		t.Fatal(err)
	}
	lost := w.link.Faults(1, 0).Lost
	again := flow.serials - uint64(flow.nxt)
	if lost < 20 || again+10 < lost || again > lost {
		t.Errorf("%d segments lost, %d sent again", lost, again)
	}
	if remote.expect < 1000 || uint64(remote.expect) != remote.total {
		t.Errorf("%d segments in order, expecting %d", remote.total, remote.expect)
	}
	// While nothing arrives, the timeout doubles. Then the flow goes on.
	if err := w.link.SetPlan(1, 0, loopback.Plan{Loss: 1}); err != nil {
		t.Fatal(err)
	}
	if err := w.until(w.link.Now() + int64(2*time.Second)); err != nil {
		t.Fatal(err)
	}
	before := remote.total
	if flow.window != 1 || flow.rto < 4*leastRTO {
		t.Errorf("after 2 s without the network, the window is %.1f and the timeout %v", flow.window,
			flow.rto)
	}
	if err := w.link.SetPlan(1, 0, s.Senders[0].Plan); err != nil {
		t.Fatal(err)
	}
	if err := w.until(w.link.Now() + int64(4*time.Second)); err != nil {
		t.Fatal(err)
	}
	if remote.total < before+1000 {
		t.Errorf("%d segments in order after the network returned, %d before", remote.total, before)
	}
}

// The window returns to the plateau after K seconds, slowly there and fast after it.
func TestCubicCurve(t *testing.T) {
	const rtt = 100 * time.Millisecond
	c := newCubic()
	c.threshold, c.window = 0, 1000
	c.lost()
	if c.window != 700 || c.peak != 1000 {
		t.Fatalf("after a loss: window %v, plateau %v, want 700, 1000", c.window, c.peak)
	}
	k := math.Cbrt(300 / cubicC)
	at := func(seconds float64) float64 {
		for now := c.epoch; now < c.epoch+int64(seconds*1e9); now += int64(rtt) {
			c.acked(max(now, 1), rtt, int(c.window))
		}
		return c.window
	}
	half := at(k / 2)
	c = newCubic()
	c.threshold, c.window = 0, 1000
	c.lost()
	full := at(k)
	if math.Abs(full-1000) > 5 || half < 950 {
		t.Errorf("window %.0f after K/2 and %.0f after K, want almost 1000", half, full)
	}
	// A second loss below the plateau lowers it: fast convergence.
	c.window = 900
	c.lost()
	if c.peak != 900*0.85 {
		t.Errorf("plateau %v, want %v", c.peak, 900*0.85)
	}
}

// The receiver's spans match a list of what has arrived.
func TestTCPReceiver(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var r tcpReceiver
		const n = 40
		var have [n]bool
		for range 3 * n {
			seq := uint32(rng.IntN(n))
			have[seq] = true
			r.receive(0, &tcpFrame{kind: kindData, seq: seq})
			f := r.ack()
			expect := uint32(0)
			for expect < n && have[expect] {
				expect++
			}
			if f.seq != expect || uint64(expect) != r.total {
				t.Fatalf("acknowledged up to %d, %d in total, want %d", f.seq, r.total, expect)
			}
			for i, b := range f.blocks[:f.count] {
				for s := b.first; s < b.last; s++ {
					if !have[s] {
						t.Fatalf("block %v contains %d, which is missing", b, s)
					}
				}
				if b.first <= expect || have[b.first-1] || b.last < n && have[b.last] ||
					i == 0 && seq > expect && (seq < b.first || seq >= b.last) {
					t.Fatalf("block %d is %v after %d: %v", i, b, seq, have)
				}
			}
			if f.count == 0 && seq > expect {
				t.Fatalf("no block for %d", seq)
			}
		}
	}
}

// Segments in order are acknowledged in pairs, others at once.
func TestTCPDelayedAck(t *testing.T) {
	var r tcpReceiver
	for i, c := range []struct {
		seq uint32
		ack bool
	}{{0, false}, {1, true}, {3, true}, {4, true}, {2, true}, {5, false}, {0, true}} {
		got := r.receive(int64(i), &tcpFrame{seq: c.seq})
		if got != c.ack {
			t.Errorf("segment %d: receive() = %v, want %v", c.seq, got, c.ack)
		}
		if got {
			r.ack()
		}
	}
}

func TestTCPIsChecked(t *testing.T) {
	for _, change := range []func(*Sender){
		func(s *Sender) { s.TCP.MSS = 100 },
		func(s *Sender) { s.TCP.MSS = 9000 },
		func(s *Sender) { s.Plan.Corrupt = 0.1 },
	} {
		s := tcpScenario(1)
		change(&s.Senders[0])
		if _, err := Run(t.Context(), s); !errors.Is(err, ErrScenario) {
			t.Errorf("Run(%+v) = %v, want ErrScenario", s.Senders[0], err)
		}
	}
}
