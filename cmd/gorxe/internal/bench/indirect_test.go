package bench

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestIndirect(t *testing.T) {
	base := filepath.Join(t.TempDir(), "plot")
	out := run(t, "indirect", "--link", "memory", "--rounds", "1", "--transfers", "20",
		"--only", "frp_0,frp_10,frp_lfp_1", "--plot", base)
	for _, want := range []string{"frp_10", "0.981", "request timeout 2ms", base + ".svg"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
	checkPlots(t, base+".svg", base+".png")
}

func TestIndirectJSON(t *testing.T) {
	out := run(t, "indirect", "--link", "memory", "--rounds", "1", "--transfers", "2", "--size",
		"8MiB",
		"--only", "frp_10", "--ping-interval", "0", "--json")
	list := results(t, out, "paper")
	if len(list) != 1 || list[0]["name"] != "frp_10" || list[0]["baseline"] != "direct" {
		t.Errorf("results are %v, want frp_10 with baseline direct", list)
	}
}
