package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/gorxe/gorxe/xdp/veth"
)

func itoa(n int) string { return strconv.Itoa(n) }

func ns(e *veth.End) netns.NsHandle { return netns.NsHandle(e.Fd()) }

// server starts gorxe and waits until it listens on the TCP port and has dropped its privileges.
func server(t *testing.T, e *veth.End, port int, args ...string) *process {
	t.Helper()
	p := start(t, e, args...)
	eventually(t, "gorxe "+strings.Join(args, " ")+" listens", func() bool {
		select {
		case <-p.ended:
			r := p.wait()
			t.Fatalf("gorxe %s ended: status %d\n%s%s", r.args, r.status, r.stdout, r.err)
		default:
		}
		return listens(t, e, port) && (slices.Contains(args, "--no-confine") || restricted(t, p))
	})
	return p
}

// restricted reports whether a process has dropped its privileges. A server does so when its port
// is open, and then serves. On a busy host, that takes seconds.
func restricted(t *testing.T, p *process) bool {
	t.Helper()
	threads := threadStatus(t, p)
	return len(threads) > 0 && threads[0]["Seccomp"] == "2"
}

// listens reports whether a process listens on the port. It reads the kernel's list of sockets,
// because a connection would disturb the server.
func listens(t *testing.T, e *veth.End, port int) (found bool) {
	t.Helper()
	err := e.Do(func() error {
		for _, family := range []uint8{syscall.AF_INET, syscall.AF_INET6} {
			socks, err := netlink.SocketDiagTCP(family)
			if err != nil {
				return err
			}
			const listen = 10 // TCP_LISTEN
			for _, s := range socks {
				found = found || s.State == listen && int(s.ID.SourcePort) == port
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

const (
	port     = 18516 // default of up and ping
	perfPort = 18515 // default of perf and pingpong
)

var perfOps = []string{"write-bw", "write-lat", "write-imm-bw", "read-bw", "read-lat", "send-bw",
	"send-lat", "atomic-bw", "atomic-lat"}

// ping and perf work against up: over IPv4 and IPv6, with every operation.
func TestUpPingPerf(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	up := server(t, &pair.A, port, "up", pair.A.Iface, "--json")
	if n := attached(t, ns(&pair.A)); n != 1 {
		t.Fatalf("%d programs attached, want 1", n)
	}
	for _, host := range []string{pair.A.IPv4.Addr().String(), pair.A.IPv6.Addr().String()} {
		for _, size := range []string{"0", "64", "10000"} {
			m := run(t, &pair.B, "ping", host, "-c", "20", "-i", "0", "-s", size,
				"--json").ok().json()[0]
			fields(t, m, "host", "interface", "datapath", "path_mtu", "bytes", "sent", "received",
				"loss",
				"min_us", "avg_us", "p50_us", "p99_us", "max_us", "retransmits")
			if m["sent"] != 20.0 || m["received"] != 20.0 || m["loss"] != 0.0 ||
				m["min_us"].(float64) <= 0 || m["datapath"] != "afxdp-generic" {
				t.Errorf("ping: %v", m)
			}
		}
	}
	host := pair.A.IPv4.Addr().String()
	for _, op := range perfOps {
		m := run(t, &pair.B, "perf", op, host, "-n", "100", "--json").ok().json()[0]
		checkPerf(t, m, op)
	}
	m := run(t, &pair.B, "perf", "write-bw", host, "-b", "-q", "3", "-n", "50", "-s", "4k",
		"--json").ok().json()[0]
	if m["iterations"] != 300.0 || m["qps"] != 3.0 || m["bidirectional"] != true {
		t.Errorf("perf -b -q 3 -n 50: %v", m)
	}
	if rows := run(t, &pair.B, "perf", "send-lat", host, "-a", "-n", "10",
		"--json").ok().json(); len(rows) != 23 {
		t.Errorf("perf -a prints %d rows, want 23", len(rows))
	}
	r := run(t, &pair.B, "perf", "write-lat", host, "-D", "0.3", "-m", "512").ok()
	for _, want := range []string{"RDMA_Write Latency Test", "afxdp-generic", "512[B]",
		"t_typical[usec]", "99.9% percentile[usec]", "Lost packets:"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("perf prints no %q:\n%s", want, r.stdout)
		}
	}
	endUp(t, up, pair)
}

// checkPerf checks the output of perf --json.
func checkPerf(t *testing.T, m map[string]any, op string) {
	t.Helper()
	keys := []string{"op", "datapath", "path_mtu", "qps", "bytes", "iterations", "network"}
	columns := []string{"bw_peak", "bw_average", "msg_rate"}
	unit := "bw_unit"
	if strings.HasSuffix(op, "-lat") {
		columns = []string{"t_min", "t_max", "t_typical", "t_avg", "t_stdev", "t_99", "t_99_9"}
		unit = "t_unit"
	}
	fields(t, m, append(append(keys, columns...), unit)...)
	network, _ := m["network"].(map[string]any)
	fields(t, network, "selective_repeat", "congestion", "class", "rtt_us", "min_rtt_us", "window_packets",
		"rate_gbps", "retransmits", "spurious_retransmits", "rcvd_ecn_marked", "sent_cnps",
		"rcvd_cnps")
	if m["op"] != op || m["path_mtu"] != 1024.0 || m["iterations"] != 100.0 ||
		m["datapath"] != "afxdp-generic" {
		t.Errorf("%s: %v", op, m)
	}
	for _, c := range columns {
		if c != "t_stdev" && m[c].(float64) <= 0 {
			t.Errorf("%s: %s = %v, want more than 0", op, c, m[c])
		}
	}
}

// endUp interrupts up and checks that it prints its counters and detaches its program.
func endUp(t *testing.T, up *process, pair *veth.Pair) {
	t.Helper()
	up.cmd.Process.Signal(syscall.SIGINT)
	r := up.wait().ok()
	lines := r.json()
	first, last := lines[0], lines[len(lines)-1]
	dev, _ := first["device"].(map[string]any)
	if first["event"] != "up" || dev["datapath"] != "afxdp-generic" || dev["path_mtu"] != 1024.0 ||
		len(first["gids"].([]any)) < 2 {
		t.Errorf("first line of up: %v", first)
	}
	c, _ := last["counters"].(map[string]any)
	if last["event"] != "down" || c["rx_frames"] == nil || c["rx_frames"].(float64) < 1000 ||
		c["retry_exceeded_err"] != 0.0 {
		t.Errorf("last line of up: %v", last)
	}
	if n := attached(t, ns(&pair.A)); n != 0 {
		t.Errorf("%d programs are still attached, want 0", n)
	}
}

// Without --json, up prints GIDs and data path first and the counters last. A second up on the same
// interface fails.
func TestUpOutput(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	up := server(t, &pair.A, port, "up", pair.A.Iface, "--mode", "native", "-x", "1", "--window",
		"16")
	run(t, &pair.A, "up", pair.A.Iface).fails(1, "in use", "gorxe")
	run(t, &pair.B, "ping", pair.A.IPv4.Addr().String(), "-c", "2", "-i", "0.01").ok()
	up.cmd.Process.Signal(syscall.SIGTERM)
	r := up.wait().ok()
	for _, want := range []string{"afxdp-native", "path MTU 1024", "::ffff:10.77.0.1", "18516",
		"rx_frames", "ordinary interface again"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("up prints no %q:\n%s", want, r.stdout)
		}
	}
	if !strings.Contains(r.err, "ping for 10.77.0.2") {
		t.Errorf("up does not report its clients: %q", r.err)
	}
}

// After up is killed, no program stays attached, and up can start again at once.
func TestUpKilled(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	for range 2 {
		up := server(t, &pair.A, port, "up", pair.A.Iface)
		run(t, &pair.B, "ping", pair.A.IPv4.Addr().String(), "-c", "1").ok()
		up.cmd.Process.Kill()
		up.wait()
		eventually(t, "the program is detached",
			func() bool { return attached(t, ns(&pair.A)) == 0 })
	}
}

// The flags about lost packets and congestion reach the queue pairs. One side is enough to turn
// selective repeat off.
func TestTransportFlags(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	host := pair.A.IPv4.Addr().String()
	for _, c := range []struct {
		server, client []string
		selective      bool
		congestion     string
	}{
		{nil, nil, true, "adaptive"},
		{nil, []string{"--congestion", "dcqcn"}, true, "dcqcn"},
		{[]string{"--congestion", "none"}, []string{"--selective-repeat=false"}, false, "adaptive"},
		{[]string{"--selective-repeat=false"}, nil, false, "adaptive"},
	} {
		srv := server(t, &pair.A, perfPort, append([]string{"perf", "write-bw"}, c.server...)...)
		args := append([]string{"perf", "write-bw", host, "-n", "10", "--json"}, c.client...)
		m := run(t, &pair.B, args...).ok().json()[0]
		srv.wait().ok()
		n, _ := m["network"].(map[string]any)
		if n["selective_repeat"] != c.selective || n["congestion"] != c.congestion {
			t.Errorf("server %q, client %q: %v", c.server, c.client, n)
		}
	}
}

// A perf server prints the same row as its client, but its own view of the network, and exits after
// it.
func TestPerfServer(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	host := pair.A.IPv4.Addr().String()
	for _, op := range perfOps {
		srv := server(t, &pair.A, perfPort, "perf", op, "--json")
		m := run(t, &pair.B, "perf", op, host, "-n", "100", "--json").ok().json()[0]
		checkPerf(t, m, op)
		served := srv.wait().ok().json()[0]
		checkPerf(t, served, op)
		delete(served, "network")
		delete(m, "network")
		if fmt.Sprint(served) != fmt.Sprint(m) {
			t.Errorf("%s: the server prints %v, the client %v", op, served, m)
		}
	}
	if n := attached(t, ns(&pair.A)) + attached(t, ns(&pair.B)); n != 0 {
		t.Errorf("%d programs are still attached, want 0", n)
	}
}

// A perf server rejects clients with another protocol or test, and waits for the next client.
func TestPerfServerRejects(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	host := pair.A.IPv4.Addr().String()
	srv := server(t, &pair.A, 20000, "perf", "write-bw", "-p", "20000", "-d", pair.A.Iface)
	err := pair.B.Do(func() error {
		c, err := net.DialTimeout("tcp", net.JoinHostPort(host, "20000"), limit)
		if err != nil {
			return err
		}
		defer c.Close()
		io.WriteString(c, "0000:0011:5d6b8f:00000000")
		c.SetReadDeadline(time.Now().Add(limit))
		_, err = io.ReadAll(c) // until the server closes the connection
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	run(t, &pair.B, "perf", "read-bw", host, "-p", "20000").fails(1, "write-bw", "read-bw")
	run(t, &pair.B, "perf", "write-bw", host, "-p", "20000", "-n", "50").ok()
	r := srv.wait().ok()
	if !strings.Contains(r.err, "0000:0011:5d6b8f") ||
		!strings.Contains(r.stdout, "RDMA_Write BW Test") {
		t.Errorf("stdout: %s\nstderr: %s", r.stdout, r.err)
	}
}

// If the peer is killed during a test, perf fails with one line.
func TestPeerDies(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	host := pair.A.IPv4.Addr().String()
	for _, op := range []string{"write-bw", "send-lat", "write-lat"} {
		srv := server(t, &pair.A, perfPort, "perf", op)
		client := start(t, &pair.B, "perf", op, host, "-D", "30", "--json")
		eventually(t, "the client attaches to the interface",
			func() bool { return attached(t, ns(&pair.B)) == 1 })
		time.Sleep(500 * time.Millisecond)
		srv.cmd.Process.Kill()
		client.wait().fails(1, "peer")
		eventually(t, "the killed server's program is detached",
			func() bool { return attached(t, ns(&pair.A)) == 0 })
	}
	// If the client is interrupted, the server fails and says why.
	srv := server(t, &pair.A, perfPort, "perf", "write-lat", "--json")
	client := start(t, &pair.B, "perf", "write-lat", host, "-D", "30", "--json")
	eventually(t, "the client attaches to the interface",
		func() bool { return attached(t, ns(&pair.B)) == 1 })
	time.Sleep(500 * time.Millisecond)
	client.cmd.Process.Signal(syscall.SIGINT)
	client.wait().fails(1, "interrupted")
	r := srv.wait()
	if r.status != 1 || !strings.Contains(r.err, "interrupted") &&
		!strings.Contains(r.err, "closed the connection") {
		t.Errorf("server: status %d, stderr %q", r.status, r.err)
	}
}

// An interrupted ping prints its summary.
func TestPingInterrupted(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	server(t, &pair.A, port, "up", pair.A.Iface)
	p := start(t, &pair.B, "ping", pair.A.IPv4.Addr().String(), "-i", "0.05")
	time.Sleep(time.Second)
	p.cmd.Process.Signal(syscall.SIGINT)
	r := p.wait().ok()
	for _, want := range []string{"seq=1 time=", "RDMA ping statistics", "0% lost",
		"min/avg/p50/p99/max = "} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("ping prints no %q:\n%s", want, r.stdout)
		}
	}
}

// ping continues when its server is restarted; pings in between are lost.
func TestPingServerRestarts(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	up := server(t, &pair.A, port, "up", pair.A.Iface)
	p := start(t, &pair.B, "ping", pair.A.IPv4.Addr().String(), "-i", "0.1", "-c", "30", "-t", "1",
		"--json")
	time.Sleep(time.Second)
	up.cmd.Process.Kill()
	up.wait()
	time.Sleep(500 * time.Millisecond)
	server(t, &pair.A, port, "up", pair.A.Iface)
	r := p.wait()
	m := r.json()[0]
	if r.status != 1 || m["sent"] != 30.0 || m["received"].(float64) < 10 ||
		m["received"].(float64) >= 30 {
		t.Errorf("status %d, %v\n%s", r.status, m, r.err)
	}
}

// linkOf returns the interface of an end and a handle to change it.
func linkOf(t *testing.T, e *veth.End) (*netlink.Handle, netlink.Link) {
	t.Helper()
	h, err := netlink.NewHandleAt(ns(e))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	link, err := h.LinkByName(e.Iface)
	if err != nil {
		t.Fatal(err)
	}
	return h, link
}

// A waiting server whose interface is removed fails and says why.
func TestServersWithoutInterface(t *testing.T) {
	file := filepath.Join(t.TempDir(), "packets")
	if err := os.WriteFile(file, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, serve := range map[string]func(t *testing.T, pair *veth.Pair) *process{
		"perf": func(t *testing.T, pair *veth.Pair) *process {
			return server(t, &pair.A, perfPort, "perf", "write-bw", "-d", pair.A.Iface)
		},
		"pingpong": func(t *testing.T, pair *veth.Pair) *process {
			return server(t, &pair.A, perfPort, "pingpong", "rc", "-p", itoa(perfPort), "-d",
				pair.A.Iface)
		},
		"statusbyte": func(t *testing.T, pair *veth.Pair) *process {
			p := start(t, &pair.A, "statusbyte", "recv", "--keep", "-d", pair.A.Iface)
			eventually(t, "statusbyte recv serves", func() bool {
				return run(t, &pair.B, "statusbyte", "send", pair.A.IPv4.Addr().String(),
					file).status == 0
			})
			return p
		},
	} {
		t.Run(name, func(t *testing.T) {
			pair := needRoot(t, veth.Options{})
			p := serve(t, pair)
			h, link := linkOf(t, &pair.A)
			if err := h.LinkDel(link); err != nil {
				t.Fatal(err)
			}
			if r := p.wait(); r.status != 1 || !strings.Contains(r.err, "interface was removed") {
				t.Errorf("status %d, %q", r.status, r.err)
			}
		})
	}
}

// up reports and survives changes of the link state and the MTU. It fails when the interface is
// removed.
func TestUpInterfaceChanges(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	up := server(t, &pair.A, port, "up", pair.A.Iface, "--json")
	h, link := linkOf(t, &pair.A)
	host := pair.A.IPv4.Addr().String()
	for _, change := range []func() error{
		func() error { return h.LinkSetDown(link) },
		func() error { return h.LinkSetUp(link) },
		func() error { return h.LinkSetMTU(link, 700) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(300 * time.Millisecond)
	}
	m := run(t, &pair.B, "ping", host, "-c", "3", "-i", "0", "-s", "3000", "--json").ok().json()[0]
	if m["path_mtu"] != 512.0 {
		t.Errorf("path MTU %v, want 512, the smaller one of both sides", m["path_mtu"])
	}
	if err := h.LinkDel(link); err != nil {
		t.Fatal(err)
	}
	r := up.wait()
	if r.status != 1 || !strings.Contains(r.err, "removed") {
		t.Errorf("after removal of the interface: status %d, stderr %q", r.status, r.err)
	}
	var events []string
	for _, m := range r.json() {
		events = append(events, m["event"].(string))
	}
	for _, want := range []string{"up", "link-down", "link-up", "mtu", "session", "down"} {
		if !slices.Contains(events, want) {
			t.Errorf("no event %q in %q", want, events)
		}
	}
}

// A link-local peer can be named with a zone or with -I.
func TestPingLinkLocal(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	server(t, &pair.A, port, "up", pair.A.Iface)
	h, err := netlink.NewHandleAt(ns(&pair.A))
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	link, err := h.LinkByName(pair.A.Iface)
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := h.AddrList(link, netlink.FAMILY_V6)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if a.IP.IsLinkLocalUnicast() {
			run(t, &pair.B, "ping", a.IP.String()+"%"+pair.B.Iface, "-c", "2", "-i", "0").ok()
			run(t, &pair.B, "ping", a.IP.String(), "-I", pair.B.Iface, "-c", "2", "-i", "0").ok()
			return
		}
	}
	t.Fatal("the interface has no link-local address")
}

// Problems of an interface are reported in one line, and no program stays attached.
func TestInterfaceErrors(t *testing.T) {
	pair := needRoot(t, veth.Options{NoIPv6: true})
	e := &pair.A
	change := func(f func(h *netlink.Handle, l netlink.Link) error) {
		t.Helper()
		h, err := netlink.NewHandleAt(ns(e))
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		l, err := h.LinkByName(e.Iface)
		if err == nil {
			err = f(h, l)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	run(t, e, "up", e.Iface, "-x", "9").fails(2, "GID index 9", "0 (")
	run(t, e, "ping", "10.77.0.1", "--datapath", "xdp").fails(1, "own address")
	run(t, e, "ping", "203.0.113.1").fails(1, "no route")
	run(t, e, "ping", "10.77.0.2", "-c", "1").fails(1, "connection refused", "gorxe up")
	run(t, e, "perf", "write-bw", "10.77.0.2").fails(1, "connection refused")
	for _, command := range []string{"up " + e.Iface, "ping 10.77.0.2"} {
		args := append(strings.Fields(command), "--datapath", "xdp")
		startAs(t, e, unprivileged(t), args...).wait().fails(1, "permission", "run as root")
	}
	change(func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetMTU(l, 300) })
	run(t, e, "up", e.Iface).fails(1, "MTU", "300")
	change(func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetMTU(l, 1500) })
	change(func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetDown(l) })
	run(t, e, "up", e.Iface).fails(1, "down", "ip link set")
	change(func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetUp(l) })
	change(func(h *netlink.Handle, l netlink.Link) error {
		addrs, err := h.AddrList(l, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		for i := range addrs {
			if err := h.AddrDel(l, &addrs[i]); err != nil {
				return err
			}
		}
		return nil
	})
	run(t, e, "up", e.Iface).fails(1, "address", "ip addr add")
	run(t, e, "perf", "read-bw").fails(1, "gorxe devices")
	if n := attached(t, ns(e)); n != 0 {
		t.Errorf("%d programs are attached, want 0", n)
	}
}

// devices lists usable interfaces and the reason why others are not.
func TestDevices(t *testing.T) {
	pair := needRoot(t, veth.Options{MTU: 2200})
	r := run(t, &pair.A, "devices").ok()
	for _, want := range []string{pair.A.Iface, "2200", "2048", "10.77.0.1/24", "fd77::1/64",
		"generic, native", "Not available", "lo: "} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("devices prints no %q:\n%s", want, r.stdout)
		}
	}
	var seen bool
	text := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(run(t, &pair.A, "devices",
		"--json").ok().stdout), "["), "]")
	for _, m := range jsonLines(t, strings.ReplaceAll(text, "},{\"name\"", "}\n{\"name\"")) {
		if m["name"] != pair.A.Iface {
			continue
		}
		seen = true
		if m["usable"] != true || m["up"] != true || m["mtu"] != 2200.0 ||
			m["path_mtu"] != 2048.0 || m["queues"] != 1.0 || m["xdp_auto"] != "generic" {
			t.Errorf("devices --json: %v", m)
		}
		if gids := m["gids"].([]any); len(gids) < 2 {
			t.Errorf("GIDs = %v, want at least 2", gids)
		}
	}
	if !seen {
		t.Error("devices --json does not list the interface")
	}
}
