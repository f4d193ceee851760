package source

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/filecopy/dirs"
)

// errChanged means that a file has changed since it was announced.
var errChanged = errors.New("the file changed during the transfer: run the command again")

// stamp is what changes when a file changes.
type stamp struct {
	size  int64
	inode uint64
	mtime unix.Timespec
	ctime unix.Timespec // of the inode: nobody can set it back
}

func stampOf(st *unix.Stat_t) stamp {
	return stamp{size: st.Size, inode: st.Ino, mtime: st.Mtim, ctime: st.Ctim}
}

// minSparse is the size of the smallest file whose holes are preserved.
const minSparse = 32 << 10

// sparse reports whether a file has holes that are worth preserving.
func sparse(st *unix.Stat_t) bool {
	const unit = 512 // of Stat_t.Blocks
	return st.Size >= minSparse && st.Blocks*unit < st.Size
}

// regular reports whether a mode of the kernel is that of a regular file.
func regular(mode uint32) bool { return mode&unix.S_IFMT == unix.S_IFREG }

// version returns a number that is different for different stamps.
func (s stamp) version() uint64 {
	var b [48]byte
	for i, v := range [...]int64{s.size, int64(s.inode), s.mtime.Sec, s.mtime.Nsec, s.ctime.Sec,
		s.ctime.Nsec} {
		binary.BigEndian.PutUint64(b[8*i:], uint64(v))
	}
	h := fnv.New64a()
	_, _ = h.Write(b[:])
	return h.Sum64()
}

// change describes how a file has changed since it was announced.
func (s stamp) change(now stamp) error {
	switch {
	case now.size < s.size:
		return fmt.Errorf("the file shrank from %d to %d bytes during the transfer: run the command again",
			s.size, now.size)
	case now.size > s.size:
		return fmt.Errorf("the file grew from %d to %d bytes during the transfer: run the command again",
			s.size, now.size)
	}
	return errChanged
}

// open opens the file of an item to read it. It returns an error of change if the file has changed.
func (s *Source) open(it *item) (*os.File, error) {
	root, err := s.dirs.Use(it.dir)
	if err != nil {
		return nil, err
	}
	defer s.dirs.Release(it.dir)
	// O_NONBLOCK: if the name has become that of a FIFO, do not wait for it.
	f, err := root.OpenFile(it.name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if err := it.check(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// openSmall returns a descriptor to read the file of an item whose contents are sent in one record.
// The caller checks afterwards that the file has not changed. It closes the descriptor.
func (s *Source) openSmall(it *item) (int, error) {
	if _, err := s.dirs.Use(it.dir); err != nil {
		return -1, err
	}
	defer s.dirs.Release(it.dir)
	h, err := s.dirs.Handle(it.dir)
	if err != nil {
		return -1, err
	}
	const flags = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	return dirs.Retry(func() (int, error) { return unix.Openat(h.FD, it.name, flags, 0) })
}

// check returns an error if the file is not as it was announced.
func (it *item) check(f *os.File) error { return it.checkFD(int(f.Fd())) }

func (it *item) checkFD(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if now := stampOf(&st); now != it.stamp || !regular(st.Mode) {
		return changeError{it.stamp.change(now)}
	}
	return nil
}

// changeError marks errors of stamp.change.
type changeError struct{ error }

// changed reports whether an error means that a file has changed.
func changed(err error) bool {
	var c changeError
	return errors.As(err, &c)
}
