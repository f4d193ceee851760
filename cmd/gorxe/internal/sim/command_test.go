package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/prefetch/model"
)

// gorxeSim runs "gorxe sim" with args.
func gorxeSim(ctx context.Context, args ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	root := &cobra.Command{Use: "gorxe", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(Command())
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage(err) })
	root.SetArgs(append([]string{"sim"}, args...))
	root.SetOut(&out)
	root.SetErr(&errs)
	err = root.ExecuteContext(ctx)
	return out.String(), errs.String(), err
}

// small makes a run short, with small caches and few QPs.
var small = []string{"prefetch", "--cache", "256", "--qps", "1024"}

func TestTable(t *testing.T) {
	out, errs, err := gorxeSim(t.Context(), small...)
	if err != nil || errs != "" {
		t.Fatal(err, errs)
	}
	for _, want := range []string{"figure  series", "no prefetch, random order", "512 to 2048  MRs",
		"about half", "17.9%", "--explain"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// Scripts rely on an array of objects with these five keys; paper is null if the paper states
// nothing.
func TestJSON(t *testing.T) {
	out, _, err := gorxeSim(t.Context(), append(small, "--json")...)
	if err != nil {
		t.Fatal(err)
	}
	var list []map[string]any
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatal(err)
	}
	have := map[string]int{}
	var null, given int
	for _, e := range list {
		if len(e) != 5 {
			t.Fatalf("%v: want the keys figure, series, x, y and paper", e)
		}
		have[fmt.Sprint(e["figure"], " ", e["series"])]++
		if _, ok := e["x"].(float64); !ok || e["y"].(float64) <= 0 {
			t.Errorf("%v: want a number x and a positive y", e)
		}
		switch paper := e["paper"].(type) {
		case nil:
			null++
		case float64:
			given++
			if paper < 2 || paper > 70 {
				t.Errorf("%v: the paper has no such number", e)
			}
		default:
			t.Errorf("%v: want a number or null for paper", e)
		}
	}
	for _, want := range []string{"3 prefetch", "3 no prefetch", "4 prefetch", "5 prefetch",
		"5 no prefetch", "6 prefetch", "6 no prefetch"} {
		if have[want] < 2 {
			t.Errorf("got %d points of %s, want at least 2", have[want], want)
		}
	}
	if null == 0 || given == 0 {
		t.Errorf("got %d points without a number of the paper and %d with one, want both", null,
			given)
	}
	if again, _, _ := gorxeSim(t.Context(), append(small, "--json")...); again != out {
		t.Error("a second run has different results")
	}
}

// With a smaller window the rate beyond the caches is smaller.
func TestWindowFlag(t *testing.T) {
	rate := func(args ...string) float64 {
		t.Helper()
		out, _, err := gorxeSim(t.Context(), append(append(args, small...), "--json")...)
		if err != nil {
			t.Fatal(err)
		}
		var list []model.Point
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			t.Fatal(err)
		}
		for _, p := range list {
			if p.Figure == 3 && p.Series == model.Prefetch && p.X == 1024 {
				return p.Y
			}
		}
		t.Fatal("no point of figure 3 with 1024 QPs")
		return 0
	}
	if narrow, wide := rate("--window", "2"), rate(); narrow > 0.8*wide {
		t.Errorf("window 2: %.1f Mop/s, window from the formula: %.1f, want a smaller rate", narrow,
			wide)
	}
}

func TestPlot(t *testing.T) {
	prefix := filepath.Join(t.TempDir(), "fig")
	out, _, err := gorxeSim(t.Context(), append(small, "--plot", prefix)...)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, prefix+".svg, "+prefix+".png") {
		t.Errorf("no file names in\n%s", out)
	}
	svg, err := os.ReadFile(prefix + ".svg")
	if err != nil || !strings.Contains(string(svg), "Figure 6: light load") {
		t.Errorf("the SVG has no figure 6 (%v)", err)
	}
	file, err := os.Open(prefix + ".png")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if img, err := png.Decode(file); err != nil || img.Bounds().Dx() < 500 {
		t.Errorf("the PNG is not a picture of at least 500 pixels: %v", err)
	}
	// A name with an extension means both files as well.
	if out, _, err := gorxeSim(t.Context(),
		append(small, "--plot", prefix+".SVG")...); err != nil ||
		!strings.Contains(out, prefix+".svg, "+prefix+".png") {
		t.Errorf("--plot %s.SVG: %v, no file names in\n%s", prefix, err, out)
	}
	if out, _, err := gorxeSim(t.Context(),
		append(small, "--plot",
			filepath.Join(prefix, "no", "where"))...); cli.Status(err) != cli.StatusFailure ||
		out != "" {
		t.Errorf("a plot in a missing directory: %v with output %q, want an error without output",
			err, out)
	}
	// If the plot cannot be written, the results are still printed.
	if err := os.Mkdir(prefix+"2.svg", 0o700); err != nil {
		t.Fatal(err)
	}
	if out, _, err := gorxeSim(t.Context(),
		append(small, "--plot", prefix+"2")...); cli.Status(err) != cli.StatusFailure ||
		!strings.Contains(out, "figure  series") {
		t.Errorf("an unwritable plot: %v, want an error and the results:\n%s", err, out)
	}
}

func TestExplain(t *testing.T) {
	if testing.Short() {
		t.Skip("sixteen variants, skipped by -short")
	}
	out, _, err := gorxeSim(t.Context(), "prefetch", "--explain")
	if err != nil {
		t.Fatal(err)
	}
	c := model.DefaultConfig()
	for _, a := range c.Assumptions() {
		if !strings.Contains(out, a.Name) || !strings.Contains(out, a.Why) || a.Why == "" {
			t.Errorf("no reason for %s", a.Name)
		}
	}
	for _, v := range model.Variants() {
		if !strings.Contains(out, "\n"+v.Name) {
			t.Errorf("no variant %q", v.Name)
		}
	}
}

func TestUsage(t *testing.T) {
	for args, word := range map[string]string{
		"nothing":                           `"nothing": choose network`,
		"prefetch now":                      "one argument too many",
		"prefetch --window 0":               "1 to 4096",
		"prefetch --window -1":              "1 to 4096",
		"prefetch --window 4097":            "1 to 4096",
		"prefetch --window 1e3":             "not a whole number",
		"prefetch --cache 0":                "1 to 1048576",
		"prefetch --cache -3":               "1 to 1048576",
		"prefetch --cache 9999999999999999": "1 to 1048576",
		"prefetch --memory-cache 0":         "1 to 1048576",
		"prefetch --light-cache 0":          "1 to 1048576",
		"prefetch --qps 0":                  "1 to 65536",
		"prefetch --qps 65537":              "1 to 65536",
		"prefetch --chunk 0":                "64 B to 1 MiB",
		"prefetch --chunk 2m":               "64 B to 1 MiB",
		"prefetch --plot=":                  "a prefix is missing",
		"prefetch --plot .svg":              "a prefix is missing",
		"prefetch --plot /tmp/":             "a prefix is missing",
		"prefetch --plot ..":                "a prefix is missing",
		"prefetch --json --explain":         "choose one",
		"prefetch --plot x --explain":       "choose one",
	} {
		_, _, err := gorxeSim(t.Context(), strings.Fields(args)...)
		if cli.Status(err) != cli.StatusUsage || !strings.Contains(err.Error(), word) {
			t.Errorf("sim %s: %v, want a usage error with %q", args, err, word)
		}
	}
}

func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cli.ErrInterrupted)
	for _, how := range []string{"--json", "--explain"} {
		if out, _, err := gorxeSim(ctx, "prefetch", how); !errors.Is(err, cli.ErrInterrupted) ||
			strings.HasPrefix(out, "[") {
			t.Errorf("%s: got %v, want ErrInterrupted and no results", how, err)
		}
	}
}
