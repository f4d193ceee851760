package part

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SetTime sets the modification time of an open file or directory. unix.UtimesNanoAt has no way to
// pass the null path for that. Chtimes of package os is wrong outside of the years 1678 to 2262,
// which it counts in nanoseconds.
func SetTime(fd int, mtime time.Time) error {
	m, err := unix.TimeToTimespec(mtime)
	if err != nil {
		return err
	}
	ts := [2]unix.Timespec{{Nsec: unix.UTIME_OMIT}, m}
	_, _, e := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&ts)), 0, 0,
		0)
	if e != 0 {
		return e
	}
	return nil
}
