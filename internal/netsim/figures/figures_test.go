package figures

import (
	"bytes"
	"context"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/netsim"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/roce"
)

// Scripts rely on these names.
func TestNames(t *testing.T) {
	names := Names()
	for _, link := range []string{"25g_100us_loss0.1", "25g_100us_loss1", "25g_10us_loss1",
		"10g_10ms_loss0", "10g_49ms_loss0", "10g_49ms_loss0.001", "25g_100us_reorder5"} {
		for _, prefix := range []string{"wr_", "rd_"} {
			for _, suffix := range []string{"_sr", "_gbn"} {
				if !slices.Contains(names, prefix+link+suffix) {
					t.Errorf("no figure %s", prefix+link+suffix)
				}
			}
		}
	}
	for _, want := range []string{"fair_8_jain", "fair_8_share", "incast_32_share",
		"incast_32_least", "fair_1v8", "rtt_short_long", "tcp_cubic_share"} {
		if !slices.Contains(names, want) {
			t.Errorf("no figure %s", want)
		}
	}
	slices.Sort(names)
	if n := len(slices.Compact(slices.Clone(names))); n != len(names) {
		t.Errorf("%d of %d names differ", n, len(names))
	}
}

// Every experiment of the table can run, and every reference of a target exists.
func TestExperiments(t *testing.T) {
	names := Names()
	seen := map[string]bool{}
	for _, e := range append(experiments(), curves()...) {
		if seen[e.name] {
			t.Errorf("there are two experiments %s", e.name)
		}
		seen[e.name] = true
		s := e.scenario
		s.Warmup, s.Time, s.Sample, s.Frames = 0, 20*time.Microsecond, 0, 64
		for i := range s.Senders {
			if s.Senders[i].TCP == nil {
				s.Senders[i].Depth, s.Senders[i].Size = 2, 4096
			}
			s.Senders[i].QPs = min(s.Senders[i].QPs, 2)
		}
		if _, err := netsim.Run(t.Context(), &s); err != nil {
			t.Errorf("%s: %v", e.name, err)
		}
		for _, f := range e.figures {
			if f.of != "" && !slices.Contains(names, f.of) {
				t.Errorf("%s: the target refers to %s, which does not exist", f.name, f.of)
			}
		}
	}
}

// A figure whose target refers to another one is measured with that one.
func TestChoose(t *testing.T) {
	o := Options{Only: []string{"rd_25g_10us_loss1_gbn", "fair_8_share"}}
	var got []string
	for _, e := range o.choose(experiments()) {
		got = append(got, e.name)
	}
	want := []string{"wr_25g_10us_loss1_gbn", "rd_25g_10us_loss1_gbn", "fair_8"}
	if !slices.Equal(got, want) {
		t.Errorf("choose() = %v, want %v", got, want)
	}
	if all := (&Options{}).choose(experiments()); len(all) != len(experiments()) {
		t.Errorf("choose() without names = %d experiments, want all", len(all))
	}
}

func TestCheck(t *testing.T) {
	o := Options{Only: []string{"wr_25g_10us_loss1"}}
	if _, err := Run(t.Context(), o, io.Discard); cli.Status(err) != cli.StatusUsage ||
		!strings.Contains(err.Error(), "wr_25g_10us_loss1_sr") {
		t.Errorf("Run() with an unknown figure = %v, want a usage error that lists the names", err)
	}
}

// tiny returns quick experiments with all kinds of targets.
func tiny() []experiment {
	sender := netsim.Sender{Op: roce.OpWrite, Size: 4096, Depth: 4,
		Plan: loopback.Plan{Bandwidth: gbps, Delay: us}}
	s := netsim.Scenario{Seed: 1, Senders: []netsim.Sender{sender}, Frames: 64, Time: ms}
	number := func(x float64) func(*netsim.Result) float64 {
		return func(*netsim.Result) float64 { return x }
	}
	return []experiment{
		{name: "a", about: "first", bits: gbps, scenario: s, figures: []figure{
			{name: "a_share", unit: unitBW, low: 0.5}, {name: "a_none", unit: unitBW},
			{name: "a_jain", unit: unitIndex, value: (*netsim.Result).Jain, low: 2},
		}},
		{name: "b", about: "second", bits: gbps, scenario: s, figures: []figure{
			{name: "b_share", unit: unitBW, low: 0.9, of: "a_share"},
			{name: "b_more", unit: unitBW, low: 1.5, of: "a_share"},
			{name: "b_inside", unit: unitRatio, value: number(0.5), low: 0.4, high: 0.6},
			{name: "b_above", unit: unitRatio, value: number(0.7), low: 0.4, high: 0.6},
		}},
	}
}

func TestReport(t *testing.T) {
	list := tiny()
	results, err := runAll(t.Context(), list, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	r := newReport(&Options{Seed: 1}, list, results)
	want := map[string]struct {
		text string
		ok   bool
	}{
		"a_share": {">= 0.50", true}, "a_none": {"", true}, "a_jain": {">= 2.00", false},
		"b_more": {"", false}, "b_inside": {"0.40 to 0.60", true}, "b_above": {"0.40 to 0.60", false},
		"b_share": {"", true},
	}
	for i := range r.Values {
		v := &r.Values[i]
		text, ok := r.verdict(v)
		w := want[v.Name]
		if ok != w.ok || v.figure.of == "" && text != w.text {
			t.Errorf("%s: target %q, reached %v, want %q, %v", v.Name, text, ok, w.text, w.ok)
		}
		if v.LinkShare < 0.8 || v.LinkShare > 1 {
			t.Errorf("%s: link share %v, want 0.8 to 1", v.Name, v.LinkShare)
		}
	}
	if a := r.Values[0]; a.Value != a.LinkShare {
		t.Errorf("goodput is %v Gb/s and the share of 1 Gb/s is %v", a.Value, a.LinkShare)
	}
	if j := r.Values[2]; j.Value != 1 {
		t.Errorf("Jain's index of one flow is %v, want 1", j.Value)
	}
	var b bytes.Buffer
	if err := r.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"a_jain", "FAIL", "pass", "first", "3 targets missed", "Seed 1."} {
		if !strings.Contains(b.String(), s) {
			t.Errorf("no %q in\n%s", s, b.String())
		}
	}
	chosen := newReport(&Options{Only: []string{"b_share"}}, list, results)
	if len(chosen.Values) != 1 || chosen.Values[0].Name != "b_share" {
		t.Errorf("Values = %+v, want only b_share", chosen.Values)
	}
	if _, ok := chosen.verdict(&chosen.Values[0]); !ok {
		t.Error("b_share misses its target, which refers to a figure that was not chosen")
	}
}

// The plot has a panel for each kind of experiment that was run, and no empty one.
func TestPanels(t *testing.T) {
	list := append(experiments(), curves()...)
	results := make([]netsim.Result, len(list))
	for i := range list {
		results[i].Bits, results[i].Flows = list[i].bits/2, make([]netsim.Flow, 9)
		flows := make([]float64, 8)
		results[i].Samples = []netsim.Sample{{At: ms, Bits: flows, Windows: flows},
			{At: 2 * ms, Bits: flows, Windows: flows}}
	}
	r := newReport(&Options{}, list, results)
	titles := map[string]int{}
	for _, p := range r.Panels() {
		c := p.(*kit.Curves)
		titles[c.Title+": "+c.Y] = len(c.Lines)
		for _, l := range c.Lines {
			if len(l.X) < 2 || len(l.X) != len(l.Y) {
				t.Errorf("%s, %s: %d and %d coordinates", c.Title, l.Name, len(l.X), len(l.Y))
			}
		}
	}
	for title, lines := range map[string]int{
		"25 Gb/s, 100 us, 1 QP: share of the link":          4,
		"10 Gb/s, 49 ms, 1 QP, WRITE: Gb/s":                 3,
		"10 Gb/s, 49 ms, 1 QP, WRITE: window, 1000 packets": 3,
		"4 QPs that start one after the other: Gb/s":        4,
		"1 QP next to TCP, 1 Gb/s, 10 ms: Gb/s":             2,
		"1 QP next to TCP, 1 Gb/s, 10 ms: window, packets":  2,
		"32 hosts to 1: queue of the switch: KB":            4,
	} {
		if titles[title] != lines {
			t.Errorf("panel %q has %d lines, want %d", title, titles[title], lines)
		}
	}
	one := (&Options{Only: []string{"incast_32_share"}}).choose(experiments())
	r = newReport(&Options{}, one, make([]netsim.Result, 1))
	if p := r.Panels(); len(p) != 1 {
		t.Errorf("%d panels for one experiment, want 1", len(p))
	}
}

// Experiments run in parallel, and give the same results as one after the other.
func TestParallelRunsRepeat(t *testing.T) {
	list := tiny()
	list[1].scenario.Senders = slices.Clone(list[1].scenario.Senders)
	list[1].scenario.Senders[0].Plan.Loss = 0.05
	a, err := runAll(t.Context(), list, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		b, err := netsim.Run(t.Context(), &list[i].scenario)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(a[i], b) {
			t.Errorf("experiment %d: %+v in parallel, %+v alone", i, a[i], b)
		}
	}
}

func TestRunAllFails(t *testing.T) {
	list := tiny()
	list[1].scenario.Senders = nil
	if _, err := runAll(t.Context(), list, io.Discard); !errors.Is(err, netsim.ErrScenario) ||
		!strings.Contains(err.Error(), "b:") {
		t.Errorf("runAll() = %v, want the error of experiment b", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cli.ErrInterrupted)
	if _, err := runAll(ctx, tiny(), io.Discard); !errors.Is(err, cli.ErrInterrupted) {
		t.Errorf("runAll() = %v, want ErrInterrupted", err)
	}
}
