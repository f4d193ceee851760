//go:build amd64

package supervisor

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func init() { programs["chdir"] = changeDirectory }

// changeDirectory enters and leaves directories of the tree, while signals come and other processes
// do the same and end.
func changeDirectory() int {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGALRM)
	go func() {
		for {
			_ = unix.Kill(os.Getpid(), unix.SIGALRM)
			time.Sleep(300 * time.Microsecond)
		}
	}()
	for i := range 100 {
		if err := changeOnce(i%10 == 0); err != nil {
			fmt.Fprintf(os.Stderr, "round %d: %v\n", i, err)
			return statusBad
		}
	}
	for fd := range 100 {
		name, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		if strings.Contains(name, "infiniband") {
			fmt.Fprintf(os.Stderr, "descriptor %d is open: %s\n", fd, name)
			return statusBad
		}
	}
	return 0
}

// changeOnce checks a working directory of the tree, and that of a child process.
func changeOnce(child bool) error {
	const ports = "/sys/class/infiniband/rxe0/ports"
	if err := os.Chdir(ports); err != nil {
		return err
	}
	if b, err := os.ReadFile("1/state"); err != nil || string(b) != "4: ACTIVE\n" {
		return fmt.Errorf("relative path: %q, %w", b, err)
	}
	if err := os.Chdir(".."); err != nil {
		return err
	}
	if wd, err := unix.Getwd(); err != nil || filepath.Base(wd) != "rxe0" {
		return fmt.Errorf("getcwd: %s, %w", wd, err)
	}
	if err := os.Chdir("node_type"); !errors.Is(err, unix.ENOTDIR) {
		return fmt.Errorf("chdir to a file: %w", err)
	}
	if err := os.Chdir("/sys/class/infiniband/rxe1"); !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("chdir to nothing: %w", err)
	}
	if child {
		c := exec.Command("/bin/sh", "-c", "(true &); cd "+ports+" && echo *")
		if b, err := c.CombinedOutput(); err != nil || string(b) != "1\n" {
			return fmt.Errorf("shell: %q, %w", b, err)
		}
	}
	return os.Chdir("/")
}

// TestChdir changes the working directory of programs, also as an ordinary user.
func TestChdir(t *testing.T) {
	for _, uid := range []uint32{0, 65534} {
		o := runProgram(t, "chdir", uid)
		if o.status != 0 {
			t.Errorf("user %d: status %d\n%s", uid, o.status, o.stderr)
		}
	}
}
