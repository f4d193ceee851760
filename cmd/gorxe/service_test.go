package main

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/udp"
	"github.com/gorxe/gorxe/xdp/veth"
)

// up without privileges lets programs of its host join, on AF_XDP. They reach it and other hosts at
// its address. When it ends, their devices fail.
func TestUpService(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	if err := pair.A.Do(func() error { // packets to own addresses go through the loopback interface
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "s")
	up := server(t, &pair.A, port, "up", pair.A.Iface, "--socket", path)
	confined(t, up, nobody, noCaps)
	host := pair.A.IPv4.Addr().String()
	run(t, &pair.A, "perf", "write-bw", host, "-n", "50", "-d", path).ok()
	run(t, &pair.A, "ping", host, "-c", "2", "-i", "0", "-d", path).ok()
	run(t, &pair.B, "perf", "read-bw", host, "-n", "50").ok()
	const perfPort = 18600
	perf := server(t, &pair.A, perfPort, "perf", "write-bw", "-d", path, "-p", itoa(perfPort))
	run(t, &pair.B, "perf", "write-bw", host, "-n", "50", "-p", itoa(perfPort)).ok()
	perf.wait().ok()

	dev, err := roce.OpenService(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if info := dev.Info(); info.Service != path || info.Name != pair.A.Iface {
		t.Errorf("Info() = %+v, want a member of %s", info, path)
	}
	up.cmd.Process.Signal(syscall.SIGTERM)
	if r := up.wait().ok(); !strings.Contains(r.err, path) {
		t.Errorf("up does not print its socket: %s", r.err)
	}
	select {
	case <-dev.Done():
	case <-time.After(limit):
		t.Fatal("the device works without its service")
	}
	if err := dev.Err(); !errors.Is(err, roce.ErrServiceEnded) {
		t.Errorf("Err() = %v, want ErrServiceEnded", err)
	}
}

// An address with several prefixes has one GID index, in the list of devices as in a device, and
// programs can join a service that has such an address.
func TestAddressWithSeveralPrefixes(t *testing.T) {
	pair := needRoot(t, veth.Options{NoIPv6: true})
	host := pair.A.IPv4.Addr()
	if err := pair.A.Do(func() error {
		l, err := netlink.LinkByName(pair.A.Iface)
		if err != nil {
			return err
		}
		for _, text := range []string{host.String() + "/16", "10.99.0.1/24"} {
			a, err := netlink.ParseAddr(text)
			if err == nil {
				err = netlink.AddrAdd(l, a)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	text := run(t, &pair.A, "devices").ok().stdout
	if !strings.Contains(text, "1: 10.99.0.1/24") && !strings.Contains(text, "0: 10.99.0.1/24") {
		t.Errorf("devices prints %s, want index 0 or 1 for 10.99.0.1", text)
	}
	peer := server(t, &pair.B, port, "up", pair.B.Iface)
	for _, datapath := range []string{"xdp", "udp"} {
		path := filepath.Join(t.TempDir(), "s")
		up := server(t, &pair.A, port, "up", pair.A.Iface, "--socket", path, "--datapath", datapath)
		run(t, &pair.A, "ping", pair.B.IPv4.Addr().String(), "-c", "1", "-d", path).ok()
		up.cmd.Process.Signal(syscall.SIGTERM)
		up.wait().ok()
	}
	peer.cmd.Process.Signal(syscall.SIGTERM)
	peer.wait().ok()
}

// Programs of an ordinary user join the service of this user at one address, by themselves.
func TestUpServiceOfUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can run programs as another user")
	}
	const uid = 12345
	dir, err := os.MkdirTemp("", "gorxe")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chown(dir, uid, uid); err != nil {
		t.Fatal(err)
	}
	addr := udp.RandomLoopback().String()
	as := func(c *exec.Cmd) {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		c.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+dir)
	}
	up := startWith(t, nil, as, "up", addr)
	path := filepath.Join(dir, "gorxe", addr+".sock")
	eventually(t, "the service listens", func() bool {
		d, err := roce.OpenService(path)
		if err != nil {
			return false
		}
		return d.Close() == nil
	})
	out := startWith(t, nil, as, "perf", "write-bw", addr, "-n", "50").wait().ok().stdout
	used := regexp.MustCompile(`127\.\d+\.\d+\.\d+`).FindAllString(out, -1)
	if slices.Sort(used); !slices.Equal(slices.Compact(used), []string{addr}) {
		t.Errorf("perf uses the addresses %q, want %s:\n%s", used, addr, out)
	}
	up.cmd.Process.Signal(syscall.SIGTERM)
	up.wait().ok()
}

// In a user namespace with no user but root, up keeps its user, and programs can join.
func TestUpServiceInUserNamespace(t *testing.T) {
	addr, path := udp.RandomLoopback().String(), filepath.Join(t.TempDir(), "s")
	in := func(c *exec.Cmd) {
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}}
	}
	probe := exec.Command("true")
	if in(probe); probe.Run() != nil {
		t.Skip("there are no user namespaces")
	}
	up := startWith(t, nil, in, "up", addr, "--socket", path)
	eventually(t, "the service listens", func() bool {
		select {
		case <-up.ended:
			t.Fatalf("up has ended: %s", up.err.String())
		default:
		}
		d, err := roce.OpenService(path)
		return err == nil && d.Close() == nil
	})
	run(t, nil, "ping", addr, "-c", "1", "-d", path).ok()
	up.cmd.Process.Signal(syscall.SIGTERM)
	up.wait().ok()
}

// A user who may not use the service of an interface is told so, and how to change that.
func TestServiceOfOtherUser(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	const uid = 12345
	as := func(c *exec.Cmd) {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	iface := pair.A.Iface
	up := server(t, &pair.A, port, "up", iface, "--no-confine") // it removes its socket at the end
	for _, args := range [][]string{
		{"up", iface}, {"run", "--dev", iface, "--", "true"}, {"ping", "-d", iface, "127.0.0.1"},
		{"perf", "write-bw", "-d", "/run/gorxe/" + iface + ".sock"},
	} {
		r := startWith(t, &pair.A, as, args...).wait()
		if r.status != 1 || !strings.Contains(r.err, "see --socket-mode") {
			t.Errorf("%q: status %d, message %q, want that the user may not use the service", args,
				r.status, r.err)
		}
	}
	up.cmd.Process.Signal(syscall.SIGTERM)
	up.wait().ok()
}

// A signal ends commands that wait for a service that does not answer.
func TestInterruptSilentService(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, args := range [][]string{
		{"ping", "127.0.0.1", "-d", path}, {"perf", "write-bw", "127.0.0.1", "-d", path},
		{"perf", "write-bw", "-d", path}, {"pingpong", "rc", "-d", path},
		{"statusbyte", "recv", "-d", path}, {"recv", "-d", path, "--dir", t.TempDir()},
	} {
		p := start(t, nil, args...)
		c, err := l.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		p.wait().fails(1, "interrupted")
		_ = c.Close()
	}
}

// The path of a socket may be relative. up prints the path that -d accepts.
func TestRelativeSocket(t *testing.T) {
	dir := t.TempDir()
	in := func(c *exec.Cmd) { c.Dir = dir }
	up := startWith(t, nil, in, "up", udp.RandomLoopback().String(), "--socket", "s", "--no-confine")
	path := filepath.Join(dir, "s")
	eventually(t, "up prints the path of its socket", func() bool {
		return strings.Contains(up.err.String(), "join at "+path+"\n")
	})
	run(t, nil, "ps", "--socket", path).ok()
	startWith(t, nil, in, "ps", "--socket", "s").wait().ok()
	startWith(t, nil, in, "run", "--socket", "s", "--", "true").wait().ok()
}

// A program that needs all addresses of an interface learns which service has one of them.
func TestRunBesideServiceOfAddress(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	addr := pair.A.IPv4.Addr().String()
	up := server(t, &pair.A, port, "up", addr, "--no-confine") // it removes its socket at the end
	for _, datapath := range []string{"auto", "udp"} {
		r := run(t, &pair.A, "run", "--dev", pair.A.Iface, "--datapath", datapath, "--", "true")
		if r.status != 1 || !strings.Contains(r.err, "join it with --dev "+addr) {
			t.Errorf("%s: status %d, want 1 and a hint: %s", datapath, r.status, r.err)
		}
	}
	run(t, &pair.A, "run", "--dev", addr, "--", "true").ok()
	up.cmd.Process.Signal(syscall.SIGTERM)
	up.wait().ok()
}

// A client of a host without its server says how to start that.
func TestServerMissing(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	addr := pair.A.IPv4.Addr().String()
	server(t, &pair.A, port, "up", addr, "--socket", "none", "--no-confine")
	file := filepath.Join(t.TempDir(), "flows.yaml")
	text := "{link: {rate: 1Gb/s}, flows: [{name: a, size: 100, period: 2ms}]}"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, &pair.B, "flow", "run", file, addr).fails(1, "start 'gorxe flow serve' there")
	run(t, &pair.B, "send", file, addr+":").fails(1, "start 'gorxe recv' there")
	run(t, &pair.B, "statusbyte", "send", addr, file).fails(1, "start it there")
}

// An alternative name of an interface is as good as its name: the service is the same.
func TestAlternativeName(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	alt := pair.A.Iface + "-alt"
	if err := pair.A.Do(func() error {
		l, err := netlink.LinkByName(pair.A.Iface)
		if err != nil {
			return err
		}
		return netlink.LinkAddAltName(l, alt)
	}); err != nil {
		t.Skip(err)
	}
	up := server(t, &pair.A, port, "up", alt, "--no-confine") // it removes its socket at the end
	for _, name := range []string{pair.A.Iface, alt, pair.A.IPv4.Addr().String()} {
		run(t, &pair.A, "run", "--dev", name, "--", "true").ok()
	}
	dump := start(t, &pair.A, "dump", alt)
	eventually(t, "dump captures", func() bool { return restricted(t, dump) })
	up.cmd.Process.Signal(syscall.SIGTERM)
	up.wait().ok()
}
