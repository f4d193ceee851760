package live

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/papers/kit"
)

// The link in memory compares transport/rftp with WRITEs, with 1 and 8 streams.
func TestInMemory(t *testing.T) {
	c := DefaultConfig()
	c.Link, c.Rounds, c.Size = kit.Memory, 1, 4<<20
	var diag, table bytes.Buffer
	r, err := Run(t.Context(), c, &diag)
	if err != nil {
		t.Fatalf("%v\n%s", err, diag.String())
	}
	var names []string
	for i := range r.Results {
		v := &r.Results[i]
		names = append(names, v.Name)
		baseline := []string{toolWrite, toolWriteMany}[i%2]
		if v.Value <= 0 || v.BaselineValue <= 0 || v.Baseline != baseline || v.Rounds != 1 ||
			v.CPU <= 0 || v.BaselineCPU <= 0 {
			t.Errorf("%+v: want positive rates and times of one round beside %s", v, baseline)
		}
	}
	if want := []string{"mem", "mem", "mem_8", "mem_8"}; !slices.Equal(names, want) {
		t.Errorf("figures %v, want %v", names, want)
	}
	if err := r.WriteTable(&table); err != nil || !strings.Contains(table.String(), "link in memory") {
		t.Errorf("WriteTable() = %v:\n%s", err, table.String())
	}
	if n := len(r.Panels()); n != 2 {
		t.Errorf("%d diagrams, want 2", n)
	}
}

func TestListening(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue
   0: 02004D0A:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000
   1: 02004D0A:1D43 01004D0A:A000 01 00000000:00000000 00:00000000 00000000
`
	for port, want := range map[int]bool{22: true, 0x1d43: false, 0xa000: false, 23: false} {
		if got := listening(table, port); got != want {
			t.Errorf("listening(%d) = %v, want %v", port, got, want)
		}
	}
}

func TestParsePerf(t *testing.T) {
	r, err := parsePerf(`{"op":"write-bw","bytes":65536,"iterations":1000,"bw_average":4,"bw_unit":"Gb/sec"}`)
	if want := (result{Bytes: 65_536_000, Took: 131_072 * time.Microsecond}); err != nil || r != want {
		t.Errorf("parsePerf() = %+v, %v, want %+v", r, err, want)
	}
	for _, bad := range []string{"", "{}", `{"bytes":1,"iterations":1,"bw_average":4,"bw_unit":"MB/sec"}`} {
		if _, err := parsePerf(bad); err == nil {
			t.Errorf("parsePerf(%q) succeeded", bad)
		}
	}
}

// compare finds files that differ, are missing, or are too many.
func TestCompare(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		if err := makeTree(t.Context(), filepath.Join(dir, name), perDir+1); err != nil {
			t.Fatal(err)
		}
	}
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	if err := compare(a, b); err != nil {
		t.Fatalf("equal trees: %v", err)
	}
	last := filepath.Join(b, "d1", "f1000")
	data, err := os.ReadFile(last)
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Clone(data)
	changed[smallFile-1]++
	for name, content := range map[string][]byte{"changed": changed, "shorter": data[1:],
		"longer": append(bytes.Clone(data), 0), "empty": nil} {
		if err := os.WriteFile(last, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if compare(a, b) == nil {
			t.Errorf("%s file: no error", name)
		}
	}
	if err := os.Remove(last); err != nil {
		t.Fatal(err)
	}
	if compare(a, b) == nil {
		t.Error("missing file: no error")
	}
	if compare(b, a) == nil {
		t.Error("additional file: no error")
	}
}

// A figure misses its target if the median ratio is on the wrong side of it.
func TestTargets(t *testing.T) {
	f := figure{name: "x", kind: memory, own: toolRFTP}
	samples := map[string][]sample{toolRFTP: {{rate: 2, cpu: 3}, {rate: 4, cpu: 3}},
		"rival": {{rate: 1, cpu: 2}, {rate: 2, cpu: 2}}}
	for _, c := range []struct {
		target float64
		missed bool
	}{{2, false}, {2.5, true}} {
		list := f.results(&rival{tool: "rival", target: c.target, cpu: true}, samples)
		if len(list) != 2 || list[0].Missed() != c.missed || !list[1].Missed() {
			t.Errorf("target %v: %+v, want missed %v, and a missed CPU time", c.target, list, c.missed)
		}
	}
}
