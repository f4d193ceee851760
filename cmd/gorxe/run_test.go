package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/service"
	"github.com/gorxe/gorxe/udp"
)

// gorxe run shows the device to a program and returns its exit status.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	capture := filepath.Join(dir, "x.pcap")
	r := run(t, nil, "run", "--dev", "127.0.0.91", "--loss", "1%", "--pcap", capture, "--stats", "--",
		"sh", "-c", "cat /sys/class/infiniband/rxe0/ports/1/gids/0; test -c $1 && exit 7", "sh",
		"/dev/infiniband/uverbs0")
	if r.status != 7 || r.stdout != "0000:0000:0000:0000:0000:ffff:7f00:005b\n" {
		t.Errorf("status %d, output %q, want 7 and the GID\n%s", r.status, r.stdout, r.err)
	}
	if !strings.Contains(r.err, "intercepted_calls") {
		t.Errorf("--stats prints %q, want counters", r.err)
	}
	if info, err := os.Stat(capture); err != nil || info.Size() == 0 {
		t.Errorf("capture file: %v, %v, want a file that is not empty", info, err)
	}
}

// A program that cannot be executed is an error.
func TestRunNotExecutable(t *testing.T) {
	for name, want := range map[string]string{"/": "/ cannot be executed: is a directory",
		"run_test.go":   "no such program: run_test.go",
		"./run_test.go": "./run_test.go cannot be executed: permission denied"} {
		r := run(t, nil, "run", "--dev", "127.0.0.91", "--", name)
		if r.status != 1 || !strings.Contains(r.err, want) {
			t.Errorf("status %d, message %q, want 1 and %q", r.status, r.err, want)
		}
	}
	if r := run(t, nil, "run", "--", ""); r.status != 2 || !strings.Contains(r.err, "is empty") {
		t.Errorf("status %d, message %q, want 2 and an explanation", r.status, r.err)
	}
}

// A program that does not exist is an error.
func TestRunNoProgram(t *testing.T) {
	for _, name := range []string{"no-such-program", "/no/such/program"} {
		r := run(t, nil, "run", "--dev", "127.0.0.91", "--", name)
		if r.status != 1 || !strings.Contains(r.err, "no such program: "+name) {
			t.Errorf("status %d, message %q, want 1 and the name", r.status, r.err)
		}
	}
}

// Two programs share an address. The service that the first one has started ends after the last.
func TestRunShares(t *testing.T) {
	a := udp.RandomLoopback().As4()
	addr := netip.AddrFrom4(a).String()
	socket := removeSocket(t, addr)
	dir := t.TempDir()
	started, end := filepath.Join(dir, "started"), filepath.Join(dir, "end")
	first := start(t, nil, "run", "--dev", addr, "--", "sh", "-c",
		"touch $1; while ! test -e $2; do sleep 0.05; done", "sh", started, end)
	for deadline := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(started); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the first program does not start")
		}
	}
	if !service.Answers(socket) {
		t.Errorf("no service answers at %s", socket)
	}
	second := run(t, nil, "run", "--dev", addr, "--port", "udp", "--", "cat",
		"/sys/class/infiniband/rxe0/ports/1/gids/0").ok()
	want := fmt.Sprintf("0000:0000:0000:0000:0000:ffff:%x:%x\n", a[:2], a[2:])
	if second.stdout != want {
		t.Errorf("the second program sees GID %q, want %q", second.stdout, want)
	}
	alone := run(t, nil, "run", "--dev", addr, "--socket", "none", "--", "true")
	if alone.status == 0 || !strings.Contains(alone.err, "in use") {
		t.Errorf("--socket none: status %d, message %q, want an error", alone.status, alone.err)
	}
	if err := os.WriteFile(end, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	first.wait().ok()
	for deadline := time.Now().Add(limit); exists(socket) || exists(service.LockPath(socket)); {
		time.Sleep(10 * time.Millisecond)
		if time.Now().After(deadline) {
			t.Fatal("the service or its files are still there after its last program has ended")
		}
	}
}

// Programs of perftest connect through the service at one address. When the service dies, they get
// errors.
func TestRunPerftest(t *testing.T) {
	if _, err := exec.LookPath("ib_write_bw"); err != nil {
		t.Log("perftest is not installed: nothing to test")
		return
	}
	addr := udp.RandomLoopback().String()
	removeSocket(t, addr)
	var port string
	pair := func(args ...string) (server, client *process) {
		port = unusedPort(t)
		args = append([]string{"run", "--dev", addr, "--", "ib_write_bw", "-F", "-x", "0", "-p", port},
			args...)
		server = start(t, nil, args...)
		awaitSocket(t, port, tcpListen, server)
		return server, start(t, nil, append(args, addr)...)
	}
	server, client := pair("-n", "100")
	client.wait().ok()
	server.wait().ok()

	server, client = pair("--run_infinitely")
	awaitSocket(t, port, tcpEstablished, server)
	time.Sleep(time.Second) // so that the test runs, on a machine that is not very busy
	killService(t, addr)
	for name, p := range map[string]*process{"client": client, "server": server} {
		if r := p.wait(); r.status == 0 {
			t.Errorf("exit status 0 of the %s after the end of the service\n%s", name, r.err)
		}
	}
}

// removeSocket removes the files of the service of an address at the end of the test. It returns
// the path of its socket.
func removeSocket(t *testing.T, addr string) string {
	path := service.DefaultPath(addr)
	t.Cleanup(func() {
		_ = os.Remove(path)
		_ = os.Remove(service.LockPath(path))
	})
	return path
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// unusedPort returns a TCP port that no socket uses.
func unusedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// The states of sockets in /proc/net/tcp.
const (
	tcpEstablished = "01"
	tcpListen      = "0A"
)

// awaitSocket waits until the server has a socket in the state on a TCP port.
func awaitSocket(t *testing.T, port, state string, server *process) {
	t.Helper()
	for deadline := time.Now().Add(limit / 2); !hasSocket(port, state); time.Sleep(10 * time.Millisecond) {
		select {
		case <-server.ended:
			server.wait().ok()
			t.Fatal("the server has ended")
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("no socket in state %s on TCP port %s after %v", state, port, limit/2)
		}
	}
}

// hasSocket reports whether a socket on a local TCP port is in a state.
func hasSocket(port, state string) bool {
	n, _ := strconv.Atoi(port)
	local := fmt.Sprintf(":%04X", n)
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, _ := os.ReadFile(name)
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) > 3 && strings.HasSuffix(f[1], local) && f[3] == state {
				return true
			}
		}
	}
	return false
}

// killService kills the service of an address.
func killService(t *testing.T, addr string) {
	t.Helper()
	if err := syscall.Kill(servicePID(t, addr), syscall.SIGKILL); err != nil &&
		!errors.Is(err, syscall.ESRCH) {
		t.Error(err)
	}
}

// servicePID returns the process of the service of an address.
func servicePID(t *testing.T, addr string) int {
	t.Helper()
	list, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range list {
		text, _ := os.ReadFile(name)
		if strings.HasPrefix(string(text), binary+"\x00run-service\x00"+addr+"\x00") {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			return pid
		}
	}
	t.Fatalf("no process is the service of %s", addr)
	return 0
}

// The error of a capture that cannot be written is reported once.
func TestRunFullCapture(t *testing.T) {
	r := run(t, nil, "run", "--dev", udp.RandomLoopback().String(), "--socket", "none", "--pcap",
		"/dev/full", "--", "true")
	if r.status != 1 || strings.Count(r.err, "no space left on device") != 1 {
		t.Errorf("status %d, want 1 and one error: %s", r.status, r.err)
	}
}

// The service is no child of the command that has started it, which passes signals to its
// descendants. It does not inherit descriptors that the user passes to the program.
func TestRunServiceDetached(t *testing.T) {
	addr := udp.RandomLoopback().String()
	removeSocket(t, addr)
	dir := t.TempDir()
	started, end := filepath.Join(dir, "started"), filepath.Join(dir, "end")
	file, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	first := startWith(t, nil, func(c *exec.Cmd) { c.ExtraFiles = []*os.File{file, file} }, "run",
		"--dev", addr, "--", "sh", "-c", "touch $1; while ! test -e $2; do sleep 0.05; done", "sh",
		started, end)
	eventually(t, "the program starts", func() bool { return exists(started) })

	pid := servicePID(t, addr)
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	if f := strings.Fields(rest); len(f) < 2 || f[1] == strconv.Itoa(first.cmd.Process.Pid) {
		t.Errorf("the service is a child of the command that has started it: %s", stat)
	}
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(links) == 0 {
		t.Fatalf("descriptors of the service: %q, %v", links, err)
	}
	for _, l := range links {
		if to, _ := os.Readlink(l); to == file.Name() {
			t.Errorf("the service has a descriptor of the program: %s", l)
		}
	}
	if err := os.WriteFile(end, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	first.wait().ok()
}

// The command says what it waits for, and a signal ends it, while another one starts or ends the
// service.
func TestRunInterrupted(t *testing.T) {
	addr := udp.RandomLoopback().String()
	socket := removeSocket(t, addr)
	unlock, err := service.Lock(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock(true)
	p, printed := startPrinting(t, "run", "--dev", addr, "--", "echo", "started")
	eventually(t, "the command names the lock", func() bool {
		return strings.Contains(printed(), "waiting for") &&
			strings.Contains(printed(), service.LockPath(socket))
	})
	interrupted(t, p, printed)
}

// A signal ends the command while it waits for the answer of a service.
func TestRunInterruptedJoin(t *testing.T) {
	addr := udp.RandomLoopback().String()
	l, err := net.ListenUnix("unixpacket",
		&net.UnixAddr{Name: removeSocket(t, addr), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p, printed := startPrinting(t, "run", "--dev", addr, "--", "echo", "started")
	for { // a first connection only finds out whether somebody answers
		c, err := l.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if n, _ := c.Read(make([]byte, 1024)); n > 0 {
			break
		}
	}
	interrupted(t, p, printed)
}

// startPrinting starts gorxe, and returns a function that returns its messages so far.
func startPrinting(t *testing.T, args ...string) (p *process, printed func() string) {
	diag, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = diag.Close() })
	return startWith(t, nil, func(c *exec.Cmd) { c.Stderr = diag }, args...), func() string {
		text, err := os.ReadFile(diag.Name())
		if err != nil {
			t.Error(err)
		}
		return string(text)
	}
}

// interrupted sends a signal to a command that has not started its program, and checks how it ends.
func interrupted(t *testing.T, p *process, printed func() string) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if r := p.wait(); r.status != 1 || r.stdout != "" || !strings.Contains(printed(), "interrupted") {
		t.Errorf("status %d, output %q, message %q, want 1, none, and a reason", r.status, r.stdout,
			printed())
	}
}

// When the service dies, a message says so.
func TestRunServiceDies(t *testing.T) {
	addr := udp.RandomLoopback().String()
	removeSocket(t, addr)
	dir := t.TempDir()
	started, end := filepath.Join(dir, "started"), filepath.Join(dir, "end")
	p, printed := startPrinting(t, "run", "--dev", addr, "--", "sh", "-c",
		"touch $1; while ! test -e $2; do sleep 0.05; done", "sh", started, end)
	eventually(t, "the program starts", func() bool { return exists(started) })
	killService(t, addr)
	eventually(t, "the command reports the end of the service", func() bool {
		return strings.Contains(printed(), "the node service has ended")
	})
	if err := os.WriteFile(end, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p.wait().ok()
}
