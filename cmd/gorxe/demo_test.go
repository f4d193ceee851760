package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/gorxe/gorxe/xdp/veth"
)

// demoOps are the operations that demo must run.
var demoOps = []string{
	"SEND", "SEND imm", "SEND inv", "WRITE", "WRITE imm", "READ", "CMP_SWAP", "FETCH_ADD",
	"UC SEND", "UC SEND imm",
	"UC WRITE", "UC WRITE imm", "UD SEND", "UD SEND imm", "bulk WRITE",
}

// checkDemo checks the output of demo --json.
func checkDemo(t *testing.T, r *result, datapath string, loss float64, mtu int) {
	t.Helper()
	lines := r.json()
	if len(lines) != 1 {
		t.Fatalf("%d JSON objects, want 1: %s", len(lines), r.stdout)
	}
	m := lines[0]
	fields(t, m, "datapath", "path_mtu", "loss", "verified", "ops")
	if m["datapath"] != datapath || m["path_mtu"] != float64(mtu) || m["loss"] != loss ||
		m["verified"] != true {
		t.Errorf("got %v, %v, %v, %v; want %v, %v, %v, true", m["datapath"], m["path_mtu"],
			m["loss"], m["verified"], datapath, mtu, loss)
	}
	seen, retransmits := map[string]bool{}, 0.0
	for _, o := range m["ops"].([]any) {
		op := o.(map[string]any)
		fields(t, op, "op", "bytes", "count", "gbps", "p50_us", "p99_us", "retransmits")
		seen[op["op"].(string)] = true
		for _, k := range []string{"bytes", "count", "p50_us"} {
			if op[k].(float64) <= 0 {
				t.Errorf("%s = %v, want more than 0: %v", k, op[k], op)
			}
		}
		if op["p99_us"].(float64) < op["p50_us"].(float64) {
			t.Errorf("p99_us < p50_us: %v", op)
		}
		retransmits += op["retransmits"].(float64)
	}
	for _, op := range demoOps {
		if !seen[op] {
			t.Errorf("no operation %s in %v", op, m["ops"])
		}
	}
	if loss > 0 && retransmits == 0 {
		t.Error("packets were lost, but none was retransmitted")
	}
}

func TestDemoInMemory(t *testing.T) {
	checkDemo(t, run(t, nil, "demo", "--memory", "--json", "--bulk", "4m", "--mtu", "512").ok(),
		"memory", 0, 512)
	checkDemo(t, run(t, nil, "demo", "--memory", "--json", "--bulk", "4m", "--loss", "1%", "--seed",
		"7").ok(), "memory", 0.01, 1024)
	r := run(t, nil, "demo", "--memory", "--bulk", "4m").ok()
	for _, want := range append([]string{"retransmissions", "Data path: memory", "Verified"},
		demoOps...) {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("no %q in the table:\n%s", want, r.stdout)
		}
	}
	if r.err != "" {
		t.Errorf("stderr is %q, want no progress bar without a terminal", r.err)
	}
}

func TestDemoOnVeth(t *testing.T) {
	needRoot(t, veth.Options{}) // skips the test if demo would use the in-memory link
	checkDemo(t, run(t, nil, "demo", "--json", "--bulk", "8m").ok(), "afxdp-generic", 0, 1024)
	checkDemo(t, run(t, nil, "demo", "--json", "--bulk", "8m", "--mode", "native", "--mtu",
		"4096").ok(), "afxdp-native", 0, 4096)
	checkDemo(t, run(t, nil, "demo", "--json", "--bulk", "4m", "--loss", "1%").ok(),
		"afxdp-generic", 0.01, 1024)
}

// An interrupted demo removes its interfaces. The kernel detaches the programs of a killed demo and
// removes its namespaces, once the test closes them.
func TestDemoLeavesNothing(t *testing.T) {
	needRoot(t, veth.Options{})
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			p := start(t, nil, "demo", "--bulk", "1g")
			var held []netns.NsHandle // keeps the namespaces alive
			eventually(t, "demo attaches programs to both interfaces", func() bool {
				for _, h := range held {
					h.Close()
				}
				held = namespacesOf(t, p.cmd.Process.Pid)
				return len(held) == 2 && attached(t, held[0]) == 1 && attached(t, held[1]) == 1
			})
			defer func() {
				for _, h := range held {
					h.Close()
				}
			}()
			time.Sleep(300 * time.Millisecond) // demo sends packets
			if err := p.cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			r := p.wait()
			if sig == syscall.SIGKILL {
				for _, h := range held {
					eventually(t, "the program is detached",
						func() bool { return attached(t, h) == 0 })
				}
				return
			}
			r.fails(1, "interrupted")
			for _, h := range held {
				if n := attached(t, h); n != -1 {
					t.Errorf("the interface still exists, with %d programs", n)
				}
			}
		})
	}
}

// namespacesOf opens the network namespaces to which process pid has file descriptors, except its
// own.
func namespacesOf(t *testing.T, pid int) []netns.NsHandle {
	t.Helper()
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var out []netns.NsHandle
	seen := map[string]bool{own: true}
	links, _ := filepath.Glob(filepath.Join("/proc", itoa(pid), "fd", "*"))
	for _, l := range links {
		ns, err := os.Readlink(l)
		if err != nil || !strings.HasPrefix(ns, "net:[") || seen[ns] {
			continue
		}
		if h, err := netns.GetFromPath(l); err == nil {
			seen[ns] = true
			out = append(out, h)
		}
	}
	return out
}

// attached returns the number of XDP programs in a namespace, or -1 if it has no veth interface.
func attached(t *testing.T, ns netns.NsHandle) int {
	t.Helper()
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	links, err := h.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	n := -1
	for _, l := range links {
		if l.Type() != "veth" {
			continue
		}
		n = max(n, 0)
		if x := l.Attrs().Xdp; x != nil && x.Attached {
			n++
		}
	}
	return n
}
