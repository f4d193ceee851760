package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/seccomp"
)

func init() {
	programs["forbidden"] = forbidden
	programs["provider"] = openProvider
	programs["check"] = func() int {
		if err := Check(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return statusBad
		}
		return 0
	}
}

const envErrno = "GORXE_TEST_ERRNO"

// forbidden calls Check after seccomp(2) was forbidden with an error number, as a container does.
func forbidden() int {
	e, err := strconv.Atoi(os.Getenv(envErrno))
	if err != nil {
		return statusBad
	}
	raw, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: seccomp.OffsetNr, Size: seccomp.WordSize},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SYS_SECCOMP, SkipFalse: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(e)},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
	})
	if err != nil {
		return statusBad
	}
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return statusBad
	}
	if _, err := seccomp.Load(raw, unix.SECCOMP_FILTER_FLAG_TSYNC); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return statusBad
	}
	fmt.Print(Check())
	return 0
}

// bare runs a program without a supervisor.
func bare(t *testing.T, c *exec.Cmd, program string, env ...string) outcome {
	t.Helper()
	c.Env = append(append(os.Environ(), envRole+"=program", envProgram+"="+program), env...)
	return outcomeOf(t, c)
}

// Without seccomp notification, Check says what to do.
func TestCheckForbidden(t *testing.T) {
	for e, want := range map[syscall.Errno]string{unix.EPERM: "seccomp=unconfined",
		unix.EACCES: "seccomp=unconfined", unix.EINVAL: "use Linux 5.19",
		unix.ENOSYS: "use Linux 5.19"} {
		o := bare(t, exec.Command("/proc/self/exe"), "forbidden", fmt.Sprintf("%s=%d", envErrno, e))
		if o.status != 0 || !strings.Contains(o.stdout, want) {
			t.Errorf("Check() = %q with %v, want a text with %q\n%s", o.stdout, e, want, o.stderr)
		}
	}
}

// Check says what to do without /proc and with a low limit on open files. It leaves nothing behind.
func TestCheck(t *testing.T) {
	if err := Check(); err != nil {
		t.Errorf("Check() = %v", err)
	}
	if n, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); n != 0 || err != nil {
		t.Errorf("no_new_privs after Check() = %d, %v, want 0", n, err)
	}
	for range 50 { // one of them may run on the main thread, which does not end
		if err := Check(); err != nil {
			t.Fatal(err)
		}
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/status", os.Getpid()))
	if err != nil || !strings.Contains(string(status), "\nNoNewPrivs:\t0\n") {
		t.Errorf("the main thread has no_new_privs after Check(), or an unknown status: %v\n%s", err,
			status)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	few := bare(t, exec.Command("/bin/sh", "-c", `ulimit -n 20; exec "$0"`, self), "check")
	if few.status != statusBad || !strings.Contains(few.stderr, "ulimit -n 1024") {
		t.Errorf("Check() with 20 open files: status %d, %q", few.status, few.stderr)
	}
	if os.Getuid() != 0 {
		t.Skip("needs root: mounts")
	}
	c := exec.Command("/bin/sh", "-c", `umount -l /proc && exec "$0"`, self)
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	o := bare(t, c, "check")
	if o.status != statusBad || !strings.Contains(o.stderr, "mount -t proc") {
		t.Errorf("Check() without /proc: status %d, %q", o.status, o.stderr)
	}
}

// Scopes of Yama that forbid to read memory are explained.
func TestScope(t *testing.T) {
	old := scopePath
	defer func() { scopePath = old }()
	scopePath = filepath.Join(t.TempDir(), "ptrace_scope")
	if err := memoryError(unix.EPERM); !errors.Is(err, unix.EPERM) {
		t.Errorf("memoryError() = %v, want an error that wraps EPERM", err)
	}
	for scope, want := range map[string]string{"1": "", "2": "ptrace_scope=1", "3": "boot"} {
		if err := os.WriteFile(scopePath, []byte(scope+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := memoryError(unix.EPERM); !strings.Contains(err.Error(), want) ||
			!errors.Is(err, unix.EPERM) {
			t.Errorf("memoryError() of scope %s = %v, want a text with %q", scope, err, want)
		}
		if scope == "2" && os.Geteuid() == 0 {
			want = "" // root may read
		}
		if err := checkScope(); (err != nil) != (want != "") {
			t.Errorf("checkScope() of scope %s = %v, want a text with %q", scope, err, want)
		}
	}
}

// openProvider looks for a provider in two directories, and finds it in the second if there is one.
func openProvider() int {
	for _, dir := range []string{"/nonexistent", os.Getenv(envErrno)} {
		f, err := os.Open(filepath.Join(dir, "librxe-rdmav34.so"))
		if err == nil {
			_ = f.Close()
		}
	}
	return 0
}

// If libibverbs does not find its provider, a message says so.
func TestProvider(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(envErrno, dir)
	const want = "install it"
	if o := runProgram(t, "provider", 0); o.status != 0 || !strings.Contains(o.stderr, want) {
		t.Errorf("no provider: status %d, %q, want a text with %q", o.status, o.stderr, want)
	}
	err := os.WriteFile(filepath.Join(dir, "librxe-rdmav34.so"), nil, fs.ModePerm)
	if err != nil {
		t.Fatal(err)
	}
	if o := runProgram(t, "provider", 0); o.status != 0 || o.stderr != "" {
		t.Errorf("provider: status %d, %q, want no message", o.status, o.stderr)
	}
}

// A program with a low limit on open files runs, or a message says what to do.
func TestOpenFiles(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for limit, want := range map[string]string{"256": "", "50": "ulimit -n"} {
		c := command("use", 0)
		var diag bytes.Buffer
		c.Path, c.Args = "/bin/sh", []string{"sh", "-c", "ulimit -n " + limit + `; exec "$0"`, self}
		c.Stderr = &diag
		err := c.Run()
		if (err == nil) != (want == "") || !strings.Contains(diag.String(), want) {
			t.Errorf("limit %s: %v, %q, want a text with %q", limit, err, diag.String(), want)
		}
	}
}
