package sysfs

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Character devices of the tree. The numbers of uverbs are those of Linux. rdma_cm has a dynamic
// number on Linux.
var (
	UverbsNumber = unix.Mkdev(231, 192)
	CMNumber     = unix.Mkdev(10, 58)
)

// UverbsName is the name of the verbs device in /dev/infiniband.
const UverbsName = "uverbs0"

// Entry is a file of the tree.
type Entry struct {
	Path   string // relative to the root of the tree; "": there is no such file
	Device uint64 // number of a character device; 0 for other files
}

// Counter reports whether the file is a counter; see Tree.UpdateCounters.
func (e Entry) Counter() bool { return strings.Contains(e.Path, counterDir) }

// counterDir is in the path of a counter.
const counterDir = "/hw_counters/"

// Tree is a directory tree with the files of a device.
type Tree struct {
	root string
	dir  *os.File
}

// Trees have names that begin with treePrefix. A tree without a lock is stale after staleAge: its
// process was killed. Processes lock their trees long before.
const (
	treePrefix = "gorxe-run-"
	staleAge   = time.Minute
)

// New creates a tree in a new directory under the directory dir. It removes trees that killed
// processes of this user have left there.
func New(dir string, d *Device) (*Tree, error) {
	removeStale(dir)
	root, err := os.MkdirTemp(dir, treePrefix)
	if err != nil {
		return nil, fmt.Errorf("sysfs: %w", err)
	}
	t := &Tree{root: root}
	if t.root, err = filepath.EvalSymlinks(root); err == nil {
		err = t.Update(d)
	}
	if err == nil {
		t.dir, err = os.Open(t.root)
	}
	if err != nil {
		_ = os.RemoveAll(root)
		return nil, fmt.Errorf("sysfs: %w", err)
	}
	// Without locks in the file system, isStale finds nothing.
	_ = unix.Flock(t.FD(), unix.LOCK_EX|unix.LOCK_NB)
	return t, nil
}

// removeStale removes stale trees of this user in a directory.
func removeStale(dir string) {
	names, _ := filepath.Glob(filepath.Join(dir, treePrefix+"*"))
	for _, name := range names {
		if isStale(name) {
			_ = os.RemoveAll(name)
		}
	}
}

// isStale reports whether a directory is a stale tree of this user.
func isStale(name string) bool {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Open(name, flags, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && int(st.Uid) == os.Geteuid() &&
		time.Since(time.Unix(st.Mtim.Unix())) > staleAge &&
		unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil
}

// Root returns the path of the tree.
func (t *Tree) Root() string { return t.root }

// FD returns the descriptor of the root directory.
func (t *Tree) FD() int { return int(t.dir.Fd()) }

// Close removes the tree.
func (t *Tree) Close() error {
	err := t.dir.Close()
	if e := os.RemoveAll(t.root); err == nil {
		err = e
	}
	return err
}

// emulated are the paths that exist only in the tree, with everything beneath them.
var emulated = []string{
	"/dev/infiniband",
	"/dev/char/231:192",
	"/sys/class/infiniband",
	"/sys/class/infiniband_verbs",
	"/sys/class/misc/rdma_cm",
}

// Maybe reports whether a path, absolute or relative to a directory outside of the tree, could be
// one of the tree. It is fast.
func Maybe(name string) bool {
	return strings.Contains(name, "infiniband") || strings.Contains(name, "rdma_cm") ||
		strings.Contains(name, "231:192")
}

// Find returns the entry of an absolute path. ok means that the path begins in a directory that
// only the tree has. A path that leaves the tree again, like /dev/infiniband/../null, has no file:
// this process must not open it, because the program may have fewer privileges or another root
// directory.
func (t *Tree) Find(name string) (e Entry, ok bool) {
	if rel, inside := strings.CutPrefix(name, t.root); inside && strings.HasPrefix(rel, "/") {
		name = rel // relative to a directory of the tree
	}
	clean := path.Clean(name)
	if isEmulated(clean) {
		return entry(clean), true
	}
	return Entry{}, isEmulated(name)
}

func isEmulated(name string) bool {
	for _, p := range emulated {
		if name == p || strings.HasPrefix(name, p) && name[len(p)] == '/' {
			return true
		}
	}
	return false
}

// Inside reports whether an absolute path is in the tree.
func (t *Tree) Inside(name string) bool {
	return name == t.root || strings.HasPrefix(name, t.root+"/")
}

func entry(name string) Entry {
	e := Entry{Path: name[1:]}
	switch name {
	case "/dev/infiniband/" + UverbsName, "/dev/char/231:192":
		e.Device = UverbsNumber
	case "/dev/infiniband/rdma_cm":
		e.Device = CMNumber
	}
	return e
}
