package safefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrUnsafe means that a name belongs to something else than the expected file or directory: a
// symbolic link, a FIFO, a device, or a file that has other names.
var ErrUnsafe = errors.New("not safe to use")

// filePerm is the mode of created files, before the umask.
const filePerm = 0o644

// OpenDir opens the directory name below root. It does not follow a symbolic link. The FileInfo
// identifies the directory (os.SameFile).
func OpenDir(root *os.Root, name string) (*os.Root, fs.FileInfo, error) {
	before, err := root.Lstat(name)
	if err != nil {
		return nil, nil, err
	}
	if !before.IsDir() {
		return nil, nil, refuse(root, name, "it is no directory")
	}
	// The end of the path keeps OpenRoot from waiting for the writer of a FIFO.
	dir, err := root.OpenRoot(name + "/.")
	if err != nil {
		return nil, nil, err
	}
	now, err := dir.Stat(".")
	if err == nil && !os.SameFile(before, now) {
		err = refuse(root, name, "it was replaced")
	}
	if err != nil {
		return nil, nil, errors.Join(err, dir.Close())
	}
	return dir, now, nil
}

// Create creates a file for reading and writing. It removes whatever had the name before, without
// following links, except directories.
func Create(dir *os.Root, name string) (*os.File, error) {
	const flags = os.O_CREATE | os.O_EXCL | os.O_RDWR | unix.O_NOFOLLOW
	f, err := dir.OpenFile(name, flags, filePerm)
	if errors.Is(err, fs.ErrExist) {
		if err = Remove(dir, name); err == nil {
			f, err = dir.OpenFile(name, flags, filePerm)
		}
	}
	return f, err
}

// Open opens an existing regular file. flag is os.O_RDONLY, os.O_WRONLY or os.O_RDWR. To be
// written, the file must have no other name (hard link), through which another user's data would
// change. Open returns ErrUnsafe for anything else.
func Open(dir *os.Root, name string, flag int) (*os.File, error) {
	before, err := dir.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !usable(before, flag) {
		return nil, refuse(dir, name, "it is a link, a directory or a special file")
	}
	// If the file was replaced meanwhile, O_NONBLOCK keeps the call from waiting for a FIFO, and
	// the comparison detects the rest.
	f, err := dir.OpenFile(name, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	now, err := f.Stat()
	if err == nil && (!os.SameFile(before, now) || !usable(now, flag)) {
		err = refuse(dir, name, "it was replaced")
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func usable(info fs.FileInfo, flag int) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	single := !ok || st.Nlink == 1
	return info.Mode().IsRegular() && (single || flag == os.O_RDONLY)
}

// Remove deletes a name if it exists and is not a directory. It does not follow links.
func Remove(dir *os.Root, name string) error {
	info, err := dir.Lstat(name)
	if err == nil && info.IsDir() {
		return refuse(dir, name, "it is a directory: remove it")
	}
	if err == nil {
		err = dir.Remove(name)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func refuse(dir *os.Root, name, why string) error {
	return fmt.Errorf("%s: %w: %s", filepath.Join(dir.Name(), name), ErrUnsafe, why)
}
