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
	MkdirAll(name string, perm fs.FileMode) error
	Open(name string) (*os.File, error)
	OpenRoot(name string) (*os.Root, error)
}

// host is the file system of this host.
type host struct{}

func (host) Stat(name string) (fs.FileInfo, error)        { return os.Stat(name) }
func (host) MkdirAll(name string, perm fs.FileMode) error { return os.MkdirAll(name, perm) }
func (host) Open(name string) (*os.File, error)           { return os.Open(name) }
func (host) OpenRoot(name string) (*os.Root, error)       { return os.OpenRoot(name) }

// Target opens the directory into which files are stored. name is the target that the user has
// named, below root, in which .. does not lead out. If the source is a single file and the target
// is not a directory, rename is the file's name and the directory is the one that contains it.
// Directories that do not exist are created, unless dryRun is set: then the directory is nil.
func Target(root *os.Root, name string, single, dryRun bool) (dir *os.Root, rename string,
	err error) {
	clean := strings.TrimPrefix(path.Clean("/"+name), "/")
	if clean == "" {
		clean = "."
	}
	return target(root, clean, single && !strings.HasSuffix(name, "/"), dryRun)
}

// LocalTarget is Target for a path of this host, without a root.
func LocalTarget(name string, single, dryRun bool) (dir *os.Root, rename string, err error) {
	return target(host{}, path.Clean(name), single && !strings.HasSuffix(name, "/"), dryRun)
}

func target(files tree, clean string, single, dryRun bool) (dir *os.Root, rename string,
	err error) {
	fail := func(err error) (*os.Root, string, error) {
		return nil, "", fmt.Errorf("%w %q: %w", ErrTarget, clean, reason(err))
	}
	info, err := files.Stat(clean)
	switch {
	case err == nil && info.IsDir():
		if dir, err = files.OpenRoot(clean); err != nil {
			return fail(err)
		}
		return dir, "", nil
	case err == nil && !single:
		return fail(errors.New("it is not a directory"))
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fail(err)
	}
	parent := clean
	if single {
		parent, rename = path.Dir(clean), path.Base(clean)
		if err := record.CheckName(rename); err != nil {
			return fail(err)
		}
	}
	if !dryRun {
		if err := mkdirAll(files, parent); err != nil {
			return fail(err)
		}
	}
	dir, err = files.OpenRoot(parent)
	if dryRun && errors.Is(err, fs.ErrNotExist) {
		return nil, rename, nil
	}
	if err != nil {
		return fail(err)
	}
	return dir, rename, nil
}

// mkdirAll creates a directory and its parents, and writes their names to disk. The file system may
// be one on which the transfer only syncs the directories that it has received.
func mkdirAll(files tree, name string) error {
	var made []string
	for dir := name; ; dir = path.Dir(dir) {
		if _, err := files.Stat(dir); !errors.Is(err, fs.ErrNotExist) || dir == path.Dir(dir) {
			break
		}
		made = append(made, dir)
	}
	if err := files.MkdirAll(name, dirPerm); err != nil {
		return err
	}
	for _, dir := range made {
		d, err := files.Open(path.Dir(dir))
		if errors.Is(err, fs.ErrPermission) {
			continue // in which names may be created, but not read
		}
		if err != nil {
			return err
		}
		if err := errors.Join(d.Sync(), d.Close()); err != nil {
			return err
		}
	}
	return nil
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
