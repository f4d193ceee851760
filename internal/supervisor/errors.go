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
	switch {
	case errors.Is(e, unix.EBUSY):
		return fmt.Errorf("intercept system calls: %w: a process above intercepts them already: "+
			"'gorxe run' does not work inside of another 'gorxe run', run the program directly", e)
	case errors.Is(e, unix.EINVAL), errors.Is(e, unix.ENOSYS):
		return fmt.Errorf("intercept system calls: %w: the kernel has no seccomp notification: "+
			"use Linux 5.19 or newer", e)
	}
	return fmt.Errorf("intercept system calls: %w: the container's profile forbids seccomp(2): "+
		"allow it, for example with docker run --security-opt seccomp=unconfined", e)
}

// memoryError explains why the memory of the program cannot be read.
func memoryError(e error) error {
	const path = "/proc/sys/kernel/yama/ptrace_scope"
	scope, err := os.ReadFile(path)
	if s := strings.TrimSpace(string(scope)); err == nil && (s == "2" || s == "3") {
		return fmt.Errorf("read the program's memory: %w: %s is %s: write 1 to it, or run gorxe "+
			"as root (not possible if it is 3)", e, path, s)
	}
	return fmt.Errorf("read the program's memory: %w: the container's profile forbids "+
		"process_vm_readv(2), or the program's file is not readable: allow it", e)
}
