package netsim

import (
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// oneQP is a QP on a link of 10 Gb/s with an RTT of 100 us.
func oneQP(op roce.Op, p loopback.Plan, selective bool) *Scenario {
	p.Bandwidth, p.Delay = 10e9, 50*time.Microsecond
	return &Scenario{
		Seed: 1, Senders: []Sender{{Op: op, Size: 64 << 10, Depth: 16, Plan: p}}, Frames: 1024,
		Warmup: 5 * time.Millisecond, Time: 25 * time.Millisecond,
		Options: []roce.Option{roce.WithSelectiveRepeat(selective)},
		Connect: roce.ConnectOptions{MTU: 4096},
	}
}

// With selective repeat, loss costs little more than the lost packets. READ responses need no
// support of the peer.
func TestSelectiveRepeat(t *testing.T) {
	for _, op := range []roce.Op{roce.OpWrite, roce.OpRead, roce.OpSend} {
		loss := loopback.Plan{Loss: 0.02}
		r, gbn := run(t, oneQP(op, loss, true)), run(t, oneQP(op, loss, false))
		least := 0.1
		if op == roce.OpRead {
			least = 0.7
		}
		if share := r.Bits / 10e9; share < 0.8 || r.Bits < gbn.Bits {
			t.Errorf("%v with 2 %% loss: %.3f of the link, with go-back-N %.3f, want 0.8 and more",
				op, share, gbn.Bits/10e9)
		}
		if share := gbn.Bits / 10e9; share < least {
			t.Errorf("%v with 2 %% loss, go-back-N: %.3f of the link, want %.1f", op, share, least)
		}
	}
}

// Random losses of 3 % do not make the window small, because there is no queue. The time that READs
// wait for a lost request is no queue either.
func TestManyRandomLosses(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		op           roce.Op
		depth        int
		warmup, time time.Duration
		least        float64
	}{
		{roce.OpWrite, 64, 5 * ms, 25 * ms, 0.85},
		{roce.OpRead, 16, 30 * ms, 40 * ms, 0.6},
	} {
		s := oneQP(c.op, loopback.Plan{Loss: 0.03}, true)
		s.Senders[0].Plan.Bandwidth, s.Senders[0].Depth = 25e9, c.depth
		s.Warmup, s.Time = c.warmup, c.time
		if share := run(t, s).Bits / 25e9; share < c.least {
			t.Errorf("%v: %.3f of the link with 3 %% loss, want %.2f", c.op, share, c.least)
		}
	}
}

// Reordering is no loss.
func TestReordering(t *testing.T) {
	for _, op := range []roce.Op{roce.OpWrite, roce.OpRead} {
		r := run(t, oneQP(op, loopback.Plan{Reorder: 0.05, Hold: 50 * time.Microsecond}, true))
		if share := r.Bits / 10e9; share < 0.85 {
			t.Errorf("%v with 5 %% of the packets delayed: %.3f of the link, want 0.85", op, share)
		}
	}
}

// The window grows to the bandwidth-delay product of a long path.
func TestLongPath(t *testing.T) {
	for _, op := range []roce.Op{roce.OpWrite, roce.OpRead} {
		for _, selective := range []bool{true, false} {
			s := oneQP(op, loopback.Plan{}, selective)
			s.Senders[0].Plan.Delay = 10 * time.Millisecond
			s.Senders[0].Plan.Bandwidth = 500e6
			s.Senders[0].Size = 1 << 20
			s.Warmup, s.Time = 600*time.Millisecond, 200*time.Millisecond
			s.Frames = 2048
			if share := run(t, s).Bits / 500e6; share < 0.85 {
				t.Errorf("%v at 0.5 Gb/s and 20 ms, selective repeat %v: %.3f of the link, want 0.85",
					op, selective, share)
			}
		}
	}
}

// many returns n hosts that share 10 Gb/s. Half a bandwidth-delay product fits the queue.
func many(n int) *Scenario {
	s := oneQP(roce.OpWrite, loopback.Plan{}, true)
	s.Bottleneck = &loopback.Bottleneck{Bandwidth: 10e9, Queue: 125_000}
	s.Senders[0].Plan.Bandwidth = 40e9
	s.Senders[0].Plan.Jitter = 10 * time.Microsecond // packets are not in step with the queue
	for i := range n - 1 {
		next := s.Senders[0]
		next.Start = time.Duration(i+1) * 13 * time.Microsecond
		s.Senders = append(s.Senders, next)
	}
	s.Warmup, s.Time = 20*time.Millisecond, 60*time.Millisecond
	return s
}

// Equal QPs get equal shares, and many of them do not make the network collapse.
func TestSharing(t *testing.T) {
	if r := run(t, many(4)); r.Jain() < 0.85 || r.Bits < 0.85*10e9 {
		t.Errorf("4 hosts: Jain's index %.3f, %.3f of the link, want 0.85 of both", r.Jain(),
			r.Bits/10e9)
	}
	if r := run(t, many(16)); r.Least() < 0.1 || r.Bits < 0.8*10e9 {
		t.Errorf("16 hosts: the slowest has %.3f of the mean, want 0.1; %.3f of the link, want 0.8",
			r.Least(), r.Bits/10e9)
	}
}

// ECN keeps the queue short and avoids loss, with each algorithm that reacts to marks.
func TestECN(t *testing.T) {
	plain := run(t, many(4))
	for _, c := range []roce.CongestionControl{roce.CongestionAdaptive, roce.CongestionDCQCN} {
		s := many(4)
		s.Options = append(s.Options, roce.WithCongestionControl(c))
		*s.Bottleneck = loopback.Bottleneck{Bandwidth: 10e9, Queue: 125_000, MarkMin: 20_000,
			MarkMax: 60_000, MarkChance: 0.1}
		r := run(t, s)
		if r.Bottleneck.Marked == 0 || r.Bottleneck.Dropped > plain.Bottleneck.Dropped/2 ||
			r.Bits < 0.7*10e9 {
			t.Errorf("%v with ECN: %d frames marked, %d dropped (%d without), %.3f of the link", c,
				r.Bottleneck.Marked, r.Bottleneck.Dropped, plain.Bottleneck.Dropped, r.Bits/10e9)
		}
	}
	s := many(4)
	s.Options = append(s.Options, roce.WithCongestionControl(roce.CongestionNone))
	s.Bottleneck.MarkMin, s.Bottleneck.MarkMax = 20_000, 20_000
	if r := run(t, s); r.Bottleneck.Marked != 0 {
		t.Errorf("without congestion control %d frames were ECN-capable", r.Bottleneck.Marked)
	}
}

// A QP and a TCP flow share the link.
func TestSharingWithTCP(t *testing.T) {
	s := tcpScenario(1)
	s.Senders[0].TCP.MSS = 4096
	s.Senders = append(s.Senders, many(1).Senders[0])
	s.Senders[1].Plan = s.Senders[0].Plan
	s.Connect.MTU = 4096
	r := run(t, s)
	if share := r.Share(1); share < 0.2 || share > 0.8 || r.Bits < 90e6 {
		t.Errorf("next to TCP a QP has %.3f, want 0.2 to 0.8; together %.1f of 100 Mb/s", share,
			r.Bits/1e6)
	}
}
