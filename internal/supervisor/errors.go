package supervisor

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// filterError explains why the filter could not be installed.
func filterError(e syscall.Errno) error {
	const what = "intercept system calls"
	switch {
	case errors.Is(e, unix.EBUSY):
		return fmt.Errorf("%s: %w: a process above intercepts them already: 'gorxe run' does not "+
			"work inside of another 'gorxe run', where programs see its device: run the program "+
			"directly", what, e)
	case errors.Is(e, unix.EINVAL), errors.Is(e, unix.ENOSYS):
		return fmt.Errorf("%s: %w: the kernel has no seccomp notification, or a container's "+
			"profile hides it: use Linux 5.19 or newer", what, e)
	}
	return fmt.Errorf("%s: %w: the container's profile forbids seccomp(2): allow it, for example "+
		"with docker run --security-opt seccomp=unconfined", what, e)
}

// memoryError explains why the memory of the program cannot be read.
func memoryError(e error) error {
	if s := readScope(); s == "2" || s == "3" {
		return fmt.Errorf("%w: %w", scopeError(s), e)
	}
	return fmt.Errorf("read the program's memory: %w: the container's profile forbids "+
		"process_vm_readv(2), or the program's file is not readable: allow it", e)
}

// readScope returns the scope of Yama, "" if the kernel does not have it.
func readScope() string {
	b, err := os.ReadFile(scopePath)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// scopeError explains a scope of Yama that forbids to read the memory of the program.
func scopeError(scope string) error {
	if scope == "3" {
		return fmt.Errorf("the program's memory must be read, but %s is 3, which nobody can "+
			"change: set kernel.yama.ptrace_scope to 1 in /etc/sysctl.d and boot again", scopePath)
	}
	return fmt.Errorf("the program's memory must be read, but %s is %s: run gorxe as root, or "+
		"allow it (sysctl kernel.yama.ptrace_scope=1)", scopePath, scope)
}

// limitError explains that a limit on open files is below minLimit.
func limitError(limit int) error {
	return fmt.Errorf("the limit on open files is %d: raise it (ulimit -n %d)", limit, maxSelect)
}
