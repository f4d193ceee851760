package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gorxe/gorxe/xdp/veth"
)

// The messages of flows go to a server on another host, which has dropped its privileges.
func TestFlowServe(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	file := filepath.Join(t.TempDir(), "flows.yaml")
	text := `
link: {rate: 1Gb/s}
flows:
  - {name: high, priority: 7, size: 100, period: 2ms}
  - {name: low, size: 50KiB, part: 8KiB, period: 20ms}
`
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	p := start(t, &pair.A, "flow", "serve", file, "-d", pair.A.Iface, "--json")
	var sent *result
	eventually(t, "flow serve receives", func() bool {
		sent = run(t, &pair.B, "flow", "run", file, pair.A.IPv4.Addr().String(), "-D", "0.2",
			"--json")
		return sent.status == 0
	})
	var rows []map[string]any
	if err := json.Unmarshal([]byte(sent.stdout), &rows); err != nil || len(rows) != 2 {
		t.Fatalf("%d rows, want 2: %s, %v", len(rows), sent.stdout, err)
	}
	for _, m := range rows {
		fields(t, m, "flow", "priority", "sent", "mean_ns", "max_ns", "bound_ns", "deadline_ns",
			"late", "dropped", "missed", "within")
		if m["sent"].(float64) < 1 {
			t.Errorf("flow %v sent nothing", m["flow"])
		}
	}
	if !restricted(t, p) {
		t.Error("flow serve keeps its privileges")
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	received := p.wait().ok()
	if n := strings.Count(received.stdout, `"messages"`); n < 2 {
		t.Errorf("%d reports of senders, want at least 2: %s", n, received.stdout)
	}
	for _, m := range received.json() {
		fields(t, m, "flow", "peer", "messages", "bytes")
	}
}
