package statusbyte

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
)

func benchStatusByte(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := Command()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage(err) })
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// The names that scripts may rely on.
func TestNames(t *testing.T) {
	have := names(experiments())
	for _, want := range []string{
		"sync_latency_3blocks", "sync_latency_64blocks", "latency_64B", "latency_4KiB", "latency_8MiB", "latency_22MiB", "throughput_64B", "throughput_256B",
		"throughput_8MiB", "throughput_22MiB", "sender_cpu", "retained_block", "cameras12_throughput_cv", "cameras12_cpu", "cameras12_memory",
	} {
		if !slices.Contains(have, want) {
			t.Errorf("no result is called %s", want)
		}
	}
}

// One of each, in memory: the shape, the baseline, the paper's ratios, and both plots.
func TestJSON(t *testing.T) {
	plot := filepath.Join(t.TempDir(), "plot")
	out, err := benchStatusByte(t, "--link", "memory", "--rounds", "1", "--duration", "20ms", "--json", "--plot", plot,
		"--only", "sync_latency_3blocks,latency_256B,throughput_256B,sender_cpu,retained_block,min_queues")
	if err != nil {
		t.Fatal(err)
	}
	var list []map[string]any
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatal(err)
	}
	papers := map[string]any{"sync_latency_3blocks": 0.0729, "latency_256B": nil, "throughput_256B": 4.6, "sender_cpu": 0.8, "retained_block": nil}
	for _, e := range list {
		name := e["name"].(string)
		for _, key := range []string{"value", "unit", "baseline", "baseline_value", "ratio", "spread", "paper"} {
			if _, ok := e[key]; !ok {
				t.Errorf("%s has no %s", name, key)
			}
		}
		if want, ok := papers[name]; ok && (e["paper"] != want || e["baseline"] != "slidingwindow" || e["value"].(float64) <= 0) {
			t.Errorf("%v", e)
		}
		ratio, told := e["ratio"].(float64) // null if the rounds scatter too far
		if base := e["baseline_value"].(float64); base > 0 && told && math.Abs(ratio-e["value"].(float64)/base) > 0.01 {
			t.Errorf("%v: the ratio is wrong", e)
		}
	}
	if len(list) != len(papers)+len(queueNames) {
		t.Errorf("%d results", len(list))
	}
	for _, ext := range []string{".svg", ".png"} {
		if info, err := os.Stat(plot + ext); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", ext, err)
		}
	}
}

// A trace is of blocks of the size that was asked for: a capture of each transport, and what a block costs. Of 64 KiB the
// data alone is 16 frames; a status byte is one more.
func TestTrace(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "trace")
	out, err := benchStatusByte(t, "--link", "memory", "--rounds", "1", "--duration", "20ms", "--only", "throughput_64KiB", "--trace", dir, "--trace-size", "64KiB")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(out, "A block of 64 KiB")
	if !ok {
		t.Fatal(out)
	}
	frames := map[string]float64{laneStatus: 17, laneWindow: 16}
	for _, line := range strings.Split(table, "\n") {
		cells := strings.Fields(line)
		if len(cells) != 10 || frames[cells[0]] == 0 {
			continue
		}
		if n, err := strconv.ParseFloat(cells[6], 64); err != nil || n < frames[cells[0]] || n > 2*frames[cells[0]] {
			t.Errorf("%q: %v frames out, %v", line, n, err)
		}
		delete(frames, cells[0])
		if info, err := os.Stat(filepath.Join(dir, cells[0]+".pcap")); err != nil || info.Size() < traceBlocks*64*kib {
			t.Errorf("%s: %v", cells[0], err)
		}
	}
	if len(frames) > 0 {
		t.Errorf("no line of %v in %q", frames, table)
	}
}

// The least queues are what the mechanisms are made of: found by trying, and the same on any machine.
func TestLeastQueues(t *testing.T) {
	w, err := newWorld(linkMemory, []int{0, 0}, manual)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.close() }()
	l, err := w.leastQueues(t.Context(), laneStatus, blocks)
	if err != nil || l != (least{sendQP: 2, sendCQ: 1, recvQP: 0, recvCQ: 1}) {
		t.Errorf("%+v, %v", l, err)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range []string{"--only frobnicate", "--rounds 0", "--link tokenring", "--cpus 1,2,3", "--trace-size 0", "--trace-size 23MiB", "x"} {
		if _, err := benchStatusByte(t, strings.Fields(args)...); cli.Status(err) != cli.StatusUsage {
			t.Errorf("%q: %v; want a usage error", args, err)
		}
	}
}

// A turn's throughput is its frames by the time until the last of them.
func TestRates(t *testing.T) {
	const ms = 1_000_000
	a := arrivals{at: []int64{50 * ms, 5 * ms, 2 * ms, 42 * ms}}
	at, rate := a.rates(0, 0, 80*ms)
	if len(rate) != 2 || at[1] != 40 || math.Abs(rate[0]-2*cameraFrame/5e3) > 1e-6 || math.Abs(rate[1]-2*cameraFrame/10e3) > 1e-6 {
		t.Errorf("%v %v", at, rate)
	}
}

func TestKept(t *testing.T) {
	bins := make([]float64, int(retainEnd/retainBin))
	for i := range bins {
		if bins[i] = 100; i >= int(retainFrom/retainBin) && i < int(retainTo/retainBin) {
			bins[i] = 88
		}
	}
	if got := kept(bins); math.Abs(got-88) > 1e-6 {
		t.Errorf("%v", got)
	}
}
