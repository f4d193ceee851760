package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gorxe/gorxe/xdp/veth"
)

// stopUp interrupts a server and returns the counters of refused peers in its last line.
func stopUp(t *testing.T, up *process) map[string]any {
	t.Helper()
	up.cmd.Process.Signal(syscall.SIGINT)
	lines := up.wait().ok().json()
	peers, _ := lines[len(lines)-1]["peers"].(map[string]any)
	return peers
}

// Servers serve the peers that --allow, --deny and the subnets of the interface permit.
func TestAccess(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	host, client := pair.A.IPv4.Addr().String(), pair.B.IPv4.Addr().String()
	for _, c := range []struct {
		flags  []string
		serves bool
	}{
		{nil, true}, {[]string{"--allow", "198.51.100.0/24"}, false},
		{[]string{"--allow", "198.51.100.0/24," + client}, true},
		{[]string{"--allow", "all", "--deny", client}, false},
	} {
		up := server(t, &pair.A, port,
			append([]string{"up", pair.A.Iface, "--json"}, c.flags...)...)
		ping := run(t, &pair.B, "ping", host, "-c", "1")
		rping := run(t, &pair.B, "ping", host, "-c", "1", "--rping")
		want := 0.0
		if c.serves {
			ping.ok()
			rping.ok()
		} else {
			want = 2
			ping.fails(1, "--allow")
			rping.fails(1, "rping")
		}
		// The client of rping may repeat its request.
		n, _ := stopUp(t, up)["refused_access"].(float64)
		if n < want || (want == 0) != (n == 0) {
			t.Errorf("%v: refused_access = %v, want %v", c.flags, n, want)
		}
	}
	srv := server(t, &pair.A, perfPort, "pingpong", "rc", "-d", pair.A.Iface, "--deny", client)
	run(t, &pair.B, "pingpong", "rc", host).fails(1)
	srv.cmd.Process.Kill()
	if r := srv.wait(); !strings.Contains(r.err, "--deny") {
		t.Errorf("the server of pingpong prints %q", r.err)
	}
}

// Services that are not chosen have no port.
func TestServices(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	host := pair.A.IPv4.Addr().String()
	up := server(t, &pair.A, port, "up", pair.A.Iface, "--services", "ping", "--json")
	if listens(t, &pair.A, perfPort) {
		t.Errorf("up listens on TCP port %d without perf", perfPort)
	}
	run(t, &pair.B, "ping", host, "-c", "1").ok()
	run(t, &pair.B, "ping", host, "-c", "1", "--rping").fails(1, "rping")
	run(t, &pair.B, "perf", "write-bw", host, "-p", itoa(port), "-n", "5").fails(1)
	stopUp(t, up)
	run(t, &pair.A, "up", pair.A.Iface, "--services", "telnet").fails(2, "telnet", "rping")
}

// A client that names the GID of another host gets an error, and the other host gets no packet.
func TestForeignGID(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	victim, victimGID := pair.B.IPv4.Addr().Next().Next(), ""
	for i, b := range netip.AddrFrom16(victim.As16()).As16() {
		if i > 0 && i%2 == 0 {
			victimGID += ":"
		}
		victimGID += fmt.Sprintf("%02x", b)
	}
	up := server(t, &pair.A, port, "up", pair.A.Iface, "--json")
	request := `{"gorxe":1,"kind":"request","service":"perf","params":{"op":"write-bw","bytes":65536,` +
		`"qps":1,"depth":128,"mtu":0,"bidirectional":true},"qps":[{"endpoint":{"qpn":17,"psn":1,` +
		`"gid":"` + victimGID +
		`","mtu":1024,"pkey":65535},"buffer":{"addr":4096,"len":65536,"rkey":1}}]}`
	var answer bytes.Buffer
	err := pair.B.Do(func() error {
		c, err := net.DialTimeout("tcp", net.JoinHostPort(pair.A.IPv4.Addr().String(), itoa(port)),
			limit)
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(limit))
		if _, err := io.WriteString(c, request+"\n"); err != nil {
			return err
		}
		_, err = io.Copy(&answer, c)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(answer.String(), victim.String()) ||
		!strings.Contains(answer.String(), "does not belong") {
		t.Errorf("the server answers %q", answer.String())
	}
	if peers := stopUp(t, up); peers["refused_address"] != 1.0 {
		t.Errorf("counters %v, want 1 in refused_address", peers)
	}
}

// With --pkey, up serves peers of the same partition only, and counts and reports the others.
func TestPKey(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	host := pair.A.IPv4.Addr().String()
	up := server(t, &pair.A, port, "up", pair.A.Iface, "--pkey", "0x8001", "--json")
	run(t, &pair.B, "ping", host, "-c", "1", "--pkey", "0x8001").ok()
	run(t, &pair.B, "ping", host, "-c", "1", "--pkey", "1", "--rping").ok()
	run(t, &pair.B, "ping", host, "-c", "1").fails(1, "P_Key", "0x8001", "0xffff")
	run(t, &pair.B, "ping", host, "-c", "1", "--rping").fails(1, "no answer")
	up.cmd.Process.Signal(syscall.SIGINT)
	r := up.wait().ok()
	lines := r.json()
	counters, _ := lines[len(lines)-1]["counters"].(map[string]any)
	if n, _ := counters["drop_pkey"].(float64); n == 0 {
		t.Errorf("drop_pkey is 0")
	}
	if !strings.Contains(r.stdout, `"counter":"drop_pkey"`) {
		t.Errorf("up prints no warning:\n%s", r.stdout)
	}
}
