package bench

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/kit"
)

// shortRun runs a round of a second or two. It takes longer if the machine is so busy that nothing
// arrives in that time.
func shortRun(t *testing.T, args ...string) (stdout string) {
	t.Helper()
	for _, d := range []string{"30ms", "300ms", "2s"} {
		args := append([]string{"--rounds", "1", "--duration", d}, args...)
		out, stderr, err := gorxeBench(t.Context(), args...)
		if err == nil {
			return out
		}
		if !errors.Is(err, kit.ErrIdle) {
			t.Fatalf("%v\n%s", err, stderr)
		}
	}
	t.Fatal(kit.ErrIdle)
	return ""
}

// checkResults checks the output of --json.
func checkResults(t *testing.T, out string, names, baselines []string) {
	t.Helper()
	var haveNames, haveBaselines []string
	for _, e := range results(t, out) {
		value, base := e["value"].(float64), e["baseline_value"].(float64)
		ratio, ok := e["ratio"].(float64)
		if ok != (e["spread"].(float64) <= kit.MaxSpread) {
			t.Errorf("%v: want a ratio if, and only if, the spread is at most %v", e, kit.MaxSpread)
		}
		// All three are rounded. For a small baseline (TCP with many losses) this changes the
		// ratio by more than its last digit.
		const rounded = 1e-4
		if value <= 0 || base <= 0 {
			t.Errorf("%v: want positive values", e)
		}
		if ok && math.Abs(ratio-value/base) > 0.001+ratio*rounded/base {
			t.Errorf("%v: want ratio %v", e, value/base)
		}
		haveNames = append(haveNames, e["name"].(string))
		haveBaselines = append(haveBaselines, e["baseline"].(string))
	}
	for _, n := range names {
		if !slices.Contains(haveNames, n) {
			t.Errorf("no result is called %s", n)
		}
	}
	for _, b := range baselines {
		if !slices.Contains(haveBaselines, b) {
			t.Errorf("no result has baseline %s", b)
		}
	}
}

func TestBenchOnVeth(t *testing.T) {
	needRoot(t)
	plot := filepath.Join(t.TempDir(), "bench.svg")
	checkResults(t, shortRun(t, "--json", "--plot", plot),
		[]string{
			"write_rate_64B", "write_bw_64KiB_mtu1024", "write_bw_64KiB_mtu4096", "write_lat_8B",
			"goodput_1pct_loss",
		},
		[]string{"afxdp", "tcp", "tcp-notso", "udp", "lossless"})
	checkPlots(t, plot)
}

func TestBenchInMemory(t *testing.T) {
	plot := filepath.Join(t.TempDir(), "bench.png")
	out := shortRun(t, "--json", "--memory", "--only", "write_rate_64B,goodput_1pct_loss", "--plot",
		plot)
	checkResults(t, out, []string{"write_rate_64B", "goodput_1pct_loss"}, []string{"lossless"})
	checkPlots(t, plot)
}

// The table names the data path and every figure.
func TestBenchTable(t *testing.T) {
	out := shortRun(t, "--memory", "--only", "write_bw_64KiB_mtu4096")
	for _, want := range []string{"in-memory link", "write_bw_64KiB_mtu4096", "Gb/s", "ratio",
		"spread"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// A signal ends the run at once.
func TestBenchInterrupted(t *testing.T) {
	needRoot(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(500*time.Millisecond, func() { cancel(cli.ErrInterrupted) })
	start := time.Now()
	_, _, err := gorxeBench(ctx, "--duration", "1m", "--rounds", "1", "--only", "write_lat_8B")
	if !errors.Is(err, cli.ErrInterrupted) {
		t.Errorf("got %v, want ErrInterrupted", err)
	}
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("the run ended after %v", d)
	}
}
