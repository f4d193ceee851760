package bench

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/papers/statusbyte"
)

// One experiment of each kind, in memory: the keys, the baseline, the paper's ratios, and both
// plots.
func TestStatusByteJSON(t *testing.T) {
	plot := filepath.Join(t.TempDir(), "plot")
	out := run(t, "statusbyte", "--link", "memory", "--rounds", "1", "--duration", "20ms", "--json",
		"--plot", plot, "--only",
		"sync_latency_3blocks,latency_256B,throughput_256B,sender_cpu,retained_block,min_queues")
	papers := map[string]any{
		"sync_latency_3blocks": 0.0729, "latency_256B": nil, "throughput_256B": 4.6,
		"sender_cpu":     0.8,
		"retained_block": nil,
	}
	list := results(t, out, "paper")
	for _, e := range list {
		want, ok := papers[e["name"].(string)]
		if ok && (e["paper"] != want || e["baseline"] != "slidingwindow" ||
			e["value"].(float64) <= 0) {
			t.Errorf("%v: want a positive value, baseline slidingwindow and paper %v", e, want)
		}
		ratio, ok := e["ratio"].(float64) // null if the rounds differ too much
		base := e["baseline_value"].(float64)
		// The figures are rounded, so the tolerance grows with the ratio.
		if base > 0 && ok && math.Abs(ratio-e["value"].(float64)/base) > 0.01+ratio/1000 {
			t.Errorf("%v: want ratio %v", e, e["value"].(float64)/base)
		}
	}
	const queues = 4 // results of min_queues
	if len(list) != len(papers)+queues {
		t.Errorf("got %d results, want %d", len(list), len(papers)+queues)
	}
	checkPlots(t, plot+".svg", plot+".png")
}

// --trace captures blocks of the given size with both transports and prints what a block costs. The
// data of 64 KiB is 16 packets; a status byte is one more.
func TestStatusByteTrace(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "trace")
	out := run(t, "statusbyte", "--link", "memory", "--rounds", "1", "--duration", "20ms",
		"--only", "throughput_64KiB", "--trace", dir, "--trace-size", "64KiB")
	_, table, ok := strings.Cut(out, "A block of 64 KiB")
	if !ok {
		t.Fatalf("no costs of a block in:\n%s", out)
	}
	packets := map[string]float64{"statusbyte": 17, "slidingwindow": 16}
	for _, line := range strings.Split(table, "\n") {
		cells := strings.Fields(line)
		if len(cells) != 10 || packets[cells[0]] == 0 {
			continue
		}
		want := packets[cells[0]]
		if n, err := strconv.ParseFloat(cells[6], 64); err != nil || n < want || n > 2*want {
			t.Errorf("%q: %v packets out, %v, want %v to %v", line, n, err, want, 2*want)
		}
		delete(packets, cells[0])
		info, err := os.Stat(filepath.Join(dir, cells[0]+".pcap"))
		if err != nil || info.Size() < statusbyte.TraceBlocks*64<<10 {
			t.Errorf("the capture of %s is missing or too short: %v", cells[0], err)
		}
	}
	if len(packets) > 0 {
		t.Errorf("no line for %v in %q", packets, table)
	}
}
