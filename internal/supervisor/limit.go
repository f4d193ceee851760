package supervisor

import "github.com/gorxe/gorxe/internal/seccomp"

const (
	maxSelect = 1024 // select(2) does not accept larger descriptors
	maxFDs    = 128  // emulated files of a process
	minLimit  = 64   // smallest limit on open files for a program
)

// descriptors returns the range of descriptor numbers for files whose write calls are intercepted,
// for a limit on open files (RLIMIT_NOFILE). It is as high as possible, so that the program's own
// descriptors do not reach it, but below the limit of select(2).
func descriptors(limit int) seccomp.FDRange {
	top := min(limit, maxSelect)
	n := min(maxFDs, top/4)
	return seccomp.FDRange{First: top - n, Count: n}
}
