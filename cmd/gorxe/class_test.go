package main

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/gorxe/gorxe/xdp/veth"
)

// Each client chooses its traffic class, and up adopts it: every session is counted in the class of
// its client.
func TestClassesOfClients(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	up := server(t, &pair.A, port, "up", pair.A.Iface, "--json", "--class-map", "7:46:5",
		"--class-config", "0:preempt=64k", "--class-config", "7:fifo")
	host := pair.A.IPv4.Addr().String()
	run(t, &pair.B, "ping", host, "-c", "5", "-i", "0", "--class", "7", "--class-map", "7:46").ok()
	run(t, &pair.B, "ping", host, "-c", "5", "-i", "0", "--rping", "--class", "6").ok()
	for class, op := range map[int]string{1: "write-bw", 2: "read-lat", 0: "send-bw"} {
		m := run(t, &pair.B, "perf", op, host, "-n", "50", "--json", "--class",
			fmt.Sprint(class)).ok().json()[0]
		if n, _ := m["network"].(map[string]any); n["class"] != float64(class) {
			t.Errorf("perf --class %d: network %v", class, n)
		}
	}
	up.cmd.Process.Signal(syscall.SIGINT)
	lines := up.wait().ok().json()
	classMap, _ := lines[0]["class_map"].(map[string]any)
	if got, want := fmt.Sprint(classMap["dscp"], classMap["pcp"]),
		"[0 8 16 24 32 40 48 46] [0 1 2 3 4 5 6 5]"; got != want {
		t.Errorf("up prints the class map %s, want %s", got, want)
	}
	counters, _ := lines[len(lines)-1]["counters"].(map[string]any)
	for class := range 8 {
		n, ok := counters[fmt.Sprintf("class%d_sent_pkts", class)].(float64)
		if want := class < 3 || class > 5; !ok || (n > 0) != want {
			t.Errorf("up has sent %v packets of class %d, want some: %v", n, class, want)
		}
	}
}

// A perf server adopts the class of its client, unless it has its own. Clients and servers of the
// example programs' protocol tell each other no class.
func TestClassOfServers(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	host := pair.A.IPv4.Addr().String()
	class := func(r *result) any {
		n, _ := r.ok().json()[0]["network"].(map[string]any)
		return n["class"]
	}
	for _, c := range []struct {
		server []string
		want   float64
	}{{nil, 5}, {[]string{"--class", "3"}, 3}, {[]string{"--class", "0"}, 0}} {
		p := server(t, &pair.A, perfPort, append([]string{"perf", "write-lat", "-d", pair.A.Iface,
			"--json"}, c.server...)...)
		client := run(t, &pair.B, "perf", "write-lat", host, "--class", "5", "--json")
		if got := class(client); got != 5.0 {
			t.Errorf("the client's class is %v, want 5", got)
		}
		if got := class(p.wait()); got != c.want {
			t.Errorf("perf server %q: class %v, want %v", c.server, got, c.want)
		}
	}
	p := server(t, &pair.A, perfPort, "pingpong", "rc", "-d", pair.A.Iface, "--class", "2")
	run(t, &pair.B, "pingpong", "rc", host, "--class", "6").ok()
	p.wait().ok()
}
