package bench

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
)

func TestScaleJSON(t *testing.T) {
	out, errs, err := gorxeBench(t.Context(), "scale", "--qps", "1,200", "--mrs", "100", "--rounds",
		"1",
		"--duration", "10ms", "--window", "0,4,0", "--order", "rr,random,rr", "--json")
	if err != nil {
		t.Fatal(err, errs)
	}
	if !strings.Contains(errs, "One round does not show the variation") {
		t.Errorf("stderr is %q, want a warning about the single round", errs)
	}
	list := results(t, out, "link", "qps", "mrs", "order", "prefetch")
	// The baseline, 64, is measured as well.
	if want := 2 * 2 * (3 + 2); len(list) != want {
		t.Fatalf("got %d results, want %d", len(list), want)
	}
	for _, r := range list {
		base, count := "64 QPs", r["qps"]
		if r["name"] == "rate_64B_mrs" {
			base, count = "64 MRs", r["mrs"]
		}
		if r["baseline"] != base || r["value"].(float64) <= 0 || r["link"] != "memory" {
			t.Errorf("%v: want a positive value, baseline %q and link memory", r, base)
		}
		if count == 64.0 && r["ratio"] != 1.0 {
			t.Errorf("%v: want ratio 1 for the baseline itself", r)
		}
	}
}

func TestScaleTable(t *testing.T) {
	plot := filepath.Join(t.TempDir(), "p.svg")
	out := run(t, "scale", "--qps", "none", "--mrs", "64,80", "--rounds", "1", "--duration", "10ms",
		"--window", "2", "--burst", "4", "--plot", plot)
	if !strings.Contains(out, "rate_64B_mrs") || strings.Contains(out, "rate_64B_qps") {
		t.Errorf("want a table with MRs only:\n%s", out)
	}
	if !strings.Contains(out, "\nmisses are ") {
		t.Errorf("no explanation of misses in\n%s", out)
	}
	checkPlots(t, plot)
}

// A signal ends the run while the QPs are created, and in the middle of a measurement of a minute.
func TestScaleInterrupted(t *testing.T) {
	for _, after := range []time.Duration{0, 200 * time.Millisecond} {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(after, func() { cancel(cli.ErrInterrupted) })
		start := time.Now()
		_, _, err := gorxeBench(ctx, "scale", "--qps", "64", "--mrs", "none", "--rounds", "1",
			"--duration", "1m")
		if !errors.Is(err, cli.ErrInterrupted) {
			t.Errorf("interrupted after %v: got %v, want ErrInterrupted", after, err)
		}
		if d := time.Since(start); d > 14*time.Second { // the warm-up alone takes 15 seconds
			t.Errorf("interrupted after %v: the run ended after %v", after, d)
		}
	}
}
