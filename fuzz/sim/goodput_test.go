package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// goodputTable is the goodput by loss: 64 KiB operations, 16 outstanding, on one RC QP, on a link
// of 10 Gb/s with 5 us in each direction, in virtual time. Megabits per second, the mean of
// several seeds. If a change of the protocol changes a figure for the better or for a good
// reason, take the new figure, which the test prints.
var goodputTable = []struct {
	op      roce.Op
	mtu     roce.MTU
	goBackN bool
	shared  bool       // all operations use the same memory
	was     [5]float64 // by loss
}{
	{roce.OpWrite, 1024, false, false, [5]float64{9463, 9452, 9366, 4945, 721}},
	{roce.OpWrite, 4096, false, false, [5]float64{9850, 9836, 9754, 9167, 2456}},
	{roce.OpRead, 1024, false, false, [5]float64{9464, 9423, 9193, 1633, 143}},
	{roce.OpRead, 4096, false, false, [5]float64{9854, 9836, 9281, 4364, 477}},
	{roce.OpRead, 4096, false, true, [5]float64{9854, 9836, 9281, 4364, 477}},
	{roce.OpSend, 4096, false, false, [5]float64{9852, 9838, 9756, 9136, 2178}},
	{roce.OpWrite, 4096, true, false, [5]float64{9850, 8673, 6624, 5689, 758}},
	{roce.OpRead, 4096, true, false, [5]float64{9854, 9748, 9251, 5190, 989}},
}

var losses = [5]float64{0, 0.001, 0.01, 0.05, 0.2}

const (
	goodputSeeds = 4
	// heavySeeds is the number of seeds for 20 % loss, where the figures of seeds differ by a
	// factor of 20.
	heavySeeds      = 16
	tooLow, tooHigh = 0.7, 1.5 // shares of the table's figure that count as the same
)

func TestGoodputByLoss(t *testing.T) {
	for _, row := range goodputTable {
		name := fmt.Sprintf("%v, path MTU %d, go-back-N %v, shared memory %v", row.op, row.mtu,
			row.goBackN, row.shared)
		line := name + ":"
		for i, loss := range losses {
			got := meanGoodput(t, &Stream{Op: row.op, MTU: row.mtu, GoBackN: row.goBackN,
				Shared: row.shared, Plan: loopback.Plan{Loss: loss}})
			line += fmt.Sprintf("  %g %%: %.0f", loss*100, got)
			if got < tooLow*row.was[i] || got > tooHigh*row.was[i] {
				t.Errorf("%s, %g %% loss: %.0f Mb/s, the table says %.0f", name, loss*100, got,
					row.was[i])
			}
		}
		t.Log(line)
	}
}

func meanGoodput(t *testing.T, s *Stream) float64 {
	s.Size, s.Depth, s.Count = 64<<10, 16, 300
	seeds := uint64(goodputSeeds)
	if s.Plan.Loss == 0.2 {
		s.Count, seeds = 60, heavySeeds
	}
	s.Plan.Delay, s.Plan.Bandwidth = 5*time.Microsecond, 10e9
	sum := 0.0
	for s.Seed = range seeds {
		g, err := Measure(*s)
		if err != nil {
			t.Errorf("%+v: %v", *s, err)
		}
		sum += g.Bits / 1e6
	}
	return sum / float64(seeds)
}

// On a link with space for few frames many QPs compete. All of them must make progress, and the
// link must not be full of retransmissions.
func TestCrowdedLink(t *testing.T) {
	for _, op := range []roce.Op{roce.OpWrite, roce.OpRead} {
		for _, c := range []struct {
			qps, queue int
			least      float64 // Mb/s of 10,000
		}{
			{4, 16384, 7000}, // space for all: nothing is lost, only the round trip grows
			{4, 64, 6000},
			{16, 64, 4000},
			{64, 32, 2000},
		} {
			g, err := Measure(Stream{Seed: 1, Op: op, Size: 64 << 10, Count: 800, Depth: 8,
				MTU: 1024, QPs: c.qps, Queue: c.queue,
				Plan: loopback.Plan{Delay: 5 * time.Microsecond, Bandwidth: 10e9}})
			if err != nil || g.Bits/1e6 < c.least {
				t.Errorf("%v, %d QPs, queue of %d frames: %.0f Mb/s, want %.0f (%v)", op, c.qps,
					c.queue, g.Bits/1e6, c.least, err)
			}
			t.Logf("%v, %d QPs, queue of %d frames: %.0f Mb/s, %d packets sent again", op, c.qps,
				c.queue, g.Bits/1e6, g.Retransmits)
		}
	}
}

// The same Stream gives the same figures.
func TestMeasureRepeats(t *testing.T) {
	s := Stream{Seed: 5, Op: roce.OpWrite, Size: 20000, Count: 200, Depth: 4, MTU: 1024,
		Plan: loopback.Plan{Loss: 0.05, Reorder: 0.05, Delay: time.Microsecond}}
	a, err := Measure(s)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := Measure(s); a != b || err != nil {
		t.Errorf("%+v, then %+v (%v)", a, b, err)
	}
}
