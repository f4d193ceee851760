package sink

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/filecopy/part"
)

// minSpaceCheck is the size of the smallest file for which free space is looked up before.
const minSpaceCheck = 1 << 20

// claimed has the space of each file system, by device, that the files in progress of all copies of
// the process need and have not written. Without it, several files would be accepted of which only
// one fits, and all of them would fail when the disk is full.
var claimed = struct {
	sync.Mutex
	bytes map[uint64]int64
}{bytes: map[uint64]int64{}}

// claim is what a file in progress has in claimed.
type claim struct {
	device uint64
	bytes  int64 // guarded by claimed
}

// take claims n bytes of the file system of a directory. It returns an error if it has less.
func (c *claim) take(root *os.Root, n int64) error {
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	claimed.Lock()
	defer claimed.Unlock()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(d.Fd()), &st); err != nil {
		return err
	}
	dev := device(d)
	free, others := int64(st.Bavail)*st.Bsize, claimed.bytes[dev]
	if n > free-others {
		text := ""
		if others > 0 {
			text = fmt.Sprintf(" beside %d for other files that are being copied", others)
		}
		return fmt.Errorf("%w: %d bytes are needed, %d are free%s", unix.ENOSPC, n,
			max(0, free-others), text)
	}
	claimed.bytes[dev] += n
	c.device, c.bytes = dev, n
	return nil
}

// release gives back n bytes, which were written.
func (c *claim) release(n int64) {
	claimed.Lock()
	defer claimed.Unlock()
	n = min(n, c.bytes)
	c.bytes -= n
	if claimed.bytes[c.device] -= n; claimed.bytes[c.device] == 0 {
		delete(claimed.bytes, c.device)
	}
}

// claims reports whether the file claims space. Small files, of which there are many, do not.
func (f *file) claims() bool { return f.Size >= minSpaceCheck && !f.Sparse }

// release gives back n bytes of what the file has claimed, at most all of it.
func (f *file) release(n int64) {
	if f.claims() {
		f.claim.release(n)
	}
}

// full adds to an error of a full disk what can be deleted.
func (s *Sink) full(f *file, err error) error {
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return err
	}
	n := f.dir
	n.leftOnce.Do(func() { n.leftBytes = s.leftBytes(n) })
	if n.leftBytes == 0 {
		return err
	}
	return fmt.Errorf("%w; incomplete files (%s) in its directory occupy %d bytes: delete "+
		"those that no copy is to continue", err, part.Pattern, n.leftBytes)
}

// leftBytes returns the space that the temporary files in a directory occupy.
func (s *Sink) leftBytes(n *node) (sum int64) {
	root, err := s.dirs.Use(n.Dir)
	if err != nil {
		return 0
	}
	defer s.dirs.Release(n.Dir)
	d, err := root.Open(".")
	if err != nil {
		return 0
	}
	defer d.Close()
	for {
		names, err := d.Readdirnames(readNames)
		for _, name := range names {
			var st unix.Stat_t
			if _, ok := part.Temporary(name); ok &&
				unix.Fstatat(int(d.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
				sum += st.Blocks * 512
			}
		}
		if err != nil { // also at the end
			return sum
		}
	}
}
