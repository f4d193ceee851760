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

// Scripts rely on these figures and baselines.
func TestStableRows(t *testing.T) {
	have := map[string][]string{}
	for _, f := range figures([]string{portXDP, portUDP}) {
		for _, r := range f.results(nil) {
			if r.Port == portXDP {
				have[r.Name] = append(have[r.Name], r.Baseline)
			}
		}
	}
	for name, baselines := range map[string][]string{
		"write_rate_64B":         {"afxdp", "udp", "udp-gso"},
		"write_bw_64KiB_mtu1024": {"afxdp", "afxdp-copy", "tcp", "tcp-notso", "udp-gso"},
		"write_bw_64KiB_mtu4096": {"afxdp", "afxdp-copy", "tcp", "tcp-notso", "udp-gso"},
		"read_bw_64KiB_mtu4096":  {"write"},
		"send_bw_64KiB_mtu1024":  {"write"},
		"write_lat_8B":           {"afxdp", "tcp", "udp"},
		"goodput_1pct_loss":      {"lossless"},
	} {
		for _, b := range baselines {
			if !slices.Contains(have[name], b) {
				t.Errorf("%s is not compared with %s", name, b)
			}
		}
	}
}

// Each port has the same rows, compared with the baselines or with other lanes of the same port.
// Rows without gorxe are there once.
func TestPorts(t *testing.T) {
	for _, ports := range [][]string{{portXDP, portUDP}, {portUDP}, Ports()} {
		count := map[string]int{}
		for _, f := range figures(ports) {
			for i := range f.rows {
				lane, against := f.rows[i].lanes()
				own, other := f.portOf(lane), f.portOf(against)
				if other != "" && other != own {
					t.Errorf("%s compares port %q with port %q", f.name, own, other)
				}
				count[own]++
			}
		}
		if len(count) != len(ports)+1 || count[""] != 1 {
			t.Errorf("ports %v: rows %v, want the same number for each port, and 1 of the kernel",
				ports, count)
		}
		for _, p := range ports {
			if count[p] != count[ports[0]] {
				t.Errorf("%d rows of port %s, and %d of %s", count[p], p, count[ports[0]], ports[0])
			}
		}
	}
}

// The lanes of every row are measured, on the veth pair and in memory.
func TestRowsHaveLanes(t *testing.T) {
	for _, f := range slices.Concat(figures(Ports()), memoryFigures()) {
		if len(f.rows) == 0 {
			t.Errorf("%s has no rows", f.name)
		}
		for i := range f.rows {
			lane, against := f.rows[i].lanes()
			for _, name := range []string{lane, against} {
				if !slices.ContainsFunc(f.lanes,
					func(l competitor) bool { return l.name == name }) {
					t.Errorf("%s has no lane %s", f.name, name)
				}
			}
		}
	}
}

// competitor is lane where a variable has that name.
type competitor = lane

// Bare frames have the size of gorxe's packets for the same messages.
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
			t.Errorf("frameSize() = %d for %d bytes at MTU %d, want %d", got, c.size, c.mtu, c.want)
		}
	}
}

// Values are in the unit of the figure, whichever side counted. CPU time is that of both sides
// and of the kernel's threads.
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
		{"rate, sender counts", figure{unit: unitRate}, spec{Size: 64, MTU: 4096}, second, cpu,
			sample{value: 1}},
		{"bandwidth, sender counts", figure{unit: unitBW},
			spec{Kind: kindGorxe, Size: 1000, MTU: 4096}, second, cpu, sample{value: 8, cpu: 0.15}},
		{"bandwidth, receiver counts", figure{unit: unitBW},
			spec{Kind: kindTCP, Size: 1000, MTU: 4096}, cpu, second, sample{value: 8, cpu: 0.15}},
		{"only the payload of bare frames counts", figure{unit: unitBW},
			spec{Kind: kindBare, Size: 65536, MTU: 1000}, cpu, second, sample{value: 8, cpu: 0.15}},
		{"latency", figure{unit: unitLatency}, spec{},
			outcome{Messages: 9, All: 9, Elapsed: 1, P50: 2500, P99: 9000}, cpu,
			sample{value: 2.5, p99: 9}},
	} {
		got, err := c.f.sample(&c.s, &c.a, &c.b, 100*time.Millisecond)
		if err != nil || math.Abs(got.value-c.want.value) > 1e-9 ||
			math.Abs(got.cpu-c.want.cpu) > 1e-9 || got.p99 != c.want.p99 {
			t.Errorf("%s: sample() = %+v, %v, want %+v", c.name, got, err, c.want)
		}
	}
}

// A measurement in which nothing arrived has no value.
func TestEmptySample(t *testing.T) {
	f := figure{unit: unitBW}
	for _, b := range []outcome{{}, {Messages: 1000}} {
		if _, err := f.sample(&spec{Duration: time.Second}, &outcome{}, &b, 0); !errors.Is(err,
			kit.ErrIdle) {
			t.Errorf("sample(%+v) = %v, want ErrIdle", b, err)
		}
	}
}

// Figures with rare events are measured in few rounds, but longer. The first round has all figures.
func TestRareFigures(t *testing.T) {
	often, rare := figure{lanes: []lane{laneGorxe}}, figure{lanes: []lane{laneGorxe, laneTCP},
		rare: true}
	b := &bench{figures: []figure{often, rare},
		Config: Config{Options: kit.Options{Duration: time.Second}}}
	for rounds, want := range map[int]int{1: 3, 5: 5 + 2, 6: 6 + 4, 25: 25 + 10} {
		if b.Rounds = rounds; b.steps() != want {
			t.Errorf("steps() = %d in %d rounds, want %d", b.steps(), rounds, want)
		}
	}
	if b.durationOf(&often) != time.Second || b.durationOf(&rare) != rareRounds*time.Second {
		t.Errorf("durations are %v and %v, want 1s and 5s", b.durationOf(&often),
			b.durationOf(&rare))
	}
}

// Results have the medians of the rounds, their ratio, and the spread of the ratios of single
// rounds.
func TestResults(t *testing.T) {
	f := figure{name: "f", unit: unitBW,
		rows: []row{{baseline: "afxdp"},
			{name: "g", lane: "tcp", baseline: "lossless", against: "other"}}}
	list := f.results(map[string][]sample{
		"gorxe": {{value: 8, cpu: 1, retransmits: 2}, {value: 2, cpu: 3},
			{value: 6, cpu: 2, retransmits: 1}},
		"afxdp": {{value: 10}, {value: 10}, {value: 12}},
		"tcp":   {{value: 1}}, "other": {{value: 4}},
	})
	want := Result{Row: kit.Row{Name: "f", Value: 6, Unit: unitBW, Baseline: "afxdp",
		BaselineValue: 10, Spread: 1.2}, CPU: 2, Retransmits: 3}
	if list[0] != want { // no ratio: the rounds differ too much
		t.Errorf("result is %+v, want %+v", list[0], want)
	}
	if r := list[1]; r.Name != "g" || r.Baseline != "lossless" || *r.Ratio != 0.25 {
		t.Errorf("result is %+v, want g at 0.25 of lossless", r)
	}
}
