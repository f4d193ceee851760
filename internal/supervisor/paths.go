package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/seccomp"
	"github.com/gorxe/gorxe/internal/sysfs"
)

// file answers a call on a file of the tree, and lets the kernel execute all others.
func (s *Supervisor) file(c *seccomp.Call) {
	f, ok := c.File()
	if !ok {
		resume(c)
		return
	}
	if f.Path == 0 {
		s.statFD(c, &f)
		return
	}
	name, err := c.Path(f.Path)
	if err != nil {
		s.unreadable(err)
		resume(c) // the kernel reports the bad address
		return
	}
	s.readable.Store(true)
	s.provider.opened(c, &f, name)
	if name == "" {
		if f.Flags&unix.AT_EMPTY_PATH != 0 {
			s.statFD(c, &f)
			return
		}
		resume(c)
		return
	}
	e, ok := s.find(c, f.Dir, name)
	if !ok || !c.Valid() {
		resume(c)
		return
	}
	if e.Path == "" {
		result(c, 0, unix.ENOENT)
		return
	}
	s.refresh(e)
	switch f.Op {
	case seccomp.Open:
		s.open(c, &f, e)
	case seccomp.Stat, seccomp.Statx:
		s.stat(c, &f, e)
	case seccomp.Access:
		s.access(c, &f, e)
	case seccomp.Readlink:
		s.readlink(c, &f, e)
	case seccomp.Chdir:
		s.chdir(c, e)
	default:
		result(c, 0, unix.ENODATA)
	}
}

// unreadable ends the program if its memory has never been readable.
func (s *Supervisor) unreadable(err error) {
	forbidden := errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS)
	if forbidden && !s.readable.Load() {
		s.fail(memoryError(err))
	}
}

// find returns the entry of the tree for a path of the program.
func (s *Supervisor) find(c *seccomp.Call, dir int, name string) (sysfs.Entry, bool) {
	switch {
	case path.IsAbs(name):
		if !sysfs.Maybe(name) && !s.c.Tree.Inside(name) {
			return sysfs.Entry{}, false
		}
		return s.c.Tree.Find(name)
	case dir == unix.AT_FDCWD:
		if !sysfs.Maybe(name) && !s.entered.Load() {
			return sysfs.Entry{}, false
		}
		wd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", c.PID()))
		if err != nil {
			return sysfs.Entry{}, false
		}
		return s.c.Tree.Find(path.Join(wd, name))
	}
	at, err := os.Readlink(fdPath(c, dir))
	if err != nil || !strings.HasPrefix(at, "/") {
		return sysfs.Entry{}, false
	}
	if !sysfs.Maybe(name) && !s.c.Tree.Inside(at) {
		return sysfs.Entry{}, false
	}
	return s.c.Tree.Find(path.Join(at, name))
}

// fdPath returns the path of a descriptor of the program in /proc.
func fdPath(c *seccomp.Call, fd int) string {
	return "/proc/" + strconv.Itoa(c.PID()) + "/fd/" + strconv.Itoa(fd)
}

// open opens a file of the tree, or a device.
func (s *Supervisor) open(c *seccomp.Call, f *seccomp.FileCall, e sysfs.Entry) {
	const write = unix.O_WRONLY | unix.O_RDWR | unix.O_CREAT | unix.O_TRUNC
	if e.Device != 0 && f.Flags&(unix.O_PATH|unix.O_DIRECTORY) == 0 {
		s.openDevice(c, e, f.Flags&unix.O_CLOEXEC != 0)
		return
	}
	if f.Flags&write != 0 && f.Flags&unix.O_PATH == 0 {
		result(c, 0, unix.EACCES)
		return
	}
	fd, err := unix.Openat(s.c.Tree.FD(), e.Path, int(f.Flags)|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		failWith(c, err)
		return
	}
	defer unix.Close(fd)
	n, err := c.Install(fd, f.Flags&unix.O_CLOEXEC != 0)
	if err != nil {
		failWith(c, err)
		return
	}
	result(c, int64(n), 0)
}

// deviceMode is the type and the permissions of the device files.
const deviceMode = unix.S_IFCHR | 0o666

// stat writes the attributes of a file of the tree.
func (s *Supervisor) stat(c *seccomp.Call, f *seccomp.FileCall, e sysfs.Entry) {
	flags := int(f.Flags) & unix.AT_SYMLINK_NOFOLLOW
	if f.Op == seccomp.Statx {
		var st unix.Statx_t
		if err := unix.Statx(s.c.Tree.FD(), e.Path, flags, int(f.Mode), &st); err != nil {
			failWith(c, err)
			return
		}
		writeStatx(c, f, &st, e.Device)
		return
	}
	var st unix.Stat_t
	if err := unix.Fstatat(s.c.Tree.FD(), e.Path, &st, flags); err != nil {
		failWith(c, err)
		return
	}
	writeStat(c, f, &st, e.Device)
}

// statFD answers a call on the attributes of a descriptor, if it is that of a device.
func (s *Supervisor) statFD(c *seccomp.Call, f *seccomp.FileCall) {
	if f.Op != seccomp.Stat && f.Op != seccomp.Statx || f.Dir < 0 {
		resume(c)
		return
	}
	o, st := s.lookup(c, f.Dir)
	if o == nil {
		resume(c)
		return
	}
	if f.Op == seccomp.Stat {
		writeStat(c, f, st, o.device)
		return
	}
	var stx unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, fdPath(c, f.Dir), 0, int(f.Mode), &stx); err != nil {
		failWith(c, err)
		return
	}
	writeStatx(c, f, &stx, o.device)
}

func writeStat(c *seccomp.Call, f *seccomp.FileCall, st *unix.Stat_t, device uint64) {
	if device != 0 {
		st.Mode, st.Rdev, st.Size, st.Blocks = deviceMode, device, 0, 0
	}
	if err := c.WriteAt(statBytes(st), f.Out); err != nil {
		failWith(c, err)
		return
	}
	result(c, 0, 0)
}

func writeStatx(c *seccomp.Call, f *seccomp.FileCall, st *unix.Statx_t, device uint64) {
	if device != 0 {
		st.Mode, st.Size, st.Blocks = deviceMode, 0, 0
		st.Rdev_major, st.Rdev_minor = unix.Major(device), unix.Minor(device)
	}
	if err := c.WriteAt(statxBytes(st), f.Out); err != nil {
		failWith(c, err)
		return
	}
	result(c, 0, 0)
}

// access answers whether a file of the tree exists and can be used.
func (s *Supervisor) access(c *seccomp.Call, f *seccomp.FileCall, e sysfs.Entry) {
	if err := unix.Faccessat(s.c.Tree.FD(), e.Path, unix.F_OK, 0); err != nil {
		failWith(c, err)
		return
	}
	if f.Mode&unix.W_OK != 0 && e.Device == 0 || f.Mode&unix.X_OK != 0 && e.Device != 0 {
		result(c, 0, unix.EACCES)
		return
	}
	result(c, 0, 0)
}

// readlink answers with EINVAL, because the tree has no symbolic links, if the file exists.
func (s *Supervisor) readlink(c *seccomp.Call, _ *seccomp.FileCall, e sysfs.Entry) {
	var b [1]byte
	_, err := unix.Readlinkat(s.c.Tree.FD(), e.Path, b[:])
	if err == nil {
		err = unix.EINVAL
	}
	failWith(c, err)
}

// chdir changes the working directory of the program to a directory of the tree.
func (s *Supervisor) chdir(c *seccomp.Call, e sysfs.Entry) {
	fd, err := unix.Openat(s.c.Tree.FD(), e.Path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		failWith(c, err)
		return
	}
	defer unix.Close(fd)
	s.entered.Store(true)
	s.reaping.Lock()
	defer s.reaping.Unlock()
	if err := c.Chdir(fd); errors.Is(err, seccomp.ErrTrace) {
		result(c, 0, unix.EACCES)
	}
}

// refresh updates the tree for a call on a file, if the state of the device has changed.
func (s *Supervisor) refresh(e sysfs.Entry) {
	d := s.c.Files()
	s.mu.Lock()
	defer s.mu.Unlock()
	update := s.c.Tree.Update
	if d.Equal(&s.shown) {
		if !e.Counter() {
			return
		}
		update = s.c.Tree.UpdateCounters
	}
	if err := update(&d); err != nil {
		s.logf("update the files of the device: %v", err)
		return
	}
	s.shown = d
}
