package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/nldev"
	"github.com/gorxe/gorxe/internal/sysfs"
)

// The tests execute the test binary again: as a supervisor, maybe of another user, which executes
// it once more as the program.
const (
	envRole    = "GORXE_TEST_ROLE"
	envProgram = "GORXE_TEST_PROGRAM"
)

// statusBad is the exit status of a supervisor or program that has found an error.
const statusBad = 99

// With envLate, a signal ends the context of the supervisor while the shim starts.
const envLate = "GORXE_TEST_LATE"

// lateContext ends after the first look at it.
type lateContext struct {
	context.Context
	looks atomic.Int32
}

func (c *lateContext) Err() error {
	if c.looks.Add(1) == 1 {
		return nil
	}
	return context.Canceled
}

// envShim has the number of the signal that ends the shim.
const envShim = "GORXE_TEST_SHIM"

func TestMain(m *testing.M) {
	if sig, err := strconv.Atoi(os.Getenv(envShim)); err == nil && os.Args[0] == shimName {
		_ = unix.Kill(os.Getpid(), unix.Signal(sig))
		time.Sleep(time.Minute)
	}
	Shim()
	switch os.Getenv(envRole) {
	case "supervisor":
		os.Exit(supervise())
	case "program":
		os.Exit(programs[os.Getenv(envProgram)]())
	}
	os.Exit(m.Run())
}

// supervise runs the program.
func supervise() int {
	show := sysfs.Device{Name: "rxe0", Interface: "lo", Up: true, GUID: [8]byte{7: 1}, CM: true}
	tree, err := sysfs.New(os.TempDir(), &show)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return statusBad
	}
	defer tree.Close()
	if err := os.Setenv(envRole, "program"); err != nil {
		return statusBad
	}
	dev, channels := new(fakeDevice), new(fakeChannels)
	s := New(Config{
		Path: "/proc/self/exe", Args: []string{"program"}, Env: os.Environ(), Tree: tree,
		Verbs: dev, CM: channels, Trace: os.Stdout,
		Files: func() sysfs.Device { return show },
		Netlink: func() nldev.Device {
			return nldev.Device{Name: "rxe0", Interface: "lo", Index: 1, Up: true,
				Uverbs: sysfs.UverbsNumber}
		},
	})
	ctx := context.Background()
	if os.Getenv(envLate) != "" {
		ctx = &lateContext{Context: ctx}
	}
	status, err := s.Run(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return statusBad
	}
	for _, d := range []*fakeDevice{dev, &channels.fakeDevice} {
		for end := time.Now().Add(10 * time.Second); d.opened.Load() != d.closed.Load(); {
			if time.Now().After(end) {
				fmt.Fprintf(os.Stderr, "%d devices opened, %d closed\n", d.opened.Load(),
					d.closed.Load())
				return statusBad
			}
			time.Sleep(time.Millisecond)
		}
	}
	return status
}

// fakeDevice is a device whose ioctl inverts the bytes of an 8-byte argument.
type fakeDevice struct{ opened, closed, blocked, executing atomic.Int32 }

// Executes implements Executer.
func (d *fakeDevice) Executes(pid int) { d.executing.Store(int32(pid)) }

type fakeFile struct {
	d   *fakeDevice
	fd  int
	pid int
}

func (d *fakeDevice) Open(pid int) (File, error) {
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	d.opened.Add(1)
	return &fakeFile{d, fd, pid}, unix.Ftruncate(fd, 8192)
}

// fakePosition is the position of the file after an ioctl.
const fakePosition = 77

func (f *fakeFile) FD() int { return f.fd }

func (f *fakeFile) Ioctl(c Caller, _, arg uint64) (int64, syscall.Errno) {
	var b [8]byte
	if err := c.ReadAt(b[:], arg); err != nil {
		return 0, unix.EFAULT
	}
	switch string(b[:]) {
	case blockArg: // waits for all calls of the program
		f.d.blocked.Add(1)
		return 0, f.waitBlocked(blockedCalls)
	case countArg:
		return 0, f.waitBlocked(blockedCalls - 1)
	case execArg: // the process that has executed a program last
		return int64(f.d.executing.Load()), 0
	}
	for i := range b {
		b[i] = ^b[i]
	}
	const n = 3
	if err := c.(*caller).WriteBoth(b[:n], arg, b[n:], arg+n); err != nil || c.PID() != f.pid {
		return 0, unix.EIO
	}
	if err := c.(*caller).SetPosition(fakePosition); err != nil {
		return 0, unix.EIO
	}
	return 42, 0
}

// Arguments of an ioctl that waits.
const (
	blockArg = "blocks.."
	countArg = "counts.."
	execArg  = "executes"
)

// blockedCalls is the number of calls that wait for each other.
const blockedCalls = 8

// waitBlocked waits until n calls wait.
func (f *fakeFile) waitBlocked(n int32) syscall.Errno {
	for end := time.Now().Add(20 * time.Second); f.d.blocked.Load() < n; {
		if time.Now().After(end) {
			return unix.ETIMEDOUT
		}
		time.Sleep(time.Millisecond)
	}
	return 0
}

// Write answers later, with the number of a new descriptor in the program.
func (f *fakeFile) Write(c Caller, _, n uint64) (int64, syscall.Errno) {
	reply := c.Defer()
	go func() {
		var p [2]int
		if unix.Pipe(p[:]) != nil {
			reply(0, unix.EIO)
			return
		}
		defer unix.Close(p[0])
		defer unix.Close(p[1])
		_, _ = unix.Write(p[1], []byte("event"))
		fd, err := c.Install(p[0], true)
		if err != nil {
			reply(0, unix.EMFILE)
			return
		}
		reply(int64(fd), 0)
	}()
	return 0, 0
}

func (f *fakeFile) Name(Caller, bool, uint64, uint64) string { return "FAKE" }

func (f *fakeFile) Close() {
	_ = unix.Close(f.fd)
	f.d.closed.Add(1)
}

// fakeChannels is a device whose files are pipes.
type fakeChannels struct{ fakeDevice }

type fakeChannel struct{ fakeFile }

func (d *fakeChannels) Open(pid int) (File, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, err
	}
	_ = unix.Close(p[1])
	d.opened.Add(1)
	return &fakeChannel{fakeFile{&d.fakeDevice, p[0], pid}}, nil
}

// Write fails if the file is in nonblocking mode.
func (f *fakeChannel) Write(c Caller, _, n uint64) (int64, syscall.Errno) {
	if c.Nonblocking() {
		return 0, unix.EAGAIN
	}
	return int64(n), 0
}

// result of a test run.
type outcome struct {
	status         int
	stdout, stderr string
}

// command returns the command of a supervisor with a program.
func command(program string, uid uint32) *exec.Cmd {
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), envRole+"=supervisor", envProgram+"="+program)
	if uid != 0 && os.Getuid() == 0 {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		c.Env = append(c.Env, "TMPDIR=/tmp")
	}
	c.Dir = "/"
	return c
}

func runProgram(t *testing.T, program string, uid uint32) outcome {
	t.Helper()
	return outcomeOf(t, command(program, uid))
}

// outcomeOf runs a command.
func outcomeOf(t *testing.T, c *exec.Cmd) outcome {
	t.Helper()
	var out, diag bytes.Buffer
	c.Stdout, c.Stderr = &out, &diag
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return outcome{c.ProcessState.ExitCode(), out.String(), diag.String()}
}

// nobody is an ordinary user.
const nobody = 65534

// A program finds the device, opens it, and uses it, as root and as an ordinary user.
func TestProgram(t *testing.T) {
	for name, uid := range map[string]uint32{"root": 0, "ordinary user": nobody} {
		t.Run(name, func(t *testing.T) {
			o := runProgram(t, "use", uid)
			if o.status != 0 {
				t.Fatalf("exit status %d:\n%s", o.status, o.stderr)
			}
			if !strings.Contains(o.stdout, " FAKE = 42 <") {
				t.Errorf("trace has no line of the ioctl:\n%s", o.stdout)
			}
		})
	}
}

// The exit status is that of the program, and Run waits for processes that the program started.
func TestStatus(t *testing.T) {
	if o := runProgram(t, "seven", 0); o.status != 7 {
		t.Errorf("exit status %d, want 7:\n%s", o.status, o.stderr)
	}
	if o := runProgram(t, "killed", 0); o.status != 128+9 {
		t.Errorf("exit status %d, want 137:\n%s", o.status, o.stderr)
	}
	if o := runProgram(t, "orphan", 0); o.status != 0 || o.stdout != "rxe0\n" {
		t.Errorf("exit status %d, output %q of an orphan, want 0 and rxe0:\n%s", o.status,
			o.stdout, o.stderr)
	}
}

// The program inherits descriptors under the same numbers.
func TestInherit(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := w.WriteString("inherited"); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	c := command("inherit", 0)
	c.ExtraFiles = []*os.File{r}
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("program: %v\n%s", err, out)
	}
}

// A supervisor inside of another one fails with an explanation.
func TestNested(t *testing.T) {
	o := runProgram(t, "nested", 0)
	if o.status != statusBad || !strings.Contains(o.stderr, "inside of another") {
		t.Errorf("exit status %d, message %q, want an explanation", o.status, o.stderr)
	}
}

// started starts a program under a supervisor and waits until it, or its orphan, has written a
// byte.
func started(t *testing.T, program string) *exec.Cmd {
	t.Helper()
	c := command(program, 0)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var b [1]byte
	if _, err := io.ReadFull(out, b[:]); err != nil {
		t.Fatal(err)
	}
	return c
}

// The program gets the signals of the supervisor.
func TestSignal(t *testing.T) {
	c := started(t, "sleep")
	if err := c.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	if got, want := c.ProcessState.ExitCode(), 128+int(unix.SIGTERM); got != want {
		t.Errorf("exit status %d, want %d", got, want)
	}
}

// Ctrl-C in a terminal ends the shim, too, before it executes the program. The status is that of a
// program that the signal has ended, without a message about the shim.
func TestSignalEndsShim(t *testing.T) {
	c := command("sleep", 0)
	c.Env = append(c.Env, fmt.Sprintf("%s=%d", envShim, unix.SIGINT))
	out, _ := c.CombinedOutput()
	got, want := c.ProcessState.ExitCode(), 128+int(unix.SIGINT)
	if got != want || len(out) > 0 {
		t.Errorf("exit status %d, want %d, output %q, want none", got, want, out)
	}
}

// A signal that comes just before the shim exists is not lost: the terminal did not send it to the
// shim, and the supervisor does not forward it.
func TestSignalBeforeShim(t *testing.T) {
	c := command("sleep", 0)
	c.Env = append(c.Env, envLate+"=1")
	defer time.AfterFunc(5*time.Second, func() { _ = c.Process.Kill() }).Stop()
	out, _ := c.CombinedOutput()
	if got := strings.TrimSpace(string(out)); got != context.Canceled.Error() {
		t.Errorf("output %q, exit status %d, want %q", got, c.ProcessState.ExitCode(),
			context.Canceled)
	}
}

// After the end of the program, signals of the supervisor end the processes that it started.
func TestSignalOrphan(t *testing.T) {
	c := started(t, "leave")
	done := make(chan error, 1)
	go func() { done <- c.Wait() }()
	for end := time.After(20 * time.Second); ; {
		_ = c.Process.Signal(unix.SIGTERM)
		select {
		case <-done:
			return
		case <-end:
			_ = c.Process.Kill()
			t.Fatal("the supervisor still waits after SIGTERM")
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// The program ignores signals that the supervisor was started to ignore.
func TestIgnoredSignals(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := command("ignore", 0)
	c.Path, c.Args = "/bin/sh", []string{"sh", "-c", `trap "" INT HUP; exec "$0"`, self}
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("program: %v\n%s", err, out)
	}
}

// A process that got the ID of the program after its end is not killed.
func TestReused(t *testing.T) {
	other := exec.Command("sleep", "60")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{pid: other.Process.Pid, reaped: true, release: make(chan struct{})}
	c.close()
	_ = other.Process.Signal(unix.SIGTERM)
	_ = other.Wait()
	if ws := other.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != unix.SIGTERM {
		t.Errorf("close() sent %v to another process", ws.Signal())
	}
}

func TestDescriptors(t *testing.T) {
	for limit, want := range map[int][2]int{1 << 20: {896, 128}, 1024: {896, 128}, 256: {192, 64},
		minLimit: {48, 16}} {
		if r := descriptors(limit); r.First != want[0] || r.Count != want[1] {
			t.Errorf("descriptors(%d) = %+v, want %v", limit, r, want)
		}
	}
}

func TestErrors(t *testing.T) {
	for e, want := range map[syscall.Errno]string{unix.EBUSY: "inside", unix.EINVAL: "5.19",
		unix.ENOSYS: "5.19", unix.EPERM: "profile"} {
		if err := filterError(e); !errors.Is(err, e) || !strings.Contains(err.Error(), want) {
			t.Errorf("filterError(%v) = %v, want a text with %q", e, err, want)
		}
	}
}

// While a traced process starts, each signal that it does not block would stop it for good.
func TestSignalsDuringStart(t *testing.T) {
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case <-done:
				return
			default:
				_ = unix.Kill(0, unix.SIGWINCH) // to the process group, as the kernel does
			}
		}
	}()
	for range 100 {
		extra, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer extra.Close()
		started := make(chan *child)
		go func() {
			c, err := startChild(t.Context(), "/bin/sleep", []string{"sleep", "60"}, nil, extra)
			if err != nil {
				t.Error(err)
			}
			started <- c
		}()
		select {
		case c := <-started:
			if c == nil {
				return
			}
			_ = c.abandon(nil)
		case <-time.After(10 * time.Second):
			t.Fatal("the process does not start")
		}
	}
}
