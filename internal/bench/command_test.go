package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/spf13/cobra"
)

// TestMain lets the test binary be the sides' program, too.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "bench" && os.Args[2] == sideCommand {
		os.Exit(cli.Run(program(), os.Args[1:]))
	}
	os.Exit(m.Run())
}

func program() *cobra.Command {
	root := &cobra.Command{Use: "gorxe", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(Command())
	return root
}

// gorxeBench is "gorxe bench args".
func gorxeBench(ctx context.Context, args ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	root := program()
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage(err) })
	root.SetArgs(append([]string{"bench"}, args...))
	root.SetOut(&out)
	root.SetErr(&errs)
	err = root.ExecuteContext(ctx)
	return out.String(), errs.String(), err
}

// shortBench is a run of a second or two; longer on a machine so busy with other things that nothing arrives in the time.
func shortBench(t *testing.T, args ...string) (stdout string) {
	t.Helper()
	for _, d := range []string{"30ms", "300ms", "2s"} {
		out, stderr, err := gorxeBench(t.Context(), append([]string{"--rounds", "1", "--duration", d}, args...)...)
		if err == nil {
			return out
		}
		if !errors.Is(err, errNothing) {
			t.Fatalf("%v\n%s", err, stderr)
		}
	}
	t.Fatal(errNothing)
	return ""
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skipped: AF_XDP and network namespaces need root")
	}
}

// promised are the keys that every element of --json has.
var promised = []string{"name", "value", "unit", "baseline", "baseline_value", "ratio", "spread"}

// checkShape reads --json's output as a script would.
func checkShape(t *testing.T, out string, names, baselines []string) {
	t.Helper()
	var list []map[string]any
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	var haveNames, haveBaselines []string
	for _, e := range list {
		for _, key := range promised {
			if _, ok := e[key]; !ok {
				t.Errorf("%v has no %s", e, key)
			}
		}
		value, base := e["value"].(float64), e["baseline_value"].(float64)
		ratio, told := e["ratio"].(float64)
		if told != (e["spread"].(float64) <= kit.MaxSpread) {
			t.Errorf("%v: a ratio is told if the rounds do not scatter too far, and only then", e)
		}
		// All three are rounded: a small baseline (TCP where much is lost) by more than its ratio shows.
		const rounded = 1e-4
		if value <= 0 || base <= 0 || told && math.Abs(ratio-value/base) > 0.001+ratio*rounded/base {
			t.Errorf("%v: values have to be positive, and their ratio right", e)
		}
		haveNames = append(haveNames, e["name"].(string))
		haveBaselines = append(haveBaselines, e["baseline"].(string))
	}
	for _, n := range names {
		if !slices.Contains(haveNames, n) {
			t.Errorf("no element is called %s", n)
		}
	}
	for _, b := range baselines {
		if !slices.Contains(haveBaselines, b) {
			t.Errorf("no element has baseline %s", b)
		}
	}
}

func TestBenchOnVeth(t *testing.T) {
	needRoot(t)
	plot := filepath.Join(t.TempDir(), "bench.svg")
	out := shortBench(t, "--json", "--plot", plot)
	checkShape(t, out,
		[]string{"write_rate_64B", "write_bw_64KiB_mtu1024", "write_bw_64KiB_mtu4096", "write_lat_8B", "goodput_1pct_loss"},
		[]string{"afxdp", "tcp", "tcp-notso", "udp", "lossless"})
	if svg, err := os.ReadFile(plot); err != nil || !bytes.Contains(svg, []byte("</svg>")) {
		t.Errorf("the plot: %v, %d bytes", err, len(svg))
	}
}

func TestBenchInMemory(t *testing.T) {
	plot := filepath.Join(t.TempDir(), "bench.png")
	out := shortBench(t, "--json", "--memory", "--only", "write_rate_64B,goodput_1pct_loss", "--plot", plot)
	checkShape(t, out, []string{"write_rate_64B", "goodput_1pct_loss"}, []string{"lossless"})
	if png, err := os.ReadFile(plot); err != nil || !bytes.HasPrefix(png, []byte("\x89PNG")) {
		t.Errorf("the plot: %v, %d bytes", err, len(png))
	}
}

// The table for people names the data path and every figure.
func TestTableInMemory(t *testing.T) {
	out := shortBench(t, "--memory", "--only", "write_bw_64KiB_mtu4096")
	for _, want := range []string{"in-memory link", "write_bw_64KiB_mtu4096", "Gb/s", "ratio", "spread"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// What a signal does: the run ends at once, and says that it was interrupted.
func TestBenchInterrupted(t *testing.T) {
	needRoot(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(500*time.Millisecond, func() { cancel(cli.ErrInterrupted) })
	start := time.Now()
	_, _, err := gorxeBench(ctx, "--duration", "1m", "--rounds", "1", "--only", "write_lat_8B")
	if !errors.Is(err, cli.ErrInterrupted) {
		t.Errorf("got %v", err)
	}
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("it took %v to end", d)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{
		{"--only", "write_rate"}, {"--rounds", "0"}, {"--duration", "1ms"}, {"--duration", "2h"}, {"--mode", "fast"},
		{"--plot", "bench.pdf"}, {"--cpus", "0"}, {"--cpus", "0,100000"}, {"extra"},
	} {
		if _, _, err := gorxeBench(t.Context(), args...); cli.Status(err) != cli.StatusUsage {
			t.Errorf("%v: %v; want a usage error", args, err)
		}
	}
}
