package scale

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/kit"
)

// run is "gorxe bench scale args".
func run(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	c := Command()
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetArgs(args)
	c.SetOut(&out)
	c.SetErr(&errs)
	err = c.ExecuteContext(context.Background())
	return out.String(), errs.String(), err
}

// A short run on the in-memory link: what scripts rely on is there, and the figures fit together.
func TestJSON(t *testing.T) {
	out, errs, err := run(t, "--qps", "1,200", "--mrs", "100", "--rounds", "1", "--duration", "10ms", "--window", "0,4,0", "--order", "rr,random,rr", "--json")
	if err != nil {
		t.Fatal(err, errs)
	}
	if !strings.Contains(errs, "One round cannot tell") {
		t.Errorf("a ratio of one round is as good as any other: %q", errs)
	}
	var list []map[string]any
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatal(err)
	}
	// 64 is measured, too: it is what the others are set against.
	if want := 2 * 2 * (3 + 2); len(list) != want {
		t.Fatalf("%d results, want %d", len(list), want)
	}
	for _, r := range list {
		for _, key := range []string{"name", "value", "unit", "baseline", "baseline_value", "ratio", "spread", "link", "qps", "mrs", "order", "prefetch"} {
			if _, ok := r[key]; !ok {
				t.Errorf("%v has no %s", r, key)
			}
		}
		base, count := "64 QPs", r["qps"]
		if r["name"] == "rate_64B_mrs" {
			base, count = "64 MRs", r["mrs"]
		}
		if r["baseline"] != base || r["value"].(float64) <= 0 || r["link"] != "memory" {
			t.Errorf("%v", r)
		}
		if count == 64.0 && r["ratio"] != 1.0 {
			t.Errorf("the baseline against itself: %v", r)
		}
	}
}

func TestTableAndPlot(t *testing.T) {
	plot := filepath.Join(t.TempDir(), "p.svg")
	out, errs, err := run(t, "--qps", "none", "--mrs", "64,80", "--rounds", "1", "--duration", "10ms", "--window", "2", "--burst", "4", "--plot", plot)
	if err != nil {
		t.Fatal(err, errs)
	}
	if !strings.Contains(out, "rate_64B_mrs") || strings.Contains(out, "rate_64B_qps") {
		t.Errorf("a table of MRs is wanted: %s", out)
	}
	if !strings.Contains(out, "\nmisses are ") {
		t.Errorf("nothing about misses in\n%s", out)
	}
	if b, err := os.ReadFile(plot); err != nil || !bytes.Contains(b, []byte("<svg")) {
		t.Errorf("no plot: %v", err)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range []string{
		"--qps 0", "--qps 65537", "--qps -1", "--qps x", "--mrs 0", "--mrs 1e6", "--window -1", "--window 4097", "--order up",
		"--burst 0", "--burst 33", "--plot x.pdf", "--qps none --mrs none", "--window none", "--plot=", "--qps 2 --qps none --mrs none", "--link wire", "--cpus 0", "--rounds 0",
	} {
		c := Command()
		c.SetFlagErrorFunc(nil)
		_, _, err := run(t, strings.Fields(args)...)
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v; want one clear line", args, err)
		}
	}
	if _, _, err := run(t, "--plot", "no/such/folder/x.svg"); cli.Status(err) != cli.StatusFailure || !strings.Contains(err.Error(), "no/such/folder") {
		t.Errorf("a plot that cannot be written: %v; want to hear it before anything is measured", err)
	}
	if _, _, err := run(t, "--order", "up"); cli.Status(err) != 2 {
		t.Errorf("exit status %d for a usage error", cli.Status(err))
	}
}

// A ratio whose rounds scatter too far is not printed, and it is said by how much.
func TestScatter(t *testing.T) {
	few := lane{name: nameQPs, qps: 64, mrs: 1, order: roundRobin}
	many := few
	many.qps = 1000
	b := &bench{w: &world{link: linkMemory}, lanes: []lane{few, many}, samples: map[lane][]sample{
		few:  {{rate: 1}, {rate: 1}, {rate: 1}},
		many: {{rate: 0.5}, {rate: 0.9}, {rate: 1.1}},
	}}
	list := b.results()
	if r := list[1]; r.Ratio != nil || r.Spread < 0.6 || r.Value != 0.9 {
		t.Errorf("%+v; want no ratio, and a spread of two thirds", r)
	}
	var said strings.Builder
	kit.WarnScattered(&said, list, func(r *Result) *kit.Row { return &r.Row })
	if !strings.HasPrefix(said.String(), "No ratio for 1 result: the rounds scatter, and leave it unsure by up to 67 %, where 50 % is the limit.") {
		t.Error(said.String())
	}
	b.samples[many] = []sample{{rate: 0.8}, {rate: 0.9}, {rate: 1.0}}
	if r := b.result(&many); r.Ratio == nil || *r.Ratio != 0.9 {
		t.Errorf("%+v; want 0.9", r)
	}
}

// What QPs and MRs take is told, each by itself, where there are enough to tell: at most 1 KiB and 256 bytes, a table that has just
// doubled included.
func TestFootprint(t *testing.T) {
	w, err := newWorld(t.Context(), linkMemory, 2*manyEnough, 2*manyEnough, []int{0, 0})
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	if w.size.qp < 500 || w.size.qp > 1024 || w.size.mr < 64 || w.size.mr > 256 {
		t.Errorf("%+v", w.size)
	}
	if got := w.size.String(); !strings.Contains(got, "bytes a QP beyond its rings; ") || !strings.HasSuffix(got, "bytes an MR beyond its memory") {
		t.Error(got)
	}
	if got := (footprint{}).String(); got != "" {
		t.Error(got)
	}
}

// Whoever misses the column of misses is told why.
func TestAboutMisses(t *testing.T) {
	for _, c := range []struct {
		err      error
		userOnly bool
		want     string
	}{
		{nil, false, "with the kernel's"}, {nil, true, "without the kernel's"},
		{unix.EACCES, true, "perf_event_paranoid"}, {unix.EPERM, true, "perf_event_paranoid"},
		{unix.ENOENT, false, "no counter"}, {unix.ENOSYS, false, "perf_event_open: function not implemented"},
	} {
		if got := aboutMisses(&missCounter{fd: -1, userOnly: c.userOnly}, c.err); !strings.Contains(got, c.want) {
			t.Errorf("%v: %q; want %q in it", c.err, got, c.want)
		}
	}
	m, err := newMissCounter()
	defer m.close()
	if n := m.read(); (n >= 0) != (err == nil) {
		t.Errorf("%d misses, %v", n, err)
	}
}

// A signal is heard while the QPs are made, and in the middle of a measurement that takes a minute.
func TestInterrupt(t *testing.T) {
	for _, after := range []time.Duration{0, 200 * time.Millisecond} {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(after, func() { cancel(cli.ErrInterrupted) })
		c := Command()
		c.SilenceErrors, c.SilenceUsage = true, true
		c.SetArgs([]string{"--qps", "64", "--mrs", "none", "--rounds", "1", "--duration", "1m"})
		start := time.Now()
		if err := c.ExecuteContext(ctx); !errors.Is(err, cli.ErrInterrupted) {
			t.Errorf("after %v: %v", after, err)
		}
		if took := time.Since(start); took > 14*time.Second { // the first warm-up alone takes 15
			t.Errorf("after %v: heard after %v", after, took)
		}
	}
}

// Chance is fair enough, and round robin is in turn.
func TestPicker(t *testing.T) {
	p := newPicker(5, roundRobin, seed)
	for i := range 20 {
		if got := p.pick(); got != i%5 {
			t.Fatalf("pick %d is %d", i, got)
		}
	}
	var seen [10]int
	p = newPicker(len(seen), random, seed)
	for range 10_000 {
		seen[p.pick()]++
	}
	for i, n := range seen {
		if n < 800 || n > 1200 {
			t.Errorf("%d was picked %d times of 10,000", i, n)
		}
	}
}
