package indirect

import (
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/papers/kit"
)

// Scripts rely on the names and on the paper's ratios.
func TestNames(t *testing.T) {
	says := map[string]float64{
		"frp_lfp_1": 0.981, "frp_lfp_5": 0.951, "frp_lfp_10": 0.912,
		"pings_256": 0.88, "pings_512": 0.864, "pings_1024": 0.908,
	}
	list := experiments()
	for _, x := range list {
		want, ok := says[x.name]
		if ok != (x.paper != nil) || (ok && *x.paper != want) {
			t.Errorf("%s: the paper's ratio is %v, want %v", x.name, x.paper, want)
		}
	}
	for name := range says {
		if !slices.Contains(names(list), name) {
			t.Errorf("no experiment is called %s", name)
		}
	}
	for _, name := range []string{"frp_0", "frp_5", "frp_10", "lfp_0", "lfp_5", "lfp_10"} {
		if !slices.Contains(names(list), name) {
			t.Errorf("no experiment is called %s", name)
		}
	}
}

// simulate runs a round in virtual time.
func simulate(t *testing.T, change func(c *Config)) []kit.Result {
	t.Helper()
	c := DefaultConfig()
	c.Link, c.Rounds = kit.Memory, 1
	change(&c)
	r, err := Run(t.Context(), c, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return r.Results
}

// The simulation gives the same figures every time. The indirect method is faster if registrations
// fail.
func TestSimulation(t *testing.T) {
	run := func() []kit.Result {
		return simulate(t, func(c *Config) {
			c.Transfers, c.Only = 60, []string{"frp_10", "lfp_10", "pings_256"}
		})
	}
	a, b := run(), run()
	if len(a) != 3 {
		t.Fatalf("got %d results, want 3: %+v", len(a), a)
	}
	for i := range a {
		if a[i].Value != b[i].Value || a[i].BaselineValue != b[i].BaselineValue {
			t.Errorf("%s: %v and %v in the first run, %v and %v in the second",
				a[i].Name, a[i].Value, a[i].BaselineValue, b[i].Value, b[i].BaselineValue)
		}
		if a[i].Baseline != "direct" || a[i].Unit != "s" || a[i].Value <= 0 {
			t.Errorf("result %+v, want a positive value in s with baseline direct", a[i])
		}
	}
	if a[0].Name != "frp_10" || *a[0].Ratio >= 0.99 || *a[0].Ratio < 0.6 {
		t.Errorf("result %+v, want frp_10 with a ratio from 0.6 to 0.99", a[0])
	}
}

// Pings without a pause take a share of the link, but no request times out: there are at most
// three of them at a time, which do not fill a queue.
func TestPingFlood(t *testing.T) {
	run := func(interval time.Duration) kit.Result {
		return simulate(t, func(c *Config) {
			c.Transfers, c.Only, c.PingInterval = 40, []string{"pings_512"}, interval
		})[0]
	}
	slow, flood := run(time.Millisecond), run(0)
	if flood.BaselineValue < 1.2*slow.BaselineValue {
		t.Errorf("%v s with a flood of pings, %v s without: want at least 1.2 times as much",
			flood.BaselineValue, slow.BaselineValue)
	}
	if *flood.Ratio != 1 || !strings.Contains(flood.Note, "timed out 0 / 0") {
		t.Errorf("result %+v, want ratio 1 without timeouts", flood)
	}
}

// The indirect buffer has space for transfers of any size, here twice the library's default buffer.
func TestLargeTransfers(t *testing.T) {
	list := simulate(t, func(c *Config) {
		c.Transfers, c.Size, c.Only = 2, 8<<20, []string{"frp_10"}
	})
	if len(list) != 1 || list[0].Name != "frp_10" {
		t.Errorf("results %+v, want frp_10", list)
	}
}

// On a veth pair the transfers run in real time, with real pings.
func TestVeth(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces and AF_XDP need root")
	}
	c := DefaultConfig()
	c.Rounds, c.Transfers, c.Only = 1, 10, []string{"frp_lfp_10", "pings_512"}
	r, err := Run(t.Context(), c, io.Discard)
	if testbed.Unavailable(err) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Results) != 2 || r.Results[1].Name != "pings_512" {
		t.Errorf("results %+v, want frp_lfp_10 and pings_512", r.Results)
	}
}
