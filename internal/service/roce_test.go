package service_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/confine"
	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/internal/service"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/udp"
)

// The programs of these tests are members of a service on an address of the loopback interface.

const patience = 20 * time.Second

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// host is a service with its own device.
type host struct {
	*service.Server
	dev  *roce.Device
	addr netip.Addr
}

func newHost(t *testing.T, addrs ...netip.Addr) *host {
	t.Helper()
	if len(addrs) == 0 {
		addrs = []netip.Addr{udp.RandomLoopback()}
	}
	p, err := udp.Open("lo", udp.Options{Addrs: addrs, Shared: true})
	must(t, err)
	return newHostOn(t, p)
}

func newHostOn(t *testing.T, p *udp.Port) *host {
	t.Helper()
	return newHostWith(t, p, service.Options{})
}

func newHostWith(t *testing.T, p *udp.Port, o service.Options) *host {
	t.Helper()
	s, err := service.New(filepath.Join(t.TempDir(), "s"), o)
	must(t, err)
	must(t, s.Start(p))
	d, err := roce.New(p, inside.Host(s).(roce.Option))
	must(t, err)
	t.Cleanup(func() {
		must(t, s.Close())
		must(t, d.Close())
	})
	return &host{s, d, p.Addrs()[0].Addr()}
}

// program is a device with what it needs to communicate.
type program struct {
	*endpoint.Endpoint
	dev  *roce.Device
	port *service.MemberPort
}

const memory = 1 << 20

func newProgram(t *testing.T, path string) *program {
	t.Helper()
	port, err := service.Join(path, service.JoinOptions{})
	must(t, err)
	dev, err := roce.New(port)
	must(t, err)
	e, err := endpoint.New(dev, endpoint.Config{Memory: memory})
	must(t, err)
	t.Cleanup(func() { _, _ = e.Close(), dev.Close() })
	return &program{e, dev, port}
}

// export is the private data of the accepting side: where it has memory.
func export(e *endpoint.Endpoint) []byte {
	return fmt.Appendf(nil, "%d %d ", e.MR.Addr(), e.MR.RKey())
}

// connect connects a program to an address and writes to the memory of the peer.
func connect(t *testing.T, p *program, to netip.AddrPort) *roce.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := p.dev.Dial(ctx, to, p.QP, roce.DialOptions{})
	must(t, err)
	var addr uint64
	var key uint32
	_, err = fmt.Sscan(string(c.PrivateData()), &addr, &key)
	must(t, err)
	for i := range p.MR.Bytes() {
		p.MR.Bytes()[i] = byte(i * 7)
	}
	must(t, p.QP.PostSend(roce.SendWR{Op: roce.OpWrite, Flags: roce.Signaled,
		SGEs: []roce.SGE{{Addr: p.MR.Addr(), Length: memory, LKey: p.MR.LKey()}}, RemoteAddr: addr,
		RKey: roce.RKey(key)}))
	var wc [1]roce.WC
	if n, err := p.CQ.Wait(ctx, wc[:]); n != 1 || err != nil || wc[0].Status != roce.Success {
		t.Fatalf("Wait() = %d, %v: %+v", n, err, wc[0])
	}
	return c
}

// accept accepts a connection on behalf of a program and returns it.
func accept(ctx context.Context, l *roce.Listener, e *endpoint.Endpoint) (*roce.Conn, error) {
	r, err := l.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return r.Accept(ctx, e.QP, roce.AcceptOptions{PrivateData: export(e)})
}

// serve accepts a connection in another goroutine. The function that it returns waits for it.
func serve(t *testing.T, l *roce.Listener, e *endpoint.Endpoint) func() *roce.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	accepted := make(chan *roce.Conn, 1)
	go func() {
		defer cancel()
		c, err := accept(ctx, l, e)
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	return func() *roce.Conn { return <-accepted }
}

// exchange connects a program to a listener of another one, writes to its memory, and disconnects.
func exchange(t *testing.T, p *program, l *roce.Listener, e *endpoint.Endpoint) {
	t.Helper()
	accepted := serve(t, l, e)
	c := connect(t, p, l.Addr())
	accepted()
	must(t, c.Close())
}

func TestProgramsConnect(t *testing.T) {
	h := newHost(t)
	a, b := newProgram(t, h.Path()), newProgram(t, h.Path())
	at := netip.AddrPortFrom(h.addr, 7471)
	l, err := b.dev.Listen(at, roce.ListenOptions{})
	must(t, err)
	if _, err := a.dev.Listen(at, roce.ListenOptions{}); !errors.Is(err, roce.ErrListening) {
		t.Errorf("Listen() = %v on a port of another program", err)
	}
	accepted := serve(t, l, b.Endpoint)
	c := connect(t, a, at)
	far := accepted()
	must(t, c.Close())
	select {
	case <-far.Done():
	case <-time.After(patience):
		t.Fatal("the connection of the peer does not end")
	}
	if !bytes.Equal(a.MR.Bytes(), b.MR.Bytes()) {
		t.Error("the memory differs after a WRITE")
	}
	must(t, l.Close())
	l, err = a.dev.Listen(at, roce.ListenOptions{})
	must(t, err)
	must(t, l.Close())
}

// Variables of child processes with the path of the socket.
const (
	childVar    = "GORXE_TEST_SERVICE"          // a program that accepts a connection and waits
	confinedVar = "GORXE_TEST_CONFINED_SERVICE" // a service without privileges
)

func TestMain(m *testing.M) {
	for name, f := range map[string]func(path string) error{childVar: child,
		confinedVar: confined} {
		if path := os.Getenv(name); path != "" {
			if err := f(path); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	os.Exit(m.Run())
}

// confined runs a service that drops its privileges until its standard input ends.
func confined(path string) error {
	addr, err := netip.ParseAddr(os.Getenv("GORXE_TEST_ADDR"))
	if err != nil {
		return err
	}
	p, err := udp.Open("lo", udp.Options{Addrs: []netip.Addr{addr}, Shared: true})
	if err != nil {
		return err
	}
	s, err := service.New(path, service.Options{Mode: 0o666})
	if err != nil {
		return err
	}
	if err := s.Start(p); err != nil {
		return err
	}
	d, err := roce.New(p, inside.Host(s).(roce.Option))
	if err != nil {
		return err
	}
	s.SetStatus(func(uint32, bool) []byte { return []byte("up") })
	u := confine.DefaultUser()
	if err := s.SetOwner(u.UID); err != nil {
		return err
	}
	r, err := confine.Apply(confine.Config{User: u})
	if err != nil {
		return err
	}
	if r.UID == 0 || len(r.Capabilities) > 0 {
		return fmt.Errorf("not confined: %v", r)
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return errors.Join(s.Close(), d.Close())
}

// A service without privileges serves several programs, of this user and of others.
func TestConfinedService(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can run a service as another user")
	}
	path, addr := filepath.Join(t.TempDir(), "s"), udp.RandomLoopback()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), confinedVar+"="+path, "GORXE_TEST_ADDR="+addr.String())
	in, err := cmd.StdinPipe()
	must(t, err)
	start(t, cmd)
	for range 3 {
		a, b := newProgram(t, path), newProgram(t, path)
		l, err := b.dev.Listen(netip.AddrPortFrom(addr, 7471), roce.ListenOptions{})
		must(t, err)
		exchange(t, a, l, b.Endpoint)
		must(t, errors.Join(l.Close(), a.dev.Close(), b.dev.Close()))
	}
	if b, err := service.Status(t.Context(), path); string(b) != "up" || err != nil {
		t.Errorf("Status() = %q, %v", b, err)
	}
	must(t, in.Close())
	must(t, cmd.Wait())
}

func child(path string) error {
	port, err := service.Join(path, service.JoinOptions{Name: "child"})
	if err != nil {
		return err
	}
	dev, err := roce.New(port)
	if err != nil {
		return err
	}
	e, err := endpoint.New(dev, endpoint.Config{Memory: memory})
	if err != nil {
		return err
	}
	l, err := dev.Listen(netip.AddrPortFrom(port.Addrs()[0].Addr(), 7471), roce.ListenOptions{})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := accept(ctx, l, e)
	switch {
	case err == nil:
		<-c.Done()
	case !errors.Is(err, roce.ErrDisconnected): // the peer may be faster
		return err
	}
	return dev.Close()
}

// startChild starts a child process and waits until it listens.
func startChild(t *testing.T, path string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVar+"="+path)
	start(t, cmd)
	return cmd
}

// start starts a child process and waits until it is ready.
func start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "ready\n" {
		t.Fatalf("the child says %q, %v", line, err)
	}
}

func TestProgramOfOtherProcess(t *testing.T) {
	h := newHost(t)
	cmd := startChild(t, h.Path())
	a := newProgram(t, h.Path())
	c := connect(t, a, netip.AddrPortFrom(h.addr, 7471))
	reports := h.Reports(patience)
	if len(reports) != 2 || reports[0].Name != "child" || reports[0].PID != cmd.Process.Pid {
		t.Errorf("Reports() = %+v", reports)
	}
	must(t, c.Close())
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// The peer of a program that was killed sees an orderly end.
func TestProgramDies(t *testing.T) {
	h := newHost(t)
	cmd := startChild(t, h.Path())
	a := newProgram(t, h.Path())
	c := connect(t, a, netip.AddrPortFrom(h.addr, 7471))
	eventually(t, "both programs have given wills", func() bool { return h.Wills() == 2 })
	must(t, cmd.Process.Kill())
	select {
	case <-c.Done():
	case <-time.After(patience):
		t.Fatal("the connection does not end")
	}
	if err := c.Err(); !errors.Is(err, roce.ErrDisconnected) {
		t.Errorf("Err() = %v, want %v", err, roce.ErrDisconnected)
	}
	b := newProgram(t, h.Path())
	l, err := b.dev.Listen(netip.AddrPortFrom(h.addr, 7471), roce.ListenOptions{})
	must(t, err)
	must(t, l.Close())
}

func TestServiceEnds(t *testing.T) {
	h := newHost(t)
	a := newProgram(t, h.Path())
	must(t, h.Close())
	select {
	case <-a.dev.Done():
	case <-time.After(patience):
		t.Fatal("the device does not end")
	}
	if err := a.dev.Err(); !errors.Is(err, driver.ErrServiceEnded) {
		t.Errorf("Err() = %v", err)
	}
}
