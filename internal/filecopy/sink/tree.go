package sink

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/filecopy/dirs"
	"github.com/gorxe/gorxe/internal/filecopy/part"
	"github.com/gorxe/gorxe/internal/filecopy/record"
	"github.com/gorxe/gorxe/internal/safefile"
)

// maxSeen is the number of names that the sink remembers for deleting what is not among them.
const maxSeen = 4 << 20

// userAll are the permissions that a directory has while the sink works in it.
const userAll = 0o700

// errNoDir means that an entry cannot be stored because its directory could not be created.
var errNoDir = errors.New("its directory could not be created")

// node is a directory of the target.
type node struct {
	*dirs.Dir
	record.Entry

	parent *node         // nil: the target directory
	depth  int           // 0: the target directory
	ready  chan struct{} // closed when the directory exists or err is set
	err    error
	absent bool        // it does not exist, in a dry run
	made   bool        // it did not exist before
	perm   fs.FileMode // attributes of an existing directory
	opened bool        // its permissions were changed from perm

	leftOnce  sync.Once // sets leftBytes
	leftBytes int64     // of temporary files in it, when a disk was full

	// Guarded by Sink.mu:
	pending  int  // entries that are not finished
	left     bool // no more entries come
	complete bool // the source could read all names
	seen     []uint64
	tooMany  bool     // seen is not complete
	kept     []uint64 // IDs of names with temporary files for a later run
}

func newTop(dir *os.Root) *node {
	n := &node{Dir: dirs.Top(dir), ready: make(chan struct{}), absent: dir == nil}
	close(n.ready)
	return n
}

// enter creates a directory, in a worker.
func (s *Sink) enter(n *node) {
	<-n.parent.ready
	switch {
	case n.parent.err != nil:
		n.err = errNoDir
	case n.parent.absent:
		n.absent = true
	default:
		n.err = s.makeDir(n)
	}
	if n.err == nil {
		// Before leaveDir can add the final answer.
		s.answers.add(&record.Answer{Number: n.Number, Verdict: record.Want})
	}
	close(n.ready)
	if n.err != nil {
		s.failed(&n.Entry, n.parent, reason(n.err))
	}
}

// makeDir creates a directory, or finds out that it exists.
func (s *Sink) makeDir(n *node) error {
	root, err := s.dirs.Use(n.parent.Dir)
	if err != nil {
		return err
	}
	defer s.dirs.Release(n.parent.Dir)
	info, err := root.Lstat(n.Name)
	if errors.Is(err, fs.ErrNotExist) && !s.c.DryRun {
		err = root.Mkdir(n.Name, userAll)
		if !errors.Is(err, fs.ErrExist) {
			n.made = err == nil
			return err
		}
		info, err = root.Lstat(n.Name) // another session has created it meanwhile
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) && s.c.DryRun:
		n.absent = true
		return nil
	case err != nil:
		return err
	case info.Mode()&fs.ModeSymlink != 0:
		return errors.New("the receiver has a symbolic link of that name, which is not followed: remove it there")
	case !info.IsDir():
		return errors.New("the receiver has a file of that name: remove it there")
	}
	n.perm = info.Mode() & attributes
	if n.perm&userAll != userAll && !s.c.DryRun {
		// The owner could not store files in it. leaveDir sets the permissions of the source.
		n.opened = s.chmod(root, n.Name, n.perm|userAll) == nil
	}
	return nil
}

// attributes are the parts of a mode that chmod changes.
const attributes = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky

// chmod changes the mode of a directory without following links. Without permission to open it, a
// link that takes its place meanwhile is followed, but not out of root.
func (s *Sink) chmod(root *os.Root, name string, perm fs.FileMode) error {
	d, _, err := safefile.OpenDir(root, name)
	if errors.Is(err, fs.ErrPermission) {
		return root.Chmod(name, perm)
	}
	if err != nil {
		return err
	}
	return errors.Join(d.Chmod(".", perm), d.Close())
}

// release ends an entry of a directory. If it was the last one, the directory ends as well.
func (s *Sink) release(n *node) {
	s.mu.Lock()
	done := n.released()
	s.mu.Unlock()
	if done {
		s.leaveDir(n)
	}
}

// released counts the end of an entry. It reports whether the directory ends with it. The caller
// holds Sink.mu.
func (n *node) released() bool {
	n.pending--
	return n.pending == 0 && n.left
}

// leaveDir ends a directory: it deletes what the source does not have, and sets the attributes.
func (s *Sink) leaveDir(n *node) {
	<-n.ready
	if n.parent == nil {
		if kept := s.prune(n); kept != nil { // which is counted
			s.answers.add(&record.Answer{Verdict: record.Failed, Text: kept.Error()})
		}
		return
	}
	if n.err == nil {
		err, kept := error(nil), error(nil)
		if !n.absent {
			kept = s.prune(n)
			err = s.setAttributes(n)
		}
		switch {
		case err != nil:
			s.failed(&n.Entry, n.parent, reason(err))
		case kept != nil: // which is counted
			s.answers.add(&record.Answer{Number: n.Number, Verdict: record.Failed,
				Text: kept.Error()})
		case n.absent:
			s.skipped(&n.Entry, n.parent, record.DryRun)
		case n.made:
			s.stored(&n.Entry, 0)
		default:
			s.skipped(&n.Entry, n.parent, record.Unchanged)
		}
	}
	s.dirs.Forget(n.Dir)
	s.mu.Lock()
	delete(s.nodes, n.Number)
	s.mu.Unlock()
	s.release(n.parent)
}

// setAttributes sets the permissions and the time of a directory, after all changes in it.
func (s *Sink) setAttributes(n *node) error {
	if s.c.DryRun {
		return nil
	}
	root, err := s.dirs.Use(n.Dir)
	if err != nil {
		return err
	}
	defer s.dirs.Release(n.Dir)
	if err := s.syncDir(root); err != nil {
		return err
	}
	if !n.made && s.c.Overwrite == record.Never {
		if n.opened {
			return root.Chmod(".", n.perm)
		}
		return nil
	}
	late := setTime(root, n.Mtime)
	if late != nil {
		info, err := root.Stat(".")
		if err != nil {
			return err
		}
		if sameTime(info.ModTime(), n.Mtime) {
			late = nil
		}
	}
	// The permissions come last: without search permission, the time cannot be set.
	if perm := fs.FileMode(n.Perm); n.made || n.opened || perm != n.perm.Perm() {
		if err := setPerm(root, perm); err != nil {
			info, e := root.Stat(".")
			if e != nil {
				return e
			}
			return fmt.Errorf("its permissions stay %04o instead of %04o: %w", info.Mode().Perm(),
				perm, notSet(err))
		}
	}
	if late != nil {
		return fmt.Errorf("its modification time was not set: %w", notSet(late))
	}
	return nil
}

// notSet says what to do about an attribute of a directory that could not be set.
func notSet(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: set it as the owner of the directory", reason(err))
	}
	return reason(err)
}

// setPerm sets the permissions of a directory. It keeps setgid, which a directory may have
// inherited so that its files belong to a group, and the sticky bit.
func setPerm(root *os.Root, perm fs.FileMode) error {
	info, err := root.Stat(".")
	if err != nil {
		return err
	}
	return root.Chmod(".", perm|info.Mode()&attributes&^fs.ModePerm)
}

// setTime sets the modification time of a directory.
func setTime(root *os.Root, mtime time.Time) error {
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	return part.SetTime(int(d.Fd()), mtime)
}

// syncDir writes the names in a directory to disk, unless syncTarget does so.
func (s *Sink) syncDir(root *os.Root) error {
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	if device(d) == s.device && s.whole {
		return nil
	}
	return d.Sync()
}

// syncTarget writes all names in the target directory to disk, and sets its attributes before.
func (s *Sink) syncTarget() error {
	if s.c.DryRun {
		return nil
	}
	d, err := s.c.Dir.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	s.setTop() // may not permit to open it again
	if s.whole {
		return unix.Syncfs(int(d.Fd()))
	}
	return d.Sync()
}

// findDevice finds out how the target directory is synced.
func (s *Sink) findDevice() error {
	if s.c.Dir == nil {
		return nil
	}
	d, err := s.c.Dir.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	s.device, s.whole = device(d), part.SyncsWhole(int(d.Fd()))
	s.disk = part.HasDisk(int(d.Fd()))
	return nil
}

func device(f *os.File) uint64 {
	info, err := f.Stat()
	if err != nil {
		return 0
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Dev)
	}
	return 0
}

// note remembers that the source has a name. The caller holds mu.
func (s *Sink) note(n *node, name string) {
	if !s.c.Delete || n.tooMany {
		return
	}
	if s.seen == maxSeen {
		s.seen -= len(n.seen)
		n.seen, n.tooMany = nil, true
		return
	}
	s.seen++
	n.seen = append(n.seen, part.ID(name))
}

// prune deletes the names in a directory that the source does not have. It reports and counts those
// that could not be deleted, and returns an error that describes them.
func (s *Sink) prune(n *node) error {
	s.mu.Lock()
	seen, kept := n.seen, n.kept
	wanted := s.c.Delete && n.complete && !n.absent
	s.seen -= len(seen)
	n.seen = nil
	s.mu.Unlock()
	if !wanted {
		return nil
	}
	slices.Sort(kept)
	r := remover{Sink: s, top: n, kept: kept}
	if n.tooMany {
		r.fail(n.Join("*"), fmt.Errorf("the source has more than %d names", maxSeen))
		return r.err()
	}
	slices.Sort(seen)
	r.prune(seen)
	return r.err()
}
