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

// Target opens the directory into which files are stored. name is the target that the user has
// named, below root, in which .. does not lead out. If the source is a single file and the target
// is not a directory, rename is the file's name and the directory is the one that contains it.
// Directories that do not exist are created, unless dryRun is set: then the directory is nil.
func Target(root *os.Root, name string, single, dryRun bool) (dir *os.Root, rename string,
	err error) {
	clean := strings.TrimPrefix(path.Clean("/"+name), "/")
	if clean == "" {
		dir, err = root.OpenRoot(".")
		return dir, "", err
	}
	info, err := root.Stat(clean)
	switch {
	case err == nil && info.IsDir():
		dir, err = root.OpenRoot(clean)
		return dir, "", err
	case err == nil && (!single || strings.HasSuffix(name, "/")):
		return nil, "", fmt.Errorf("target %q is not a directory", name)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, "", fmt.Errorf("target %q: %w", name, reason(err))
	}
	parent := clean
	if single && !strings.HasSuffix(name, "/") {
		parent, rename = path.Dir(clean), path.Base(clean)
		if err := record.CheckName(rename); err != nil {
			return nil, "", err
		}
	}
	if !dryRun {
		if err := root.MkdirAll(parent, dirPerm); err != nil {
			return nil, "", fmt.Errorf("target %q: %w", name, reason(err))
		}
	}
	dir, err = root.OpenRoot(parent)
	if dryRun && errors.Is(err, fs.ErrNotExist) {
		return nil, rename, nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("target %q: %w", name, reason(err))
	}
	return dir, rename, nil
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
