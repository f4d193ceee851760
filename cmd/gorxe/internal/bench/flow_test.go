package bench

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestFlow(t *testing.T) {
	plot := filepath.Join(t.TempDir(), "flow.svg")
	out := run(t, "flow", "--link", "memory", "--rounds", "1", "--json", "--plot", plot,
		"--only", "order_3x4,yolo_end_to_end,overhead_64KB")
	list := results(t, out, "paper")
	if len(list) != 3+6+1 || list[0]["name"] != "order_3x4" || list[0]["value"] != 1.0 {
		t.Errorf("results %v, want order_3x4 with the value 1 first", list)
	}
	if f := list[len(list)-1]; f["name"] != "overhead_64KB" || f["paper"] != 670.0 {
		t.Errorf("result %v, want overhead_64KB with the paper's 670 us", f)
	}
	checkPlots(t, plot)
}

// The table has the paper's figures.
func TestFlowTable(t *testing.T) {
	out := run(t, "flow", "--link", "memory", "--rounds", "1", "--only", "latency_4MB")
	for _, want := range []string{"latency_4MB", "37", "no_classes", "layer_64KiB", "978 Mb/s"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}
