package confine

import (
	"fmt"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// Versions of the Landlock ABI that added access rights.
const (
	landlockRefer    = 2
	landlockTruncate = 3
	landlockTCP      = 4
	landlockIoctl    = 5
	landlockScope    = 6
)

// Access rights to files. A ruleset denies the rights that it handles unless a rule allows them.
const (
	firstRights = uint64(unix.LANDLOCK_ACCESS_FS_MAKE_SYM)<<1 - 1 // all of version 1

	// dirRights are allowed beneath Config.Dirs, if the version has them.
	dirRights = uint64(unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
		unix.LANDLOCK_ACCESS_FS_READ_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG |
		unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REFER |
		unix.LANDLOCK_ACCESS_FS_TRUNCATE)
)

// rightsOf returns what a ruleset for a version of the ABI handles, and the size of the structure
// that the version knows.
func rightsOf(abi int) (attr unix.LandlockRulesetAttr, size uintptr) {
	attr.Handled_access_fs, size = firstRights, 8
	if abi >= landlockRefer {
		attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if abi >= landlockTruncate {
		attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if abi >= landlockTCP {
		attr.Handled_access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP |
			unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
		size = 16
	}
	if abi >= landlockIoctl {
		attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	if abi >= landlockScope {
		// LANDLOCK_SCOPE_SIGNAL would forbid signals between threads on kernels with a known
		// fault. The seccomp filter forbids signals to other processes.
		attr.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET
		size = 24
	}
	return attr, size
}

// newRuleset creates a Landlock ruleset that allows access beneath c.Dirs only. It returns -1 if
// the kernel has no Landlock.
func newRuleset(c *Config, r *Report) (fd int, err error) {
	abi, err := landlockCreate(nil, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if lacks(err) {
		r.missing("no Landlock in this kernel")
		return -1, nil
	}
	if forbidden(err) {
		r.missing("Landlock is not permitted here")
		return -1, nil
	}
	if err != nil {
		return -1, fmt.Errorf("read the version of Landlock: %w", err)
	}
	attr, size := rightsOf(abi)
	if fd, err = landlockCreate(&attr, size, 0); err != nil {
		return -1, fmt.Errorf("create a Landlock ruleset: %w", err)
	}
	rights := dirRights
	if c.Symlinks {
		rights |= unix.LANDLOCK_ACCESS_FS_MAKE_SYM
	}
	for _, dir := range c.Dirs {
		if err == nil {
			err = addDir(fd, dir, attr.Handled_access_fs&rights)
		}
	}
	if err == nil && threadsDir != "" {
		err = addDir(fd, threadsDir, unix.LANDLOCK_ACCESS_FS_READ_DIR)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	r.Landlock = abi
	return fd, nil
}

func addDir(ruleset int, dir string, access uint64) error {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open directory %s: %w", dir, err)
	}
	defer unix.Close(fd)
	if err := landlockAdd(ruleset, access, fd); err != nil {
		return fmt.Errorf("allow access to directory %s: %w", dir, err)
	}
	return nil
}

// restrict applies a ruleset to all threads.
func restrict(ruleset int) error {
	if ruleset < 0 {
		return nil
	}
	_, _, e := psx.Syscall3(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(ruleset), 0, 0)
	return errnoOf(e)
}
