package bench

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/papers/kit"
)

// What scripts may rely on: these figures against these baselines.
func TestPromisedRows(t *testing.T) {
	have := map[string][]string{}
	for _, f := range figures() {
		for _, r := range f.results(nil) {
			have[r.Name] = append(have[r.Name], r.Baseline)
		}
	}
	for name, baselines := range map[string][]string{
		"write_rate_64B":         {"afxdp"},
		"write_bw_64KiB_mtu1024": {"afxdp", "afxdp-copy", "tcp", "tcp-notso"},
		"write_bw_64KiB_mtu4096": {"afxdp", "afxdp-copy", "tcp", "tcp-notso"},
		"write_lat_8B":           {"afxdp", "tcp", "udp"},
		"goodput_1pct_loss":      {"lossless"},
	} {
		for _, b := range baselines {
			if !slices.Contains(have[name], b) {
				t.Errorf("%s is not set against %s", name, b)
			}
		}
	}
}

// Every row's lanes are measured, on the veth pair and in memory.
func TestRowsHaveLanes(t *testing.T) {
	for _, f := range slices.Concat(figures(), memoryFigures()) {
		if len(f.rows) == 0 {
			t.Errorf("%s is compared with nothing", f.name)
		}
		for i := range f.rows {
			lane, against := f.rows[i].lanes()
			for _, name := range []string{lane, against} {
				if !slices.ContainsFunc(f.lanes, func(l competitor) bool { return l.name == name }) {
					t.Errorf("%s needs lane %s, which is not measured", f.name, name)
				}
			}
		}
	}
}

// competitor is lane, where a variable hides that name.
type competitor = lane

// Bare frames are as long as those that gorxe puts on the wire for the same messages.
func TestFrameSize(t *testing.T) {
	for _, c := range []struct {
		size int
		mtu  bth.MTU
		want int
	}{
		{64, 4096, 14 + 20 + 8 + 12 + 16 + 64 + 4}, // RC RDMA WRITE Only: with RETH
		{65536, 1024, 14 + 20 + 8 + 12 + 1024 + 4}, // RC RDMA WRITE Middle: without
		{65536, 4096, 14 + 20 + 8 + 12 + 4096 + 4},
	} {
		s := spec{Size: c.size, MTU: c.mtu}
		if got := s.frameSize(); got != c.want {
			t.Errorf("%d bytes at MTU %d: %d, want %d", c.size, c.mtu, got, c.want)
		}
	}
}

// Values come out in the figure's unit, whoever of the two sides counted, and CPU time is that of both and of the kernel's threads.
func TestSample(t *testing.T) {
	second := outcome{Messages: 1e6, All: 2e6, Elapsed: time.Second}
	cpu := outcome{CPU: 200 * time.Millisecond}
	for _, c := range []struct {
		name string
		f    figure
		s    spec
		a, b outcome
		want sample
	}{
		{"rate, sender counts", figure{unit: unitRate}, spec{Size: 64, MTU: 4096}, second, cpu, sample{value: 1}},
		{"bandwidth, sender counts", figure{unit: unitBW}, spec{Kind: kindGorxe, Size: 1000, MTU: 4096}, second, cpu, sample{value: 8, cpu: 0.15}},
		{"bandwidth, receiver counts", figure{unit: unitBW}, spec{Kind: kindTCP, Size: 1000, MTU: 4096}, cpu, second, sample{value: 8, cpu: 0.15}},
		{"bare frames count for their payload", figure{unit: unitBW}, spec{Kind: kindBare, Size: 65536, MTU: 1000}, cpu, second, sample{value: 8, cpu: 0.15}},
		{"latency", figure{unit: unitLatency}, spec{}, outcome{Messages: 9, All: 9, Elapsed: 1, P50: 2500, P99: 9000}, cpu, sample{value: 2.5, p99: 9}},
	} {
		got, err := c.f.sample(&c.s, &c.a, &c.b, 100*time.Millisecond)
		if err != nil || math.Abs(got.value-c.want.value) > 1e-9 || math.Abs(got.cpu-c.want.cpu) > 1e-9 || got.p99 != c.want.p99 {
			t.Errorf("%s: %+v, %v; want %+v", c.name, got, err, c.want)
		}
	}
}

// Where nothing arrived there is no figure.
func TestEmptySample(t *testing.T) {
	f := figure{unit: unitBW}
	for _, b := range []outcome{{}, {Messages: 1000}} {
		if _, err := f.sample(&spec{Duration: time.Second}, &outcome{}, &b, 0); !errors.Is(err, errNothing) {
			t.Errorf("%+v: %v; want errNothing", b, err)
		}
	}
}

// What happens now and then is measured in few rounds, and longer; in the first of them, so that one round has everything.
func TestRareFigures(t *testing.T) {
	often, rare := figure{lanes: []lane{laneGorxe}}, figure{lanes: []lane{laneGorxe, laneTCP}, rare: true}
	b := &bench{figures: []figure{often, rare}, duration: time.Second}
	for rounds, want := range map[int]int{1: 3, 5: 5 + 2, 6: 6 + 4, 25: 25 + 10} {
		if b.rounds = rounds; b.steps() != want {
			t.Errorf("%d measurements in %d rounds, want %d", b.steps(), rounds, want)
		}
	}
	if b.durationOf(&often) != time.Second || b.durationOf(&rare) != rarely*time.Second {
		t.Errorf("they take %v and %v", b.durationOf(&often), b.durationOf(&rare))
	}
}

// Medians of the rounds, their ratio, and the spread of the single rounds' ratios.
func TestResults(t *testing.T) {
	f := figure{name: "f", unit: unitBW, rows: []row{{baseline: "afxdp"}, {name: "g", lane: "tcp", baseline: "lossless", against: "other"}}}
	list := f.results(map[string][]sample{
		"gorxe": {{value: 8, cpu: 1, retransmits: 2}, {value: 2, cpu: 3}, {value: 6, cpu: 2, retransmits: 1}},
		"afxdp": {{value: 10}, {value: 10}, {value: 12}},
		"tcp":   {{value: 1}}, "other": {{value: 4}},
	})
	want := Result{Row: kit.Row{Name: "f", Value: 6, Unit: unitBW, Baseline: "afxdp", BaselineValue: 10, Spread: 1.2}, CPU: 2, Retransmits: 3}
	if list[0] != want { // no ratio: the rounds scatter too far
		t.Errorf("got  %+v\nwant %+v", list[0], want)
	}
	if r := list[1]; r.Name != "g" || r.Baseline != "lossless" || *r.Ratio != 0.25 {
		t.Errorf("%+v; want g at 0.25 of lossless", r)
	}
}
