package sim

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/internal/cli"
)

// quick is a figure that takes little time.
const quick = "wr_25g_10us_loss1_gbn"

func TestNetworkTable(t *testing.T) {
	out, errs, err := gorxeSim(t.Context(), "network", "--only", quick)
	if err != nil || errs != "" {
		t.Fatal(err, errs)
	}
	for _, want := range []string{"link share", quick, ">= 0.80", "Seed 1.", "virtual time"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// Scripts rely on an array of objects with these four keys. The seed decides the figures.
func TestNetworkJSON(t *testing.T) {
	figure := func(args ...string) map[string]any {
		t.Helper()
		out, _, err := gorxeSim(t.Context(),
			append([]string{"network", "--json", "--only", quick}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		var list []map[string]any
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			t.Fatal(err)
		}
		if len(list) != 1 || len(list[0]) != 4 {
			t.Fatalf("%v: want one figure with four keys", list)
		}
		return list[0]
	}
	a := figure()
	share, _ := a["link_share"].(float64)
	value, _ := a["value"].(float64)
	if a["name"] != quick || a["unit"] != "Gb/s" || share < 0.5 || share > 1 ||
		value < 24.9*share || value > 25.1*share {
		t.Errorf("%v: want half of 25 Gb/s or more", a)
	}
	if b := figure("--seed", "1"); b["value"] != value {
		t.Errorf("the figure is %v, then %v with the same seed", value, b["value"])
	}
	// It counts whole operations, so two seeds can give the same.
	if b, c := figure("--seed", "2"), figure("--seed", "3"); b["value"] == value &&
		c["value"] == value {
		t.Errorf("the figure is %v with three different seeds", value)
	}
}

func TestNetworkPlot(t *testing.T) {
	prefix := filepath.Join(t.TempDir(), "net")
	out, _, err := gorxeSim(t.Context(), "network", "--only", "rtt_short_long", "--plot", prefix)
	if err != nil || !strings.Contains(out, prefix+".svg, "+prefix+".png") {
		t.Fatalf("%v, want file names in\n%s", err, out)
	}
	if svg, err := os.ReadFile(prefix + ".svg"); err != nil ||
		!strings.Contains(string(svg), "RTT") {
		t.Errorf("the SVG has no curves of flows with different RTTs (%v)", err)
	}
}

func TestNetworkUsage(t *testing.T) {
	for args, word := range map[string]string{
		"network now":                      "one argument too many",
		"network --only fair_9":            "fair_8_jain",
		"network --seed -1":                "0 to",
		"network --seed x":                 "not a whole number",
		"network --plot=":                  "a prefix is missing",
		"network --plot dir/":              "a prefix is missing",
		"network --plot . --only " + quick: "a prefix is missing",
	} {
		_, _, err := gorxeSim(t.Context(), strings.Fields(args)...)
		if cli.Status(err) != cli.StatusUsage || !strings.Contains(err.Error(), word) {
			t.Errorf("sim %s: %v, want a usage error with %q", args, err, word)
		}
	}
	missing := filepath.Join(t.TempDir(), "no", "where")
	if _, _, err := gorxeSim(t.Context(), "network", "--plot", missing); err == nil ||
		!errors.Is(err, os.ErrNotExist) {
		t.Errorf("a plot in a missing directory: %v, want ErrNotExist", err)
	}
}

func TestNetworkInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cli.ErrInterrupted)
	if out, _, err := gorxeSim(ctx, "network"); !errors.Is(err, cli.ErrInterrupted) || out != "" {
		t.Errorf("got %v and output %q, want ErrInterrupted and no results", err, out)
	}
}
