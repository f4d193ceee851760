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
// goodputSeeds seeds. If a change of the protocol changes a figure for the better or for a good
// reason, take the new figure, which the test prints.
var goodputTable = []struct {
	op  roce.Op
	mtu roce.MTU
	was [5]float64 // by loss
}{
	{roce.OpWrite, 1024, [5]float64{9463, 8828, 5427, 2216, 252}},
	{roce.OpWrite, 4096, [5]float64{9850, 8947, 7894, 5086, 764}},
	{roce.OpRead, 1024, [5]float64{9464, 8584, 4500, 1390, 108}},
	{roce.OpRead, 4096, [5]float64{9854, 8430, 7289, 3784, 412}},
	{roce.OpSend, 4096, [5]float64{9852, 8947, 7914, 4969, 835}},
}

var losses = [5]float64{0, 0.001, 0.01, 0.05, 0.2}

const (
	goodputSeeds    = 4
	tooLow, tooHigh = 0.7, 1.5 // shares of the table's figure that count as the same
)

func TestGoodputByLoss(t *testing.T) {
	for _, row := range goodputTable {
		line := fmt.Sprintf("%-10v path MTU %d:", row.op, row.mtu)
		for i, loss := range losses {
			got := meanGoodput(t, row.op, row.mtu, loss)
			line += fmt.Sprintf("  %g %%: %.0f", loss*100, got)
			if got < tooLow*row.was[i] || got > tooHigh*row.was[i] {
				t.Errorf("%v, path MTU %d, %g %% loss: %.0f Mb/s, the table says %.0f", row.op,
					row.mtu, loss*100, got, row.was[i])
			}
		}
		t.Log(line)
	}
}

func meanGoodput(t *testing.T, op roce.Op, mtu roce.MTU, loss float64) float64 {
	count := 300
	if loss > 0.1 {
		count = 60
	}
	sum := 0.0
	for seed := range uint64(goodputSeeds) {
		g, err := Measure(Stream{Seed: seed, Op: op, Size: 64 << 10, Count: count, Depth: 16,
			MTU:  mtu,
			Plan: loopback.Plan{Loss: loss, Delay: 5 * time.Microsecond, Bandwidth: 10e9}})
		if err != nil {
			t.Fatalf("%v, path MTU %d, %g %% loss, seed %d: %v", op, mtu, loss*100, seed, err)
		}
		sum += g.Bits / 1e6
	}
	return sum / goodputSeeds
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
			{64, 32, 800},
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
