package roce

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/internal/service"
	"github.com/gorxe/gorxe/udp"
	"github.com/gorxe/gorxe/xdp/veth"
)

// hostService opens the own device of a node service at a path.
func hostService(t *testing.T, name, path string, opts ...Option) *end {
	t.Helper()
	s, err := service.New(path, service.Options{})
	must(t, err)
	d, err := Open(name, append(opts, inside.Host(s).(Option))...)
	if err != nil {
		_ = s.Close()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		must(t, s.Close())
		must(t, d.Close())
	})
	return newEnd(t, d, rigConfig{})
}

// member opens a device that joins the service at a path.
func member(t *testing.T, path string, opts ...Option) *end {
	t.Helper()
	d, err := OpenService(path, opts...)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	if d.Info().Service != path {
		t.Errorf("Info().Service = %q, want %q", d.Info().Service, path)
	}
	return newEnd(t, d, rigConfig{})
}

// write sends data from a to b with an RDMA WRITE, and checks it.
func write(t *testing.T, a, b *QP, from, to *end) {
	t.Helper()
	want := fill(from.mr.Bytes(), 7)
	must(t, b.PostRecv(RecvWR{ID: 10}))
	must(t, a.PostSend(SendWR{ID: 9, Op: OpWriteImm, Flags: Signaled,
		SGEs: []SGE{from.mr.SGE(0, len(want))}, RemoteAddr: to.mr.Addr(), RKey: to.mr.RKey()}))
	pollOK(t, 9, WCWrite, from.cq, to.cq)
	pollOK(t, 10, WCRecvWriteImm, to.cq)
	if string(to.mr.Bytes()) != string(want) {
		t.Error("the data differs")
	}
	clear(to.mr.Bytes())
}

// talk connects two devices of one address in both directions, with and without the connection
// manager.
func talk(t *testing.T, a, b *end) {
	t.Helper()
	ca, cb := dialAccept(t, a, b)
	write(t, ca.QP(), cb.QP(), a, b)
	write(t, cb.QP(), ca.QP(), b, a)
	must(t, ca.Close())
	<-cb.Done()
	must(t, cb.Close())
	qa, qb := newQP(t, a), newQP(t, b)
	connect(t, qa, qb)
	write(t, qa, qb, a, b)
	write(t, qb, qa, b, a)
}

// The programs of a service talk to each other and to the service's own device at one address.
func TestServiceOverUDP(t *testing.T) {
	leakCheck(t)
	path := filepath.Join(t.TempDir(), "s")
	own := hostService(t, udp.RandomLoopback().String(), path)
	a, b := member(t, path), member(t, path)
	talk(t, a, b)
	talk(t, a, own)
	talk(t, own, b)
}

// The same on an interface with AF_XDP, and with another host.
func TestServiceOverXDP(t *testing.T) {
	pair := newVeth(t, veth.Options{})
	must(t, pair.A.Do(func() error { // packets to own addresses go through the loopback interface
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	}))
	leakCheck(t)
	path := filepath.Join(t.TempDir(), "s")
	own := hostService(t, pair.A.Iface, path, WithXDP(XDPOptions{NetNS: pair.A.Fd()}))
	if own.Info().Port != "xdp" {
		t.Fatalf("port %q, want xdp", own.Info().Port)
	}
	a, b := member(t, path), member(t, path)
	other := openEnd(t, &pair.B, XDPOptions{}, rigConfig{})
	talk(t, a, b)
	talk(t, a, own)
	talk(t, own, b)
	talk(t, other, own)
	talk(t, own, other)
	talk(t, other, a)
	talk(t, b, other)
}

// A service lists a device under the name of an option, and gets its report.
func TestProgramName(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	name := udp.RandomLoopback().String()
	path := service.Paths(name)[1]
	s, err := service.New(path, service.Options{})
	must(t, err)
	host, err := Open(name, inside.Host(s).(Option))
	must(t, err)
	defer host.Close()
	defer s.Close()
	for _, open := range []func(Option) (*Device, error){
		func(o Option) (*Device, error) { return OpenService(path, o) },
		func(o Option) (*Device, error) { return Open(name, o) },
	} {
		d, err := open(inside.ProgramName("program").(Option))
		must(t, err)
		if r := s.Reports(time.Minute); len(r) != 1 || r[0].Name != "program" || len(r[0].Body) == 0 {
			t.Errorf("Reports() returns %d reports, want one, of the program", len(r))
		}
		must(t, d.Close())
		for len(s.Reports(time.Minute)) > 0 { // the service notices the end soon
			time.Sleep(time.Millisecond)
		}
	}
}

func TestNoService(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	if _, err := OpenService(path); !errors.Is(err, ErrNoService) {
		t.Errorf("OpenService() = %v, want ErrNoService", err)
	}
}

// Open joins the service of an address, also of one of its interface's addresses, unless an option
// turns it off.
func TestOpenJoins(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	name := udp.RandomLoopback().String()
	path := service.Paths(name)[1]
	hostService(t, name, path)
	d, err := Open(name)
	must(t, err)
	info := d.Info()
	if info.Service != path || info.Port != "udp" || info.PortReason == "" {
		t.Errorf("Info() = %+v, want a member of %s", info, path)
	}
	must(t, d.Close())
	for _, o := range []Option{WithoutService(), WithXDP(XDPOptions{Mode: XDPGeneric})} {
		if d, err := Open(name, o); !errors.Is(err, ErrPortInUse) {
			t.Errorf("Open() = %v with its own port, want ErrPortInUse", err)
			if err == nil {
				_ = d.Close()
			}
		}
	}
}

// A service can be started while programs of an earlier one still have the address.
func TestServiceRestarts(t *testing.T) {
	name := udp.RandomLoopback().String()
	old, err := udp.Open(name, udp.Options{})
	must(t, err)
	closed := make(chan error)
	time.AfterFunc(50*time.Millisecond, func() { closed <- old.Close() })
	defer func() { must(t, <-closed) }()
	hostService(t, name, filepath.Join(t.TempDir(), "s"))
}

// If a service cannot be joined, and its address is in use, the error of Open says why.
func TestServiceDoesNotAnswer(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	name := udp.RandomLoopback().String()
	old, err := udp.Open(name, udp.Options{})
	must(t, err)
	defer func() { must(t, old.Close()) }()
	path := service.Paths(name)[1]
	must(t, os.Mkdir(filepath.Dir(path), 0o700))
	l, err := net.Listen("unixpacket", path)
	must(t, err)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	d, err := Open(name)
	if !errors.Is(err, ErrPortInUse) || !strings.Contains(err.Error(), path) {
		t.Errorf("Open() = %v, want ErrPortInUse that names %s", err, path)
	}
	if err == nil {
		must(t, d.Close())
	}
}
