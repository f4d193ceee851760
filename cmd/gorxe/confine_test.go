package main

import (
	encoding "encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/udp"
	"github.com/gorxe/gorxe/xdp/veth"
)

// threadStatus returns the lines of /proc/PID/status of each thread, by key.
func threadStatus(t *testing.T, p *process) (threads []map[string]string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("/proc", itoa(p.cmd.Process.Pid), "task/*/status"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has ended
		}
		m := map[string]string{}
		for _, line := range strings.Split(string(text), "\n") {
			key, value, _ := strings.Cut(line, ":")
			m[key] = strings.Join(strings.Fields(value), " ")
		}
		threads = append(threads, m)
	}
	return threads
}

// confined waits until a process is confined, and checks what its threads have kept. caps is the
// set of capabilities.
func confined(t *testing.T, p *process, uid int, caps string) {
	t.Helper()
	defer func() {
		if t.Failed() { // show what it does
			p.cmd.Process.Signal(syscall.SIGQUIT)
			t.Logf("gorxe %s: %s", strings.Join(p.cmd.Args[1:], " "), p.wait().err)
		}
	}()
	eventually(t, "gorxe is confined", func() bool {
		select {
		case <-p.ended:
			r := p.wait()
			t.Fatalf("gorxe %s ended: status %d\n%s%s", r.args, r.status, r.stdout, r.err)
		default:
		}
		return restricted(t, p)
	})
	const none = "0000000000000000"
	threads := threadStatus(t, p)
	if len(threads) < 2 {
		t.Errorf("%d threads, want several", len(threads))
	}
	for _, s := range threads {
		for key, want := range map[string]string{
			"Uid": fmt.Sprintf("%d %[1]d %[1]d %[1]d", uid), "Groups": "", "CapInh": none,
			"CapPrm": caps, "CapEff": caps, "CapAmb": none, "NoNewPrivs": "1",
			"Seccomp": "2",
		} {
			if s[key] != want {
				t.Errorf("thread %s: %s is %q, want %q", s["Pid"], key, s[key], want)
			}
		}
	}
}

const (
	nobody      = 65534
	noCaps      = "0000000000000000"
	dacOverride = "0000000000000002"
)

// up without privileges serves ping, perf, perftest's connections and rping, follows address
// changes, resolves neighbors, and detaches at the end.
func TestUpConfined(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	up := server(t, &pair.A, port, "up", pair.A.Iface, "--json")
	confined(t, up, nobody, noCaps)
	host := pair.A.IPv4.Addr().String()
	session := func() {
		t.Helper()
		run(t, &pair.B, "ping", host, "-c", "5", "-i", "0").ok()
		run(t, &pair.B, "ping", "--rping", host, "-c", "2", "-i", "0").ok()
		run(t, &pair.B, "perf", "write-bw", host, "-n", "50").ok()
		run(t, &pair.B, "perf", "read-lat", host, "-n", "50", "-R").ok()
	}
	session()
	// The server must be able to resolve its clients again.
	a, linkA := linkOf(t, &pair.A)
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := a.NeighList(linkA.Attrs().Index, family)
		if err != nil {
			t.Fatal(err)
		}
		for i := range list {
			_ = a.NeighDel(&list[i])
		}
	}
	session()
	b, linkB := linkOf(t, &pair.B)
	add := func(h *netlink.Handle, l netlink.Link, ip net.IP) {
		t.Helper()
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(24, 32)}}
		if err := h.AddrAdd(l, addr); err != nil {
			t.Fatal(err)
		}
	}
	add(a, linkA, net.IPv4(10, 78, 0, 1))
	add(b, linkB, net.IPv4(10, 78, 0, 2))
	host = "10.78.0.1"
	eventually(t, "up serves the new address", func() bool {
		return run(t, &pair.B, "ping", host, "-c", "1", "-t", "1").status == 0
	})
	run(t, &pair.B, "perf", "send-bw", host, "-n", "50").ok()
	confined(t, up, nobody, noCaps) // also threads that were created meanwhile

	up.cmd.Process.Signal(syscall.SIGINT)
	r := up.wait().ok()
	events := map[any]map[string]any{}
	for _, m := range r.json() {
		events[m["event"]] = m
	}
	if text := fmt.Sprint(events["confined"]["message"]); !strings.Contains(text,
		"user 65534:65534, no capabilities, no new privileges") {
		t.Errorf("event confined: %q", text)
	}
	if events["gids"] == nil || events["down"] == nil {
		t.Errorf("events %v, want gids and down", r.stdout)
	}
	if n := attached(t, ns(&pair.A)); n != 0 {
		t.Errorf("%d programs are still attached, want 0", n)
	}
}

// The servers that serve one client drop their privileges before it comes.
func TestServersConfined(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	host := pair.A.IPv4.Addr().String()
	ended := func(p *process) {
		t.Helper()
		if r := p.wait().ok(); !strings.Contains(r.err, "confined: user 65534") {
			t.Errorf("%s does not print what it kept: %q", r.args, r.err)
		}
		if n := attached(t, ns(&pair.A)); n != 0 {
			t.Errorf("%d programs are still attached, want 0", n)
		}
	}
	for _, args := range [][]string{{"perf", "send-lat", "-n", "20"},
		{"pingpong", "rc", "-g", "1", "-n", "20"}} {
		srv := server(t, &pair.A, perfPort, append(args, "-d", pair.A.Iface, "-p",
			itoa(perfPort))...)
		confined(t, srv, nobody, noCaps)
		client := append([]string{args[0], args[1], host}, args[2:]...)
		run(t, &pair.B, client...).ok()
		ended(srv)
	}
	srv := start(t, &pair.A, "perf", "write-bw", "-R", "-d", pair.A.Iface)
	confined(t, srv, nobody, noCaps)
	run(t, &pair.B, "perf", "write-bw", "-R", host, "-n", "20").ok()
	ended(srv)
	srv = start(t, &pair.A, "statusbyte", "recv", "-d", pair.A.Iface)
	confined(t, srv, nobody, noCaps)
	run(t, &pair.B, "statusbyte", "send", host, "--cameras", "1", "--duration", "100ms").ok()
	ended(srv)
}

// recv does not start with a directory in which its user cannot store files.
func TestRecvUnwritable(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to run as another user")
	}
	dir, err := os.MkdirTemp("", "gorxe")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, nil, "recv", "-d", udp.RandomLoopback().String(), "--dir", dir, "--user", "65534").
		fails(1, dir, "permission denied", "--user")
}

// statusbyte recv keeps access to its directory, also to parts that belong to other users, but not
// to other files. With --user it has the rights of that user only.
func TestRecvConfined(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	host := pair.A.IPv4.Addr().String()
	consumer := 4321
	for _, c := range []struct {
		name, caps string
		uid        int
		args       []string
	}{
		{"default", dacOverride, 0, nil},
		{"user", noCaps, consumer, []string{"--user", itoa(consumer)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			devices := []string{filepath.Join(dir, "device-000"), filepath.Join(dir, "device-001")}
			if err := os.Mkdir(devices[0], 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // the user must get there
				t.Fatal(err)
			}
			for _, d := range []string{dir, devices[0]} {
				if err := os.Chown(d, consumer, consumer); err != nil {
					t.Fatal(err)
				}
			}
			srv := start(t, &pair.A, append([]string{"statusbyte", "recv", "-d", pair.A.Iface,
				"--dir", dir, "--devices", "0-1"}, c.args...)...)
			confined(t, srv, c.uid, c.caps)
			run(t, &pair.B, "statusbyte", "send", host, "--cameras", "2", "--duration",
				"100ms").ok()
			if r := srv.wait().ok(); !strings.Contains(r.err, "files in "+dir) {
				t.Errorf("recv does not print what it kept: %q", r.err)
			}
			for _, d := range devices {
				if _, err := os.Stat(filepath.Join(d, "end")); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// dump has no privileges while it decodes packets, and can still write its file.
func TestDumpConfined(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	file := filepath.Join(t.TempDir(), "file.pcapng")
	p := start(t, &pair.A, "dump", "-c", "3", "-w", file, pair.A.Iface)
	confined(t, p, nobody, noCaps)
	eventually(t, "dump ends", func() bool {
		select {
		case <-p.ended:
			return true
		default:
		}
		err := pair.B.Do(func() error {
			c, err := net.Dial("udp", net.JoinHostPort(pair.A.IPv4.Addr().String(), "4791"))
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write(make([]byte, 64))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return false
	})
	p.wait().ok()
	if info, err := os.Stat(file); err != nil || info.Size() < 200 {
		t.Errorf("%s: %v, %v; want three frames", file, info, err)
	}
}

// --user selects the user, and --no-confine keeps the privileges.
func TestConfineFlags(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	up := start(t, &pair.A, "up", pair.A.Iface, "--user", "1234:1235")
	confined(t, up, 1234, noCaps)
	up.cmd.Process.Signal(syscall.SIGTERM)
	up.wait().ok()

	up = server(t, &pair.A, port, "up", pair.A.Iface, "--no-confine")
	run(t, &pair.B, "ping", pair.A.IPv4.Addr().String(), "-c", "1").ok()
	s := threadStatus(t, up)[0]
	if s["Uid"] != "0 0 0 0" || s["NoNewPrivs"] != "0" || s["CapEff"] == noCaps {
		t.Errorf("with --no-confine: user %s, NoNewPrivs %s, CapEff %s", s["Uid"], s["NoNewPrivs"],
			s["CapEff"])
	}
	up.cmd.Process.Signal(syscall.SIGTERM)
	if r := up.wait().ok(); !strings.Contains(r.err, "not confined") {
		t.Errorf("up --no-confine does not say that it is not confined: %q", r.err)
	}
}

// A user who has only the capabilities of the binary can run up: file capabilities that are
// permitted, but not effective. Without them, other commands still run.
func TestFileCapabilities(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	text, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(filepath.Dir(binary), "gorxe-caps")
	if err := os.WriteFile(copied, text, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(copied)
	if err := setFileCaps(copied); err != nil {
		t.Skipf("the file system has no file capabilities: %v", err)
	}
	old := binary
	binary = copied
	defer func() { binary = old }()
	user := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	up := startAs(t, &pair.A, user, "up", pair.A.Iface)
	eventually(t, "up listens", func() bool { return listens(t, &pair.A, port) })
	run(t, &pair.B, "ping", pair.A.IPv4.Addr().String(), "-c", "1").ok()
	for _, s := range threadStatus(t, up) {
		if s["CapPrm"] != noCaps || s["CapEff"] != noCaps || s["NoNewPrivs"] != "1" {
			t.Errorf("CapPrm %s, CapEff %s, NoNewPrivs %s; want none, none, 1", s["CapPrm"],
				s["CapEff"], s["NoNewPrivs"])
		}
	}
	up.cmd.Process.Signal(syscall.SIGTERM)
	up.wait().ok()
}

// setFileCaps gives a file the capabilities CAP_NET_ADMIN, CAP_NET_RAW, CAP_IPC_LOCK and CAP_BPF,
// permitted only (setcap NAME=p).
func setFileCaps(file string) error {
	// VFS_CAP_REVISION_2 (linux/capability.h), without the effective bit
	const revision2 = 0x02000000
	caps := uint64(1)<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW | 1<<unix.CAP_IPC_LOCK |
		1<<unix.CAP_BPF
	le := encoding.LittleEndian
	var b [20]byte // magic, permitted and inheritable (lower half), the same (upper half)
	le.PutUint32(b[0:], revision2)
	le.PutUint32(b[4:], uint32(caps))
	le.PutUint32(b[12:], uint32(caps>>32))
	return unix.Setxattr(file, "security.capability", b[:], 0)
}
