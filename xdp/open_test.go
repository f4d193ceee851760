//go:build linux

package xdp

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/gorxe/gorxe/xdp/veth"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// attached returns the ID of the XDP program on the interface, or 0.
func attached(t testing.TB, e *veth.End) uint32 {
	t.Helper()
	d, err := Probe(e.Iface, e.Fd())
	if err != nil {
		t.Fatal(err)
	}
	return d.Program
}

// onLink runs f on the interface in its namespace.
func onLink(t testing.TB, e *veth.End, f func(netlink.Link) error) {
	t.Helper()
	err := e.Do(func() error {
		l, err := netlink.LinkByName(e.Iface)
		if err != nil {
			return err
		}
		return f(l)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func flush(t testing.TB, e *veth.End) {
	onLink(t, e, func(l netlink.Link) error {
		list, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		for i := range list {
			err = errors.Join(err, netlink.AddrDel(l, &list[i]))
		}
		return err
	})
}

// Every refusal has its own error, says what to do, and leaves nothing attached.
func TestRefusals(t *testing.T) {
	yes := true
	cases := []struct {
		name    string
		iface   string // "" = the interface of the pair
		options Options
		prepare func(t *testing.T, e *veth.End)
		want    error
		says    string
	}{
		{name: "no such interface", iface: "nix0", want: ErrNoInterface, says: "ip link"},
		{name: "loopback", iface: "lo", want: ErrUnsupported, says: "Ethernet"},
		{name: "down", prepare: func(t *testing.T,
			e *veth.End) {
			onLink(t, e, netlink.LinkSetDown)
		}, want: ErrLinkDown, says: "ip link set dev gorxe-a up"},
		{name: "no address", prepare: func(t *testing.T, e *veth.End) { flush(t, e) },
			want: ErrNoAddress, says: "ip addr add"},
		{name: "MTU", prepare: func(t *testing.T, e *veth.End) {
			onLink(t, e, func(l netlink.Link) error { return netlink.LinkSetMTU(l, 335) })
		}, want: ErrMTUTooSmall, says: "336"},
		{name: "too many queues", options: Options{Queues: 2}, want: ErrOptions, says: "has 1"},
		{name: "zero-copy on veth", options: Options{ZeroCopy: &yes}, want: ErrUnsupported,
			says: "bind"},
		{name: "in use", prepare: func(t *testing.T, e *veth.End) { openEnd(t, e, Options{}) },
			want: ErrBusy, says: "another gorxe"},
		{name: "in use in the other mode", options: Options{Mode: Native},
			prepare: func(t *testing.T, e *veth.End) { openEnd(t, e, Options{}) }, want: ErrBusy,
			says: "xdp off"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			pair := newPair(t, veth.Options{})
			if c.prepare != nil {
				c.prepare(t, &pair.A)
			}
			before := attached(t, &pair.A)
			if c.iface == "" {
				c.iface = pair.A.Iface
			}
			c.options.NetNS = pair.A.Fd()
			p, err := Open(c.iface, c.options)
			if p != nil {
				p.Close()
			}
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("Open() = %v, want %v with %q", err, c.want, c.says)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error has more than one line: %q", err)
			}
			if after := attached(t, &pair.A); after != before {
				t.Errorf("program %d is attached, was %d before", after, before)
			}
		})
	}
}

// MTU 336 is the minimum: path MTU 256 and 80 bytes of headers.
func TestSmallestMTU(t *testing.T) {
	pair := newPair(t, veth.Options{MTU: 336, NoIPv6: true})
	if p := openEnd(t, &pair.A, Options{}); p.Info().MTU != 336 {
		t.Errorf("Info().MTU = %d", p.Info().MTU)
	}
}

// If a capability is missing, Open names it.
func TestPermission(t *testing.T) {
	for _, c := range []struct {
		drop []int
		says string
	}{
		{[]int{unix.CAP_NET_RAW}, "CAP_NET_RAW"},
		{[]int{unix.CAP_BPF, unix.CAP_SYS_ADMIN}, "CAP_BPF"},
		{[]int{unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN}, "CAP_NET_ADMIN"},
		{[]int{unix.CAP_BPF, unix.CAP_SYS_ADMIN, unix.CAP_SYS_RESOURCE, unix.CAP_NET_ADMIN,
			unix.CAP_NET_RAW}, "run as root"},
	} {
		t.Run(c.says, func(t *testing.T) {
			pair := newPair(t, veth.Options{})
			err := pair.A.Do(func() error {
				if err := dropCapabilities(c.drop); err != nil {
					return err
				}
				p, err := Open(pair.A.Iface, Options{})
				if err == nil {
					p.Close()
				}
				return err
			})
			if !errors.Is(err, ErrPermission) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("Open() = %v", err)
			}
			if id := attached(t, &pair.A); id != 0 {
				t.Errorf("program %d is attached", id)
			}
		})
	}
}

// If a seccomp profile forbids bpf(2), as that of some containers, Open does not ask for
// capabilities that the process has.
func TestForbiddenBPF(t *testing.T) {
	pair := newPair(t, veth.Options{})
	err := pair.A.Do(func() error {
		if err := forbidBPF(); err != nil {
			return err
		}
		p, err := Open(pair.A.Iface, Options{})
		if err == nil {
			p.Close()
		}
		return err
	})
	if !errors.Is(err, ErrPermission) || !strings.Contains(err.Error(), "seccomp") ||
		strings.Contains(err.Error(), "run as root") {
		t.Errorf("Open() = %v", err)
	}
}

// forbidBPF makes bpf(2) fail in the calling thread, which is not reused.
func forbidBPF() error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.SYS_BPF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	p := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER,
		uintptr(unsafe.Pointer(&p)), 0, 0)
}

// dropCapabilities removes capabilities from the calling thread, which is not reused.
func dropCapabilities(caps []int) error {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	if err := unix.Capget(&h, &d[0]); err != nil {
		return err
	}
	for _, c := range caps {
		d[c/32].Effective &^= 1 << (c % 32)
		d[c/32].Permitted &^= 1 << (c % 32)
		d[c/32].Inheritable &^= 1 << (c % 32)
	}
	return unix.Capset(&h, &d[0])
}

// Open and Close leave no descriptor, goroutine or program behind, even after errors.
func TestNothingLeaks(t *testing.T) {
	pair := newPair(t, veth.Options{Queues: 2})
	yes := true
	cycle := func() {
		p, err := Open(pair.A.Iface, Options{NetNS: pair.A.Fd()})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open(pair.A.Iface, Options{NetNS: pair.A.Fd()}); !errors.Is(err, ErrBusy) {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Fatalf("second Close: %v", err)
		}
		if _, err := Open(pair.A.Iface,
			Options{NetNS: pair.A.Fd(), ZeroCopy: &yes}); !errors.Is(err, ErrUnsupported) {
			t.Fatal(err)
		}
	}
	cycle()
	fds, goroutines, maps := resources(t)
	for range 5 {
		cycle()
	}
	for range 100 { // goroutines take a moment to end
		if runtime.NumGoroutine() <= goroutines {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	f, g, m := resources(t)
	if f > fds || g > goroutines || m > maps {
		t.Errorf("descriptors %d -> %d, goroutines %d -> %d, AF_XDP mappings %d -> %d", fds, f,
			goroutines, g, maps, m)
	}
	if id := attached(t, &pair.A); id != 0 {
		t.Errorf("program %d is still attached", id)
	}
}

func resources(t *testing.T) (fds, goroutines, mappings int) {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	m, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return len(d), runtime.NumGoroutine(),
		strings.Count(string(m), "socket:") + strings.Count(string(m), "[eventfd]")
}

// childEnv makes the test binary open a port on the named interface and sleep.
const childEnv = "GORXE_XDP_TEST_CHILD"

func TestMain(m *testing.M) {
	if iface := os.Getenv(childEnv); iface != "" {
		p, err := Open(iface, Options{})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("open", p.Info().Datapath)
		time.Sleep(time.Minute)
	}
	os.Exit(m.Run())
}

// The kernel detaches the program even if the process is killed.
func TestKilledProcessLeavesNoProgram(t *testing.T) {
	pair := newPair(t, veth.Options{})
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"="+pair.A.Iface)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := pair.A.Do(cmd.Start); err != nil { // the child inherits the thread's namespace
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "open afxdp-generic\n" {
		t.Fatalf("child wrote %q, %v", line, err)
	}
	if attached(t, &pair.A) == 0 {
		t.Fatal("the child's program is not attached")
	}
	if err := cmd.Process.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_, _ = cmd.Process.Wait()
	deadline := time.Now().Add(5 * time.Second)
	for attached(t, &pair.A) != 0 {
		if time.Now().After(deadline) {
			t.Fatal("the program is still attached 5 s after the process died")
		}
		time.Sleep(time.Millisecond)
	}
	openEnd(t, &pair.A, Options{}) // and its queue is free again
}

// Interfaces reports the properties of a veth.
func TestInterfaces(t *testing.T) {
	pair := newPair(t, veth.Options{MTU: 4200, Queues: 2})
	list, err := Interfaces(pair.A.Fd())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range list {
		names = append(names, d.Name)
		switch d.Name {
		case "lo":
			if !errors.Is(d.Err, ErrUnsupported) || d.XDP.Generic {
				t.Errorf("lo: %+v", d)
			}
		case pair.A.Iface:
			if d.Err != nil || d.Kind != "veth" || d.Driver != "veth" || !d.Up || d.MTU != 4200 ||
				d.PathMTU != 4096 || d.Queues != 2 ||
				!d.XDP.Generic || !d.XDP.Native || d.XDP.ZeroCopy || d.Auto != Generic ||
				d.MAC != pair.A.MAC || d.Program != 0 {
				t.Errorf("%+v", d)
			}
			if len(d.Addrs) != 3 || !d.Addrs[0].Addr().IsLinkLocalUnicast() ||
				d.Addrs[1] != pair.A.IPv4 || d.Addrs[2] != pair.A.IPv6 {
				t.Errorf("Addrs = %v", d.Addrs)
			}
		}
	}
	if len(list) < 2 {
		t.Errorf("Interfaces() = %v", names)
	}
	openEnd(t, &pair.A, Options{})
	if d, err := Probe(pair.A.Iface, pair.A.Fd()); err != nil || d.Program == 0 ||
		!errors.Is(d.Err, ErrBusy) {
		t.Errorf("Probe() with an open port = %+v, %v", d, err)
	}
	flush(t, &pair.B)
	onLink(t, &pair.B, func(l netlink.Link) error { return netlink.LinkSetMTU(l, 300) })
	if d, err := Probe(pair.B.Iface, pair.B.Fd()); err != nil ||
		!errors.Is(d.Err, ErrMTUTooSmall) || d.PathMTU != 0 || len(d.Addrs) != 0 {
		t.Errorf("Probe() with MTU 300 and no address = %+v, %v", d, err)
	}
	if _, err := Probe("nix0", pair.A.Fd()); !errors.Is(err, ErrNoInterface) {
		t.Errorf("Probe() of an unknown interface = %v", err)
	}
}
