package sink

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/gorxe/gorxe/internal/filecopy/record"
)

// dirPerm is the mode of directories that no entry describes, before the umask.
const dirPerm = 0o755

// ErrTarget means that files cannot be stored in the target that the user has named.
var ErrTarget = errors.New("target")

// tree is what Target needs of a file system. *os.Root implements it.
type tree interface {
	Stat(name string) (fs.FileInfo, error)
	Mkdir(name string, perm fs.FileMode) error
	MkdirAll(name string, perm fs.FileMode) error
	Open(name string) (*os.File, error)
	OpenRoot(name string) (*os.Root, error)
}

// host is the file system of this host.
type host struct{}

func (host) Stat(name string) (fs.FileInfo, error)        { return os.Stat(name) }
func (host) Mkdir(name string, perm fs.FileMode) error    { return os.Mkdir(name, perm) }
func (host) MkdirAll(name string, perm fs.FileMode) error { return os.MkdirAll(name, perm) }
func (host) Open(name string) (*os.File, error)           { return os.Open(name) }
func (host) OpenRoot(name string) (*os.Root, error)       { return os.OpenRoot(name) }

// Target opens the directory into which files are stored, as Dir. name is the target that the user
// has named, below root, in which .. does not lead out. If the source is a single file and the
// target is not a directory, Rename is the file's name and Dir is the one that contains it.
// Directories that do not exist are created, in a dry run not: then Dir is nil. A directory that is
// created in place of that of the source gets its attributes, top.
func (c *Config) Target(root *os.Root, name string, single bool, top *record.Attributes) error {
	clean := strings.TrimPrefix(path.Clean("/"+name), "/")
	if clean == "" {
		clean = "."
	}
	return c.target(root, clean, single && !strings.HasSuffix(name, "/"), top)
}

// LocalTarget is Target for a path of this host, without a root.
func (c *Config) LocalTarget(name string, single bool, top *record.Attributes) error {
	return c.target(host{}, path.Clean(name), single && !strings.HasSuffix(name, "/"), top)
}

func (c *Config) target(files tree, clean string, single bool, top *record.Attributes) error {
	fail := func(err error) error { return fmt.Errorf("%w %q: %w", ErrTarget, clean, reason(err)) }
	info, err := files.Stat(clean)
	switch {
	case err == nil && info.IsDir():
		if c.Dir, err = files.OpenRoot(clean); err != nil {
			return fail(err)
		}
		return nil
	case err == nil && !single:
		return fail(errors.New("it is not a directory"))
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fail(err)
	}
	parent := clean
	if single {
		top = nil
		parent, c.Rename = path.Dir(clean), path.Base(clean)
		if err := record.CheckName(c.Rename); err != nil {
			return fail(err)
		}
	}
	if !c.DryRun {
		perm := fs.FileMode(dirPerm)
		if top != nil { // never more than at the source; Run sets the rest at the end
			perm = fs.FileMode(top.Perm) | userAll
		}
		made, err := mkdirAll(files, parent, perm)
		if err != nil {
			return fail(err)
		}
		if made {
			c.Top = top
		}
	}
	c.Dir, err = files.OpenRoot(parent)
	if c.DryRun && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// mkdirAll creates a directory and its parents, and writes their names to disk. The file system may
// be one on which the transfer only syncs the directories that it has received. made reports
// whether the directory did not exist before.
func mkdirAll(files tree, name string, perm fs.FileMode) (made bool, err error) {
	var names []string
	for dir := name; ; dir = path.Dir(dir) {
		if _, err := files.Stat(dir); !errors.Is(err, fs.ErrNotExist) || dir == path.Dir(dir) {
			break
		}
		names = append(names, dir)
	}
	if len(names) == 0 {
		return false, nil
	}
	if err := files.MkdirAll(path.Dir(name), dirPerm); err != nil {
		return false, err
	}
	err = files.Mkdir(name, perm)
	if made = err == nil; errors.Is(err, fs.ErrExist) { // another session has created it meanwhile
		err = files.MkdirAll(name, dirPerm) // fails if it is not a directory
	}
	if err != nil {
		return false, err
	}
	for _, dir := range names {
		d, err := files.Open(path.Dir(dir))
		if errors.Is(err, fs.ErrPermission) {
			continue // in which names may be created, but not read
		}
		if err != nil {
			return made, err
		}
		if err := errors.Join(d.Sync(), d.Close()); err != nil {
			return made, err
		}
	}
	return made, nil
}

// setTop gives a target directory that was created for the copy the attributes of the source's.
func (s *Sink) setTop() {
	if s.c.Top == nil {
		return
	}
	err := setTime(s.c.Dir, s.c.Top.Mtime)
	if e := setPerm(s.c.Dir, fs.FileMode(s.c.Top.Perm)); e != nil {
		err = e // more important than the time
	}
	if err != nil {
		s.failedTop(fmt.Errorf("its attributes were not set: %w", reason(err)))
	}
}

// failedTop counts and reports an error about the target directory itself, which has no entry.
func (s *Sink) failedTop(err error) {
	s.mu.Lock()
	s.sum.Failed++
	s.mu.Unlock()
	s.report(".", err)
	s.answers.add(&record.Answer{Verdict: record.Failed, Text: err.Error()})
}

// reason removes system calls and paths from an error of package os. The source knows the path.
func reason(err error) error {
	var p *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &p):
		return p.Err
	case errors.As(err, &link):
		return link.Err
	}
	return err
}
