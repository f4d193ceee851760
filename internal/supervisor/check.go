package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/osnet"
	"github.com/gorxe/gorxe/internal/seccomp"
)

// Check returns an error that says what to do if programs cannot be run here: /proc is missing, few
// files can be open, or system calls cannot be intercepted.
func Check() error {
	if _, err := os.Stat("/proc/self/exe"); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("/proc is not mounted, but is needed to run programs: " +
			"mount it (mount -t proc proc /proc)")
	}
	// Go has raised the limit as far as it can. That of the program may still be lower (shim.go).
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil && limit.Cur < minLimit {
		return limitError(int(limit.Cur))
	}
	if err := checkScope(); err != nil {
		return err
	}
	var err error
	osnet.Thread(func() { // the filter and no_new_privs belong to the thread, which ends with it
		var fd int
		if fd, err = (&seccomp.Policy{}).Install(); err == nil {
			_ = unix.Close(fd)
		}
	})
	var e unix.Errno
	if errors.As(err, &e) {
		return filterError(e)
	}
	return err
}

// scopePath is the file of the Linux security module Yama. A variable for tests.
var scopePath = "/proc/sys/kernel/yama/ptrace_scope"

// checkScope returns an error if Yama forbids to read the memory of programs.
func checkScope() error {
	switch readScope() {
	case "2":
		if os.Geteuid() != 0 {
			return scopeError("2")
		}
	case "3":
		return scopeError("3")
	}
	return nil
}
