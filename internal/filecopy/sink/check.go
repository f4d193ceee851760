package sink

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/filecopy/part"
	"github.com/gorxe/gorxe/internal/filecopy/record"
)

// check decides what happens to a file or link, in a worker.
func (s *Sink) check(f *file) {
	<-f.dir.ready
	if f.dir.err != nil {
		f.fail(errNoDir, true)
		return
	}
	why, err := s.compare(f)
	switch {
	case err != nil:
		f.fail(reason(err), true)
	case why != 0:
		f.skip(why)
	case s.c.DryRun:
		f.skip(record.DryRun)
	case f.Kind == record.Symlink:
		if err := s.makeLink(f); err != nil {
			f.fail(reason(err), true)
			return
		}
		f.done(0)
	default:
		s.want(f)
	}
}

// compare looks at what has the name of a file. It returns the reason to skip the file, 0 if there
// is none.
func (s *Sink) compare(f *file) (record.Reason, error) {
	switch {
	case f.Kind != record.File && f.Kind != record.Symlink && f.Kind != record.Stream:
		return 0, fmt.Errorf("the receiver does not store a %v", f.Kind)
	case reserved(f.Name):
		return 0, errors.New("the name is reserved for incomplete files")
	case f.dir.absent:
		return 0, nil
	}
	root, err := s.dirs.Use(f.dir.Dir)
	if err != nil {
		return 0, err
	}
	defer s.dirs.Release(f.dir.Dir)
	if absent, err := s.absent(f); absent || err != nil {
		return 0, err
	}
	info, err := root.Lstat(f.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, nil
	case err != nil:
		return 0, err
	case info.IsDir():
		return 0, errors.New("the receiver has a directory of that name: remove it there")
	case s.same(f, root, info):
		return record.Unchanged, nil
	case s.c.Overwrite == record.Never:
		return record.Exists, nil
	case s.c.Overwrite == record.Older && !info.ModTime().Before(f.Mtime):
		return record.Newer, nil
	}
	return 0, nil
}

// absent reports whether nothing has the name of a file, or nothing that matters. Most files of a
// copy are new. Its directory is in use. Another session may have stored the same large file.
func (s *Sink) absent(f *file) (bool, error) {
	if f.dir.made && s.c.Overwrite == record.Always && !f.resumable() {
		return true, nil
	}
	h, err := s.dirs.Handle(f.dir.Dir)
	if err != nil {
		return false, err
	}
	var st unix.Stat_t
	err = unix.Fstatat(h.FD, f.Name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return errors.Is(err, unix.ENOENT), nil
}

// same reports whether the sink has the same file already. It adapts the permissions of a file and
// the time of a link.
func (s *Sink) same(f *file, root *os.Root, info fs.FileInfo) bool {
	switch f.Kind {
	case record.Symlink:
		link, err := root.Readlink(f.Name)
		if err != nil || link != f.Link {
			return false
		}
		if !sameTime(info.ModTime(), f.Mtime) && s.adapts() {
			return part.LinkTime(root, f.Name, f.Mtime) == nil
		}
		return true
	case record.File:
		if !info.Mode().IsRegular() || info.Size() != f.Size || !sameTime(info.ModTime(), f.Mtime) {
			return false
		}
		if perm := fs.FileMode(f.Perm); info.Mode().Perm() != perm && s.adapts() {
			return root.Chmod(f.Name, perm) == nil
		}
		return true
	}
	return false
}

// adapts reports whether attributes of existing files are changed.
func (s *Sink) adapts() bool { return !s.c.DryRun && s.c.Overwrite == record.Always }

// sameTime reports whether a file that the sink has stored has the time of the source's file. Some
// file systems store whole seconds.
func sameTime(stored, source time.Time) bool {
	return stored.Equal(source) || stored.Nanosecond() == 0 && stored.Unix() == source.Unix()
}

// want asks for a file, or for the part that the sink does not have.
func (s *Sink) want(f *file) {
	s.mu.Lock()
	over := s.c.MaxBytes > 0 && f.Size > s.c.MaxBytes-s.bytes
	if !over {
		s.bytes += f.Size
	}
	s.mu.Unlock()
	if over {
		f.fail(fmt.Errorf("%w: the receiver accepts at most %d bytes at a time", ErrLimit,
			s.c.MaxBytes), true)
		return
	}
	if f.resumable() {
		s.lock(f)
	} else {
		s.prepare(f)
	}
}

// ask asks for a file that is prepared.
func (s *Sink) ask(f *file, err error) {
	if err != nil {
		f.fail(s.full(f, reason(err)), true)
		return
	}
	f.mu.Lock()
	f.state = asked
	have := f.had
	f.mu.Unlock()
	s.answers.add(&record.Answer{Number: f.Number, Verdict: record.Want, Have: have})
}

// makeLink stores a symbolic link.
func (s *Sink) makeLink(f *file) error {
	root, err := s.dirs.Use(f.dir.Dir)
	if err != nil {
		return err
	}
	defer s.dirs.Release(f.dir.Dir)
	return part.Symlink(root, f.Name, f.Link, f.Mtime, s.c.Overwrite == record.Never)
}
