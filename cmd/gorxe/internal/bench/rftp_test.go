package bench

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestRFTP(t *testing.T) {
	plot := filepath.Join(t.TempDir(), "rftp.png")
	const names = "fio_write_16KiB_depth1,fio_read_16KiB_depth1"
	out := run(t, "rftp", "--only", names, "--plot", plot, "--json", "--seed", "3")
	list := results(t, out, "target", "model")
	if len(list) != 2 {
		t.Fatalf("%s, want two figures", out)
	}
	for _, v := range list {
		if ratio, ok := v["ratio"].(float64); !ok || ratio <= 0 || ratio > 1 {
			t.Errorf("%v: want a ratio above 0", v)
		}
	}
	checkPlots(t, plot)
	out = run(t, "rftp", "--only", names)
	for _, want := range append(strings.Split(names, ","), "Seed 1.", "virtual time", "goodput") {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}
