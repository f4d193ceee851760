package indirect

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/papers/kit/paper"
)

// benchIndirect is "gorxe bench indirect args".
func benchIndirect(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := Command()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&bytes.Buffer{})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	err := cmd.ExecuteContext(ctx)
	return out.String(), err
}

// Scripts rely on the names, the baseline and the paper's ratios.
func TestNames(t *testing.T) {
	says := map[string]float64{"frp_lfp_1": 0.981, "frp_lfp_5": 0.951, "frp_lfp_10": 0.912, "pings_256": 0.88, "pings_512": 0.864, "pings_1024": 0.908}
	list := experiments()
	for _, x := range list {
		if want, ok := says[x.name]; ok != (x.paper != nil) || (ok && *x.paper != want) {
			t.Errorf("%s: the paper says %v, want %v", x.name, x.paper, want)
		}
	}
	for name := range says {
		if !slices.Contains(names(list), name) {
			t.Errorf("no %s", name)
		}
	}
	for _, name := range []string{"frp_0", "frp_5", "frp_10", "lfp_0", "lfp_5", "lfp_10"} {
		if !slices.Contains(names(list), name) {
			t.Errorf("no %s", name)
		}
	}
}

// The simulation is the same every time, and where registrations fail the dynamic method gains.
func TestSimulation(t *testing.T) {
	run := func() []paper.Result {
		out, err := benchIndirect(t, "--link", "memory", "--rounds", "1", "--transfers", "60", "--only", "frp_10,lfp_10,pings_256", "--json")
		if err != nil {
			t.Fatal(err)
		}
		var list []paper.Result
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return list
	}
	a, b := run(), run()
	if len(a) != 3 {
		t.Fatalf("%+v", a)
	}
	for i := range a {
		if a[i].Value != b[i].Value || a[i].BaselineValue != b[i].BaselineValue {
			t.Errorf("%s: %v of %v, then %v of %v", a[i].Name, a[i].Value, a[i].BaselineValue, b[i].Value, b[i].BaselineValue)
		}
		if a[i].Baseline != "direct" || a[i].Unit != "s" || a[i].Value <= 0 {
			t.Errorf("%+v", a[i])
		}
	}
	if a[0].Name != "frp_10" || *a[0].Ratio >= 0.99 || *a[0].Ratio < 0.6 {
		t.Errorf("%+v", a[0])
	}
}

// Pings without a pause take their share of the link, and still no request goes unanswered: one at a time, they do not fill a queue.
func TestPingFlood(t *testing.T) {
	value := func(interval string) paper.Result {
		out, err := benchIndirect(t, "--link", "memory", "--rounds", "1", "--transfers", "40", "--only", "pings_512", "--ping-interval", interval, "--json")
		if err != nil {
			t.Fatal(err)
		}
		var list []paper.Result
		if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 1 {
			t.Fatalf("%v: %s", err, out)
		}
		return list[0]
	}
	slow, flood := value("1ms"), value("0")
	if flood.BaselineValue < 1.2*slow.BaselineValue || *flood.Ratio != 1 || !strings.Contains(flood.Note, "timed out 0 / 0") {
		t.Errorf("%+v, then %+v", slow, flood)
	}
}

// Whatever size --size takes, the indirect buffer holds: here twice the library's default.
func TestLargeTransfers(t *testing.T) {
	out, err := benchIndirect(t, "--link", "memory", "--rounds", "1", "--transfers", "2", "--size", "8MiB", "--only", "frp_10", "--json")
	if err != nil || !strings.Contains(out, "frp_10") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestPlotAndTable(t *testing.T) {
	base := filepath.Join(t.TempDir(), "plot")
	out, err := benchIndirect(t, "--link", "memory", "--rounds", "1", "--transfers", "20", "--only", "frp_0,frp_10,frp_lfp_1", "--plot", base)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"frp_10", "0.981", "request time-out 2ms", base + ".svg"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	for _, ext := range []string{".svg", ".png"} {
		if info, err := os.Stat(base + ext); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", ext, err)
		}
	}
}

// A picture that cannot be drawn is an error, and what was measured is told all the same.
func TestPlotThatCannotBe(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "plot.svg")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	out, err := benchIndirect(t, "--link", "memory", "--rounds", "1", "--transfers", "2", "--only", "frp_0", "--plot", folder)
	if err == nil || !strings.Contains(out, "frp_0") || strings.Contains(out, "Plot:") {
		t.Errorf("%v:\n%s", err, out)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"--only", "frp_3"}, {"--cpus", "0"}, {"x"}} {
		if _, err := benchIndirect(t, args...); cli.Status(err) != cli.StatusUsage {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// On a veth pair, in real time, with real pings.
func TestVeth(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces and AF_XDP need root")
	}
	out, err := benchIndirect(t, "--rounds", "1", "--transfers", "10", "--only", "frp_lfp_10,pings_512", "--json")
	if kit.NoVeth(err) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, "pings_512") {
		t.Error(out)
	}
}
