package part

import (
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// minTogether is the number of files from which on their file system is synced as a whole.
	minTogether = 4
	// syncers is the number of files that are synced at the same time.
	syncers = 16
)

// whole lists the file systems on which syncfs writes all files to disk.
var whole = map[int64]bool{
	unix.EXT4_SUPER_MAGIC: true, unix.XFS_SUPER_MAGIC: true, unix.BTRFS_SUPER_MAGIC: true,
	unix.F2FS_SUPER_MAGIC: true, unix.TMPFS_MAGIC: true,
}

// HasDisk reports whether the file system of fd has a disk, to which files must be synced.
func HasDisk(fd int) bool { return fileSystem(fd) != unix.TMPFS_MAGIC }

// SyncsWhole reports whether syncfs writes all files of the file system of fd to disk.
func SyncsWhole(fd int) bool { return whole[fileSystem(fd)] }

// fileSystem returns the type of the file system of fd, 0 if it is not known.
func fileSystem(fd int) int64 {
	var st unix.Statfs_t
	if unix.Fstatfs(fd, &st) != nil {
		return 0
	}
	return int64(st.Type)
}

// SyncAll writes the data of all files to disk, several together where the file system can do that.
// It returns an error for each file, nil for those that are on disk.
func SyncAll(list []*Part) []error {
	errs := make([]error, len(list))
	devices := map[uint64][]int{}
	for i, p := range list {
		if p.Unnamed() {
			devices[p.handle.Dev] = append(devices[p.handle.Dev], i)
			continue
		}
		var st unix.Stat_t
		if errs[i] = unix.Fstat(p.fd, &st); errs[i] == nil {
			devices[uint64(st.Dev)] = append(devices[uint64(st.Dev)], i)
		}
	}
	for _, group := range devices {
		first := list[group[0]].fd
		fs := fileSystem(first)
		if fs == unix.TMPFS_MAGIC { // there is no disk
			continue
		}
		if len(group) >= minTogether && whole[fs] && unix.Syncfs(first) == nil {
			for _, i := range group {
				errs[i] = list[i].writeError()
			}
			continue
		}
		syncEach(list, group, errs)
	}
	return errs
}

// writeError returns the error of a write to disk that happened since the file was opened. Before
// Linux 5.8, syncfs does not return such errors, and later only one for all files.
func (p *Part) writeError() error {
	return unix.SyncFileRange(p.fd, 0, 0, unix.SYNC_FILE_RANGE_WAIT_BEFORE)
}

// syncEach syncs files one by one.
func syncEach(list []*Part, group []int, errs []error) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, syncers)
	for _, i := range group {
		slots <- struct{}{}
		wg.Go(func() {
			errs[i] = list[i].Sync()
			<-slots
		})
	}
	wg.Wait()
}
