package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"testing"
)

// gorxe bench rftp copies with all tools that are installed, and leaves nothing.
func TestBenchCopies(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("AF_XDP and network namespaces need root")
	}
	tmp := t.TempDir()
	p := startWith(t, nil, func(c *exec.Cmd) { c.Env = append(os.Environ(), "TMPDIR="+tmp) },
		"bench", "rftp", "--link", "veth", "--only", "mem,file_tmpfs", "--size", "2m",
		"--rounds", "1", "--json")
	out := p.wait().ok().stdout
	var rows []struct {
		Name, Baseline string
		Value          float64
		BaselineValue  float64 `json:"baseline_value"`
	}
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	var have []string
	for _, r := range rows {
		have = append(have, r.Name+" "+r.Baseline)
		if r.Value <= 0 || r.BaselineValue <= 0 {
			t.Errorf("%+v: want positive values", r)
		}
	}
	for _, want := range []string{"mem write_bw", "mem gridftp", "mem_cpu gridftp_notso"} {
		if !slices.Contains(have, want) {
			t.Errorf("results %q, want %q among them", have, want)
		}
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left in the temporary directory: %v, %v", left, err)
	}
}

// gorxe bench run measures intercepted calls and memory without perftest.
func TestBenchRun(t *testing.T) {
	out := run(t, nil, "bench", "run", "--rounds", "1", "--only", "call_p50,idle_rss", "--json").ok().
		stdout
	var rows []struct {
		Name, Unit, Port string
		Value, Target    float64
		Missed           *bool
	}
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	for i, name := range []string{"call_p50", "idle_rss"} {
		if len(rows) != 2 || rows[i].Name != name || rows[i].Value <= 0 || rows[i].Missed == nil {
			t.Fatalf("results %+v, want call_p50 and idle_rss", rows)
		}
	}
}

// gorxe bench run measures stock programs over AF_XDP, on a veth pair that it removes.
func TestBenchRunXDP(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("AF_XDP and network namespaces need root")
	}
	if _, err := exec.LookPath("ib_write_lat"); err != nil {
		t.Log("perftest is not installed: nothing to test")
		return
	}
	const name = "write_lat_8B_xdp"
	out := run(t, nil, "bench", "run", "--rounds", "1", "--only", name, "--json").ok().stdout
	var rows []struct {
		Name, Port string
		Value      float64
		Baseline   float64 `json:"baseline_value"`
	}
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if len(rows) != 1 || rows[0].Name != name || rows[0].Port != "xdp" || rows[0].Value <= 0 ||
		rows[0].Baseline <= 0 {
		t.Errorf("results %+v, want %s with port xdp", rows, name)
	}
}
