package part

import (
	"errors"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/safefile"
)

// Symlink creates a symbolic link with a modification time. It replaces a file or link of that
// name, unless keep is set: then it returns ErrExists.
func Symlink(dir *os.Root, name, target string, mtime time.Time, keep bool) error {
	temp := name
	if !keep {
		defer lockID(ID(name))()
		p := Part{dir: dir, name: name, temp: temporary(name, partSuffix)}
		if err := p.removeOld(); err != nil {
			return err
		}
		temp = p.temp
	}
	if err := dir.Symlink(target, temp); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return ErrExists
		}
		return err
	}
	err := LinkTime(dir, temp, mtime)
	if err == nil && !keep {
		err = dir.Rename(temp, name)
	}
	if err != nil && !keep {
		return errors.Join(err, safefile.Remove(dir, temp))
	}
	return err
}

// LinkTime sets the modification time of a symbolic link.
func LinkTime(dir *os.Root, name string, mtime time.Time) error {
	m, err := unix.TimeToTimespec(mtime)
	if err != nil {
		return err
	}
	d, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, m}
	return unix.UtimesNanoAt(int(d.Fd()), name, times, unix.AT_SYMLINK_NOFOLLOW)
}
