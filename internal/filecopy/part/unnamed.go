package part

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/filecopy/dirs"
	"github.com/gorxe/gorxe/internal/safefile"
)

// ErrUnnamed means that the file system or the kernel has no files without a name.
var ErrUnnamed = errors.New("files without a name are not supported")

// CreateUnnamed creates an empty file for the file name that has no name until Commit (O_TMPFILE),
// so nothing of it remains if the process ends before. This takes fewer system calls than Create.
// h is the handle of dir, and perm the permissions that Attributes will probably set. CreateUnnamed
// returns ErrUnnamed if it cannot do that: then use Create. UseDirect is not possible. Sync and a
// sync of the directory after Commit do not suffice on all file systems: the caller ends with
// syncfs.
func CreateUnnamed(dir *os.Root, h *dirs.Handle, name string, perm fs.FileMode) (*Part, error) {
	if descriptors() < 0 {
		return nil, ErrUnnamed
	}
	fd, err := dirs.Retry(func() (int, error) {
		return unix.Openat(h.FD, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC,
			uint32(perm.Perm()))
	})
	switch {
	case errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) ||
		errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT):
		return nil, ErrUnnamed
	case err != nil:
		return nil, &fs.PathError{Op: "create", Path: name, Err: err}
	}
	return &Part{dir: dir, name: name, fd: fd, handle: h, perm: perm.Perm()}, nil
}

// descriptors returns a descriptor of /proc/self/fd, or -1.
var descriptors = sync.OnceValue(func() int {
	fd, err := unix.Open("/proc/self/fd", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return fd
})

// maxByFD is the number of failures in a row after which files are not linked by their descriptor
// alone any more. It fails before Linux 6.10, and if another thread with other credentials has
// opened the file: after privileges were dropped, each thread has its own.
const maxByFD = 64

// failedByFD counts the failures.
var failedByFD atomic.Int32

// link gives an unnamed file a name.
func (p *Part) link(name string) error {
	if n := failedByFD.Load(); n < maxByFD {
		err := unix.Linkat(p.fd, "", p.handle.FD, name, unix.AT_EMPTY_PATH)
		if !errors.Is(err, unix.ENOENT) {
			if n > 0 {
				failedByFD.Store(0)
			}
			return err
		}
		failedByFD.Add(1)
	}
	return unix.Linkat(descriptors(), strconv.Itoa(p.fd), p.handle.FD, name, unix.AT_SYMLINK_FOLLOW)
}

// Unnamed reports whether the file has no name until Commit.
func (p *Part) Unnamed() bool { return p.handle != nil }

// commitUnnamed is Commit for a file without a name.
func (p *Part) commitUnnamed(keep bool) error {
	err := p.link(p.name)
	if errors.Is(err, unix.EEXIST) {
		if keep {
			return ErrExists
		}
		err = p.replace()
	}
	if err != nil {
		return err
	}
	p.close()
	return nil
}

// replace replaces an existing file by an unnamed one, which gets the name of a temporary file
// before. The lock of the file keeps sessions of other processes from removing that.
func (p *Part) replace() error {
	defer lockID(ID(p.name))()
	if err := unix.Flock(p.fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return err
	}
	p.temp = temporary(p.name, partSuffix)
	err := p.link(p.temp)
	if errors.Is(err, unix.EEXIST) {
		if err = p.removeOld(); err == nil {
			err = p.link(p.temp)
		}
	}
	if err != nil {
		return err
	}
	if err := p.dir.Rename(p.temp, p.name); err != nil {
		return errors.Join(err, safefile.Remove(p.dir, p.temp))
	}
	return nil
}

// attributesUnnamed is Attributes for a file without a name.
func (p *Part) attributesUnnamed(perm fs.FileMode, mtime time.Time) error {
	if !p.hasPerm(perm.Perm()) {
		if err := unix.Fchmod(p.fd, uint32(perm.Perm())); err != nil {
			return err
		}
	}
	return SetTime(p.fd, mtime)
}

// hasPerm reports whether the file was created with the permissions. The umask or a default ACL may
// have removed some. One file of a directory tells that for the next ones: a system call takes
// longer than the rest of hasPerm.
func (p *Part) hasPerm(perm fs.FileMode) bool {
	if perm != p.perm {
		return false
	}
	if kept, ok := p.handle.Kept(perm); ok {
		return kept
	}
	var st unix.Stat_t
	if unix.Fstat(p.fd, &st) != nil {
		return false
	}
	kept := st.Mode&0o7777 == uint32(perm)
	p.handle.SetKept(perm, kept)
	return kept
}

// writeUnnamed writes to a file without a name.
func (p *Part) writeUnnamed(data []byte, offset int64) error {
	for len(data) > 0 {
		n, err := dirs.Retry(func() (int, error) { return unix.Pwrite(p.fd, data, offset) })
		if err != nil {
			return err
		}
		data, offset = data[n:], offset+int64(n)
	}
	return nil
}
