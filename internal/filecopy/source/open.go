package source

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// errChanged means that a file has changed since it was announced.
var errChanged = errors.New("the file changed during the transfer: run the command again")

// stamp is what changes when a file changes.
type stamp struct {
	size  int64
	inode uint64
	mtime syscall.Timespec
	ctime syscall.Timespec // of the inode: nobody can set it back
}

func stampOf(info fs.FileInfo) stamp {
	s := stamp{size: info.Size()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode, s.mtime, s.ctime = st.Ino, st.Mtim, st.Ctim
	}
	return s
}

// minSparse is the size of the smallest file whose holes are preserved.
const minSparse = 32 << 10

// sparse reports whether a file has holes that are worth preserving.
func sparse(info fs.FileInfo) bool {
	const unit = 512 // of Stat_t.Blocks
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Size >= minSparse && st.Blocks*unit < st.Size
}

// version returns a number that is different for different stamps.
func (s stamp) version() uint64 {
	h := fnv.New64a()
	_ = binary.Write(h, binary.BigEndian, []int64{s.size, int64(s.inode), s.mtime.Sec, s.mtime.Nsec,
		s.ctime.Sec, s.ctime.Nsec})
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

// check returns an error if the file is not as it was announced.
func (it *item) check(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if now := stampOf(info); now != it.stamp || !info.Mode().IsRegular() {
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
