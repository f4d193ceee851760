package rftp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/transport/rftp"
)

// fast is a path on which a transfer is simulated in milliseconds: a hundredth of the paper's
// bandwidth.
var fast = path{bits: wan.bits / 100, rtt: wan.rtt}

// TestTransfers checks the effect of the credits on a path with the paper's round trip.
func TestTransfers(t *testing.T) {
	const block = 40 * kib
	for _, c := range []struct {
		name      string
		t         transfer
		low, high float64 // share of the goodput
	}{
		{"default", transfer{pool: 32 * block}, 0.95, 1},
		{"paper", transfer{mode: rftp.Paper, pool: 40 * block}, 0.95, 1},
		{"half", transfer{pool: 15 * block}, 0.9, 1},
		{"paper half", transfer{mode: rftp.Paper, pool: 15 * block}, 0.4, 0.55},
		{"on demand", transfer{mode: rftp.OnDemand, pool: 3 * block}, 0.15, 0.2},
	} {
		x := c.t
		x.path, x.qps, x.block, x.warmup, x.time = fast, 2, block, time.Second, time.Second
		o, err := x.run(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		if share := x.rate(&o) / x.goodput(); share < c.low || share > c.high {
			t.Errorf("%s: %.3f of the goodput, want %.2f to %.2f", c.name, share, c.low, c.high)
		}
	}
}

// TestRamp checks that the paper's credits double every two round trips, and that the default has
// them from the beginning.
func TestRamp(t *testing.T) {
	x := transfer{path: fast, qps: 1, block: 40 * kib, pool: 32 * 40 * kib, free: true,
		time: time.Second}
	for mode, want := range map[rftp.Mode][2]time.Duration{
		rftp.Proactive: {49 * ms, 60 * ms}, rftp.Paper: {400 * ms, 620 * ms},
	} {
		x.mode = mode
		o, err := x.run(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		if got := x.ramp(&o); got < want[0] || got > want[1] {
			t.Errorf("%v: the full rate after %v, want %v to %v", mode, got, want[0], want[1])
		}
	}
	if got := x.ramp(&outcome{arrivals: []arrival{{time.Second, 1}}}); got != 0 {
		t.Errorf("ramp() of a transfer of 1 byte = %v, want 0", got)
	}
}

// TestReplay checks that a seed gives the same transfer again.
func TestReplay(t *testing.T) {
	x := transfer{path: fast, qps: 8, block: 40 * kib, pool: mib, time: time.Second}
	x.loss = 0.001
	var rates [2]float64
	for i := range rates {
		o, err := x.run(t.Context(), 7)
		if err != nil {
			t.Fatal(err)
		}
		rates[i] = x.rate(&o)
	}
	if rates[0] != rates[1] || rates[0] == 0 {
		t.Errorf("rates %v of the same seed", rates)
	}
}

// TestRun runs small figures.
func TestRun(t *testing.T) {
	names := []string{"fio_write_64KiB_depth1", "fio_read_64KiB_depth1"}
	r, err := Run(t.Context(), Options{Seed: 1, Only: names}, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Values) != len(names) {
		t.Fatalf("%d figures, want %d", len(r.Values), len(names))
	}
	// At depth 1 all operations need a round trip and the time on the link.
	const bytes, bits = 64 * kib, 25 * gbps
	want := bytes * 8 / (lan.rtt.Seconds() + bytes*8/float64(bits)) / gbps
	for i, v := range r.Values {
		if v.Name != names[i] || v.Value > want || v.Value < 0.9*want {
			t.Errorf("%s = %v, want %s, a little less than %v", v.Name, v.Value, names[i], want)
		}
	}
}

// TestReport checks the output in all formats.
func TestReport(t *testing.T) {
	x := transfer{path: fast, qps: 1, block: 40 * kib, pool: wanPool, time: time.Second}
	x.pool = 32 * x.block
	o, err := x.run(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	list := []experiment{{name: "lan_x", transfer: &x, bits: float64(x.bits), about: "a transfer",
		figures: []figure{
			{name: "low", unit: unitBW, low: 0.5, model: 7},
			{name: "high", unit: unitBW, high: 0.5},
			{name: "missed", unit: unitBW, low: 1.5}, {name: "ramp", unit: unitTime, ramp: true},
		}}}
	r := newReport(&Options{Seed: 5}, list, []result{{o, x.rate(&o)}})
	for i, missed := range []bool{false, true, true, false} {
		if v := &r.Values[i]; v.Missed() != missed || v.Value <= 0 {
			t.Errorf("%s = %v, missed: %v, want %v", v.Name, v.Value, v.Missed(), missed)
		}
	}
	plot := filepath.Join(t.TempDir(), "rftp.svg")
	var out, warnings bytes.Buffer
	if err := kit.Print(r, true, plot, &out, &warnings); err != nil {
		t.Fatal(err)
	}
	var values []map[string]any
	if err := json.Unmarshal(out.Bytes(), &values); err != nil || len(values) != 4 {
		t.Fatalf("%v: %d figures, want 4", err, len(values))
	}
	for _, v := range values {
		for _, key := range []string{"name", "value", "unit", "baseline", "ratio", "target",
			"model"} {
			if _, ok := v[key]; !ok {
				t.Errorf("%v has no key %s", v, key)
			}
		}
	}
	out.Reset()
	if err := r.WriteTable(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"low", ">= 0.50", "<= 0.50", "pass", "FAIL", "Seed 5.",
		"a transfer"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestOptions(t *testing.T) {
	if _, err := Run(t.Context(), Options{Only: []string{"lan"}},
		&bytes.Buffer{}); cli.Status(err) !=
		cli.StatusUsage {
		t.Errorf("Run() of an unknown figure = %v, want a usage error", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	cancel(stop)
	if _, err := Run(ctx, Options{}, &bytes.Buffer{}); !errors.Is(err, stop) {
		t.Errorf("Run() = %v, want the cause of its context", err)
	}
	seen := map[string]bool{}
	for _, n := range Names() {
		if seen[n] {
			t.Errorf("two figures are called %s", n)
		}
		seen[n] = true
	}
}
