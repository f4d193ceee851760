package confine

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// Config says what a process needs after Apply.
type Config struct {
	User *User // the user to switch to; nil keeps the current one
	// UserOptional keeps the current user if switching is not permitted, instead of failing.
	UserOptional bool
	// Own, if it is not nil, makes a user the owner of what the process has opened. Apply calls it
	// before the process becomes User, and again with the current user if it then cannot.
	Own      func(uid int) error
	Keep     []Cap    // capabilities to keep, of those that the process has
	Dirs     []string // existing directories beneath which files may be read and changed
	Symlinks bool     // symbolic links may be created there
}

// Report says what a process has kept.
type Report struct {
	UID, GID     int
	Capabilities []Cap
	Syscalls     int      // number of system calls that seccomp allows; 0: seccomp is missing
	Landlock     int      // version of the Landlock ABI; 0: Landlock is missing
	Dirs         []string // directories beneath which files may be read and changed
	Missing      []string // what was not possible, each with its reason
}

// String describes the report in one line.
func (r *Report) String() string {
	caps := "no capabilities"
	if len(r.Capabilities) > 0 {
		caps = "capabilities " + capNames(r.Capabilities)
	}
	parts := []string{fmt.Sprintf("user %d:%d", r.UID, r.GID), caps, "no new privileges"}
	if r.Syscalls > 0 {
		parts = append(parts, fmt.Sprintf("%d system calls", r.Syscalls), "no new TCP sockets")
	}
	if r.Landlock > 0 {
		files := "no files"
		if len(r.Dirs) > 0 {
			files = "files in " + strings.Join(r.Dirs, ", ")
		}
		parts = append(parts, files)
	}
	text := strings.Join(parts, ", ")
	if len(r.Missing) > 0 {
		text += " (missing: " + strings.Join(r.Missing, "; ") + ")"
	}
	return text
}

// Apply drops the privileges that c does not list, on all threads. If it fails, the process may
// have lost some of its privileges and should end. Apply must not be called twice.
func Apply(c Config) (*Report, error) {
	r := &Report{Dirs: c.Dirs}
	// Opening the directories may need the privileges that are dropped below.
	rules, err := newRuleset(&c, r)
	if err != nil {
		return nil, err
	}
	if rules >= 0 {
		defer unix.Close(rules)
	}
	steps := []struct {
		what string
		do   func() error
	}{
		{"set no_new_privs", setNoNewPrivs},
		{"switch the user", func() error { return switchUser(&c, r) }},
		{"drop capabilities", func() error { return dropCaps(c.Keep, r) }},
		{"forbid debuggers", forbidDebuggers},
		{"restrict file access", func() error { return restrict(rules) }},
		{"restrict system calls", func() error { return installFilter(len(c.Dirs) > 0, r) }},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return nil, fmt.Errorf("drop privileges: %s: %w", s.what, err)
		}
	}
	r.UID, r.GID = os.Geteuid(), os.Getegid()
	return r, nil
}

// missing notes what was not possible.
func (r *Report) missing(format string, args ...any) {
	r.Missing = append(r.Missing, fmt.Sprintf(format, args...))
}

func setNoNewPrivs() error { return prctlAll(unix.PR_SET_NO_NEW_PRIVS, 1) }

// forbidDebuggers makes the process not dumpable: other processes of its user can then not trace
// it, read its memory or receive its core dump. The attribute belongs to the process, not to a
// thread.
func forbidDebuggers() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }

// prctlAll calls prctl on all threads.
func prctlAll(option int, arg uintptr) error {
	_, _, e := psx.Syscall6(unix.SYS_PRCTL, uintptr(option), arg, 0, 0, 0, 0)
	return errnoOf(e)
}

// errnoOf returns e as an error, nil if it is 0.
func errnoOf(e syscall.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}

// lacks reports whether an error means that the kernel does not have a feature.
func lacks(err error) bool {
	return errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) ||
		errors.Is(err, unix.EINVAL)
}

// forbidden reports whether an error means that a sandbox around this process forbids a system
// call that needs no privilege.
func forbidden(err error) bool { return errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) }
