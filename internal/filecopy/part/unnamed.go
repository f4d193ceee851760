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
// at is a descriptor of dir, and dev the device of its file system. CreateUnnamed returns
// ErrUnnamed if it cannot do that: then use Create. UseDirect is not possible. Sync and a sync of
// the directory after Commit do not suffice on all file systems: the caller ends with syncfs.
func CreateUnnamed(dir *os.Root, at int, dev uint64, name string) (*Part, error) {
	if descriptors() < 0 {
		return nil, ErrUnnamed
	}
	fd, err := dirs.Retry(func() (int, error) {
		return unix.Openat(at, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, createPerm)
	})
	switch {
	case errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) ||
		errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT):
		return nil, ErrUnnamed
	case err != nil:
		return nil, &fs.PathError{Op: "create", Path: name, Err: err}
	}
	return &Part{dir: dir, name: name, fd: fd, at: at, dev: dev, unnamed: true}, nil
}

// descriptors returns a descriptor of /proc/self/fd, or -1.
var descriptors = sync.OnceValue(func() int {
	fd, err := unix.Open("/proc/self/fd", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return fd
})

// notByFD is set when the kernel does not link a file by its descriptor alone: before Linux 6.10,
// or if another thread with other credentials has opened it.
var notByFD atomic.Bool

// link gives an unnamed file a name.
func (p *Part) link(name string) error {
	if !notByFD.Load() {
		err := unix.Linkat(p.fd, "", p.at, name, unix.AT_EMPTY_PATH)
		if !errors.Is(err, unix.ENOENT) {
			return err
		}
		notByFD.Store(true)
	}
	return unix.Linkat(descriptors(), strconv.Itoa(p.fd), p.at, name, unix.AT_SYMLINK_FOLLOW)
}

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
// before. The lock keeps other sessions from removing that.
func (p *Part) replace() error {
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
	if err := unix.Fchmod(p.fd, uint32(perm.Perm())); err != nil {
		return err
	}
	return setTime(p.fd, mtime)
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
