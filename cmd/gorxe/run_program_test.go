package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gorxe/gorxe/internal/service"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/udp"
)

// pyverbs is the Python interpreter of the distribution, which has its packages.
const pyverbs = "/usr/bin/python3"

// hasPyverbs reports whether programs of pyverbs can run.
func hasPyverbs(t *testing.T) bool {
	t.Helper()
	if err := exec.Command(pyverbs, "-c", "import pyverbs.qp").Run(); err != nil {
		t.Logf("pyverbs is not installed: nothing to test (%v)", err)
		return false
	}
	return true
}

// startService starts a node service on an address of its own, and returns its socket.
func startService(t *testing.T, flags ...string) (up *process, socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	up = start(t, nil, append([]string{"up", udp.RandomLoopback().String(), "--socket", socket,
		"--services", "none", "--no-confine"}, flags...)...)
	eventually(t, "the service starts", func() bool { return service.Answers(socket) })
	return up, socket
}

// startReading starts gorxe, and returns a function that returns its standard output so far.
func startReading(t *testing.T, args ...string) (p *process, printed func() string) {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "stdout"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = out.Close() })
	return startWith(t, nil, func(c *exec.Cmd) { c.Stdout = out }, args...), func() string {
		text, err := os.ReadFile(out.Name())
		if err != nil {
			t.Error(err)
		}
		return string(text)
	}
}

// A program cannot create more objects than the service or 'gorxe run' allows.
func TestRunLimits(t *testing.T) {
	if !hasPyverbs(t) {
		return
	}
	_, socket := startService(t, "--program-qps", "3", "--program-mrs", "90", "--program-memory",
		"2MiB", "--user-programs", "1")
	script := filepath.Join("testdata", "limits.py")
	r := run(t, nil, "run", "--dev", socket, "--program-qps", "50", "--program-mrs", "5", "--",
		pyverbs, script).ok()
	const enomem = " 12\n"
	if want := "3 5 2097152\n3" + enomem + "5" + enomem + "3" + enomem; r.stdout != want {
		t.Errorf("the program prints %q, want %q", r.stdout, want)
	}
	r = run(t, nil, "run", "--dev", udp.RandomLoopback().String(), "--socket", "none",
		"--program-qps", "2", "--program-memory", "1GiB", "--", pyverbs, script).ok()
	if want := "2 1048576 1073741824\n2" + enomem; r.stdout != want {
		t.Errorf("the program prints %q, want %q", r.stdout, want)
	}
}

// A service refuses programs beyond the number that a user may have.
func TestUserPrograms(t *testing.T) {
	_, socket := startService(t, "--user-programs", "1")
	run(t, nil, "run", "--dev", socket, "--", "true").ok()
	var dev *roce.Device
	eventually(t, "the place is free again", func() (joined bool) {
		var err error
		dev, err = roce.OpenService(socket)
		return err == nil
	})
	defer dev.Close()
	r := run(t, nil, "run", "--dev", socket, "--", "true")
	r.fails(1, "has 1 programs at this service, the limit: end one, or raise --user-programs")
}

// When the service is killed, a stock program gets an event and does not hang.
func TestRunFatalEvent(t *testing.T) {
	if _, err := exec.LookPath("ibv_asyncwatch"); err != nil {
		t.Log("ibv_asyncwatch is not installed: nothing to test")
		return
	}
	up, socket := startService(t)
	watch, printed := startReading(t, "run", "--dev", socket, "--",
		"stdbuf", "-oL", "ibv_asyncwatch", "-d", "rxe0")
	eventually(t, "the program watches", func() bool {
		return strings.Contains(printed(), "async event FD")
	})
	kill(t, up)
	eventually(t, "the program gets the event", func() bool {
		return strings.Contains(printed(), "IBV_EVENT_DEVICE_FATAL")
	})
	if err := watch.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if r := watch.wait(); r.status != 128+int(syscall.SIGTERM) {
		t.Errorf("status %d after SIGTERM", r.status)
	}
}

// When the service is killed, the work requests of a program complete with IBV_WC_WR_FLUSH_ERR.
func TestRunFlushes(t *testing.T) {
	if !hasPyverbs(t) {
		return
	}
	up, socket := startService(t)
	p, printed := startReading(t, "run", "--dev", socket, "--", pyverbs,
		filepath.Join("testdata", "fatal.py"))
	eventually(t, "the program posts work requests", func() bool { return printed() == "posted\n" })
	kill(t, up)
	p.wait().ok()
	const flushed, fatal = "5", "8" // IBV_WC_WR_FLUSH_ERR, IBV_EVENT_DEVICE_FATAL
	if want := "posted\n" + flushed + " " + flushed + " " + fatal + "\n"; printed() != want {
		t.Errorf("the program prints %q, want %q", printed(), want)
	}
}

// kill kills a process.
func kill(t *testing.T, p *process) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
}
