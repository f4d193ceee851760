package deterministic

import (
	"context"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/stat"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/papers/kit"
)

// ratio returns the longest latency of the highest priority divided by the shortest one, in the
// slowest runs of a seed.
func ratio(t *testing.T, m method, seed uint64, size int, more ...phases) float64 {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, uint64(size)))
	var runs []phases
	for range hpRuns {
		runs = append(runs, randomPhases(r, size))
	}
	runs = append(append(slowest(runs, size, hpSlowest), apart), more...)
	list, err := latencies(t.Context(), m, seed, size, runs)
	if err != nil {
		t.Fatal(err)
	}
	return float64(slices.Max(list)) / float64(slices.Min(list))
}

// Standard RDMA is within 15 % of the paper's 2.31, and classes are constant within 1 %, in all
// phases.
func TestThreePriorities(t *testing.T) {
	const size = 1 << 20
	var base []float64
	for seed := range uint64(3) {
		base = append(base, ratio(t, noClasses, seed, size))
		if got := ratio(t, classes, seed, size, adversarial(size)...); got > 1.01 {
			t.Errorf("classes, seed %d: maximum / minimum = %.4f, want at most 1.01", seed, got)
		}
	}
	if got := stat.Median(base) / *paperRatio; got < 0.85 || got > 1.15 {
		t.Errorf("no classes: maximum / minimum = %v, want %.2f within 15 %%", base, *paperRatio)
	}
	once, err := latencies(t.Context(), noClasses, 0, size, adversarial(size)[:1])
	if err != nil {
		t.Fatal(err)
	}
	if got := float64(once[0]) / float64(transmission(size)); got < 2.95 || got > 3.05 {
		t.Errorf("no classes, all at once: %.3f times the time alone, want 3", got)
	}
	if got := ratio(t, classes, 0, 4*size, adversarial(4*size)...); got > 1.01 {
		t.Errorf("classes, 4 MiB: maximum / minimum = %.4f, want at most 1.01", got)
	}
}

// The message with the longest latency is among the slowest ones on an ideal link.
func TestSlowest(t *testing.T) {
	const size = 1 << 20
	r := rand.New(rand.NewPCG(5, 5))
	var runs []phases
	for range 40 {
		runs = append(runs, randomPhases(r, size))
	}
	most := func(runs []phases) time.Duration {
		list, err := latencies(t.Context(), noClasses, 1, size, runs)
		if err != nil {
			t.Fatal(err)
		}
		return slices.Max(list)
	}
	if all, few := most(runs), most(slowest(runs, size, hpSlowest)); all-few > all/100 {
		t.Errorf("longest latency %v in all runs, %v in the slowest ones", all, few)
	}
}

func TestPacketOrder(t *testing.T) {
	for _, c := range []struct {
		m           method
		least, most float64
	}{{classes, 1, 1}, {wholeLayer, 1, 1}, {noClasses, 0.3, 0.7}} {
		got, err := packetOrder(t.Context(), c.m, 1)
		if err != nil {
			t.Fatal(err)
		}
		if got < c.least || got > c.most {
			t.Errorf("%s: %.4f of the packets in order, want %v to %v", c.m.name, got, c.least,
				c.most)
		}
	}
}

// The latency of the high class grows with P, the goodput of the low class does not suffer from
// preemption points of the engine, but from those of the layer.
func TestSweep(t *testing.T) {
	whole, base, err := interference(t.Context(), method{classes: true, part: bulkSize}, 1)
	if err != nil {
		t.Fatal(err)
	}
	packet, rate, err := interference(t.Context(), method{classes: true, part: pathMTU}, 1)
	if err != nil {
		t.Fatal(err)
	}
	least := transmission(sweepSize).Seconds()
	if most := least + 4*transmission(pathMTU).Seconds(); packet < least || packet > most {
		t.Errorf("preempted after each packet: latency %v s, want %v to %v", packet, least, most)
	}
	if whole < 5*packet || rate < 0.99*base {
		t.Errorf("preempted at the end of messages: latency %v s, goodput %v Mb/s; after each "+
			"packet %v and %v", whole, base, packet, rate)
	}
	if _, slow, err := interference(t.Context(), method{layer: true, part: pathMTU},
		1); err != nil ||
		slow > 0.5*rate {
		t.Errorf("layer with a part for each packet: goodput %v Mb/s, %v", slow, err)
	}
}

// A distributed neural network is not slower beside bulk traffic.
func TestYOLO(t *testing.T) {
	free, err := yolo(t.Context(), classes, 1, false)
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := yolo(t.Context(), classes, 1, true)
	if err != nil {
		t.Fatal(err)
	}
	if paper := *paperYOLOBase / 1e3; free < 0.97*paper || free > 1.03*paper {
		t.Errorf("alone %v s, want %v within 3 %%", free, paper)
	}
	if loaded-free > 100e-6 {
		t.Errorf("beside bulk traffic %v s, alone %v", loaded, free)
	}
	if slow, err := yolo(t.Context(), noClasses, 1, true); err != nil || slow < 1.2*free {
		t.Errorf("no classes, beside bulk traffic: %v s, %v, alone %v", slow, err, free)
	}
}

// The task at 100 Hz has the highest priority: it waits for three frames at most.
func TestTwoRates(t *testing.T) {
	jitter, err := multiRate(t.Context(), classes, 1)
	if err != nil {
		t.Fatal(err)
	}
	if most := 3 * transmission(pathMTU); jitter[1] > most {
		t.Errorf("jitter at 100 Hz %v, want at most %v", jitter[1], most)
	}
	// The task at 30 Hz is preempted by one frame of the other task at most.
	if most := transmission(frameSize) + 3*transmission(pathMTU); jitter[0] > most {
		t.Errorf("jitter at 30 Hz %v, want at most %v", jitter[0], most)
	}
	other, err := multiRate(t.Context(), splitLayer, 1)
	if err != nil {
		t.Fatal(err)
	}
	if other[1] <= jitter[1] || other[1] > 2*transmission(64<<10) {
		t.Errorf("layer: jitter at 100 Hz %v, classes %v", other[1], jitter[1])
	}
}

func TestOverload(t *testing.T) {
	for _, c := range []struct {
		m    method
		want float64
	}{{classes, 1}, {splitLayer, 1}, {noClasses, 0}} {
		o, err := overload(t.Context(), c.m, 1)
		if err != nil {
			t.Fatal(err)
		}
		if o.inTime[high] != c.want {
			t.Errorf("%s: %v of the high class in time, want %v", c.m.name, o.inTime[high], c.want)
		}
	}
}

// A lost packet delays only its own class and lower ones.
func TestLoss(t *testing.T) {
	cost, err := losses(t.Context(), classes, 1)
	if err != nil {
		t.Fatal(err)
	}
	frame := transmission(pathMTU)
	for k, at := range lossAt {
		for i := range cost[k] {
			if got := cost[k][i][i]; got <= 0 || got > 3*time.Millisecond {
				t.Errorf("%s packet of %d: its message is delayed by %v", at.name, i, got)
			}
			for j := i + 1; j < len(cost[k]); j++ {
				if got := cost[k][i][j].Abs(); got > 2*frame {
					t.Errorf("%s packet of %d: message %d is delayed by %v, want at most %v",
						at.name, i, j, got, 2*frame)
				}
			}
		}
	}
}

// run runs experiments in memory.
func run(t *testing.T, link string, only ...string) *Report {
	t.Helper()
	c := DefaultConfig()
	c.Link, c.Rounds, c.Only, c.Duration = link, 1, only, 50*time.Millisecond
	r, err := Run(t.Context(), c, io.Discard)
	if testbed.Unavailable(err) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Virtual time gives the same figures every time, and each figure has its fields.
func TestRun(t *testing.T) {
	a := run(t, kit.Memory, "latency_4MB", "order_3x4", "loss")
	b := run(t, kit.Memory, "latency_4MB", "order_3x4", "loss")
	if want := 2*len(baselines) + 9; len(a.Results) != want {
		t.Errorf("%d results, want %d", len(a.Results), want)
	}
	for i := range a.Results {
		x, y := &a.Results[i], &b.Results[i]
		if x.Value != y.Value || x.BaselineValue != y.BaselineValue || x.Note != y.Note {
			t.Errorf("%+v in the first run, %+v in the second", x, y)
		}
		if x.Unit == "" || x.Baseline == "" {
			t.Errorf("%+v: no unit or baseline", x)
		}
	}
	if f := a.Results[0]; f.Name != "latency_4MB" || f.Value < 35 || f.Value > 38 ||
		*f.Paper != 37 {
		t.Errorf("%+v, want latency_4MB of 35 to 38 ms with the paper's 37", f)
	}
	var table strings.Builder
	if err := a.WriteTable(&table); err != nil || !strings.Contains(table.String(), "no_classes") {
		t.Errorf("table %q, %v", table.String(), err)
	}
	if n := len(a.Panels()); n != 1 {
		t.Errorf("%d panels, want 1: bars of order_3x4", n)
	}
}

// Scripts rely on the names.
func TestNames(t *testing.T) {
	have := Names()
	for _, name := range []string{"hp_latency_1MB", "hp_latency_32MB", "order_3x4", "overhead_64KB",
		"overhead_1MB", "overhead_32MB", "latency_4MB", "yolo_end_to_end", "sweep_P",
		"rates_30_100Hz", "overload"} {
		if !slices.Contains(have, name) {
			t.Errorf("no experiment is called %s: %v", name, have)
		}
	}
}

func TestRealTime(t *testing.T) {
	links := []string{kit.Memory}
	if os.Geteuid() == 0 {
		links = append(links, kit.Veth)
	}
	for _, link := range links {
		t.Run(link, func(t *testing.T) {
			r := run(t, link, "overhead_64KB", "class7")
			for i := range r.Results {
				if f := &r.Results[i]; f.BaselineValue <= 0 {
					t.Errorf("%+v, want a latency", f)
				}
			}
			if n := len(r.Panels()); n != 1 {
				t.Errorf("%d panels, want 1: the overhead", n)
			}
		})
	}
}

// A canceled context ends a run.
func TestCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := DefaultConfig()
	c.Link, c.Only = kit.Memory, []string{"hp_latency_1MB", "class7"}
	if _, err := Run(ctx, c, io.Discard); err == nil {
		t.Error("Run() with a canceled context = nil")
	}
}
