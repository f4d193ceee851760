package dirs

import (
	"container/list"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/safefile"
)

// Bounds of the number of directories that the Caches of a process keep open.
const (
	minOpen = 16
	maxOpen = 1024
	// openParts is the fraction of the process's descriptors that the directories use, and their
	// handles as many.
	openParts = 8
)

// opened counts the open directories of all Caches of NewCache: a process can have many copies.
var opened atomic.Int64

// Cache limits how many directories are open. It is safe for concurrent use.
type Cache struct {
	open *atomic.Int64 // directories with a root, except those of Top, also of other Caches

	mu   sync.Mutex
	max  int64
	tops []*Dir    // of Top with a handle
	idle list.List // of *Dir with a root and without users, least recently used first
}

// Dir is a directory of a tree.
type Dir struct {
	parent *Dir
	name   string
	fixed  bool // root is the caller's

	opening sync.Mutex // held while the directory is being opened

	// Guarded by Cache.mu:
	root   *os.Root // nil: not open
	handle *Handle  // nil: not open
	users  int
	place  *list.Element // in idle, nil: not there
}

// Handle is an open directory for system calls with names relative to it. The names must be single
// path elements. The kernel follows symbolic links unless the call forbids that
// (AT_SYMLINK_NOFOLLOW, O_NOFOLLOW).
type Handle struct {
	FD  int
	Dev uint64 // device of the file system

	file *os.File
	kept atomic.Uint32 // permissions | permKept | permKnown, the latest of SetKept
}

// Flags beside permissions.
const (
	permKept = 1 << (12 + iota)
	permKnown
)

// SetKept notes whether files created in the directory with perm got exactly these permissions.
func (h *Handle) SetKept(perm fs.FileMode, kept bool) {
	v := uint32(perm) | permKnown
	if kept {
		v |= permKept
	}
	h.kept.Store(v)
}

// Kept returns what SetKept has noted about perm. ok is false if it has not.
func (h *Handle) Kept(perm fs.FileMode) (kept, ok bool) {
	v := h.kept.Load()
	return v&permKept != 0, v&^permKept == uint32(perm)|permKnown
}

// Retry calls a function that makes a system call until no signal interrupts it.
func Retry(f func() (int, error)) (n int, err error) {
	for {
		if n, err = f(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// NewCache returns a Cache.
func NewCache() *Cache {
	return &Cache{max: int64(Descriptors(openParts, minOpen, maxOpen)), open: &opened}
}

// Descriptors returns the given fraction of the number of files that the process may open, within
// bounds.
func Descriptors(parts, low, high int) int {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return low
	}
	return int(min(max(l.Cur/uint64(parts), uint64(low)), uint64(high)))
}

// Top returns the Dir for a directory that is open. The caller closes root after its last use.
func Top(root *os.Root) *Dir { return &Dir{root: root, fixed: true} }

// Child returns the Dir for a directory in d, which need not exist. name is one path element.
func (d *Dir) Child(name string) *Dir { return &Dir{parent: d, name: name} }

// Path returns the path below the top directory, with slashes; "" for the top directory.
func (d *Dir) Path() string {
	var names []string
	for ; d.parent != nil; d = d.parent {
		names = append(names, d.name)
	}
	var b strings.Builder
	for i := len(names) - 1; i >= 0; i-- {
		b.WriteString(names[i])
		if i > 0 {
			b.WriteByte('/')
		}
	}
	return b.String()
}

// Join returns the path of an entry of d below the top directory.
func (d *Dir) Join(name string) string {
	if p := d.Path(); p != "" {
		return p + "/" + name
	}
	return name
}

// Use opens the directory, unless it is open, and keeps it open until Release.
func (c *Cache) Use(d *Dir) (*os.Root, error) {
	if d.fixed {
		return d.root, nil
	}
	if root := c.take(d); root != nil {
		return root, nil
	}
	d.opening.Lock()
	defer d.opening.Unlock()
	if root := c.take(d); root != nil {
		return root, nil
	}
	parent, err := c.Use(d.parent)
	if err != nil {
		return nil, err
	}
	defer c.Release(d.parent)
	root, _, err := safefile.OpenDir(parent, d.name)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	d.root, d.users = root, 1
	c.open.Add(1)
	closing := c.evict()
	c.mu.Unlock()
	closeAll(closing)
	return root, nil
}

// Handle returns the descriptor of a directory that is in use. It is valid until Release, that of a
// Dir of Top until Close.
func (c *Cache) Handle(d *Dir) (*Handle, error) {
	if h := c.handleOf(d); h != nil {
		return h, nil
	}
	d.opening.Lock()
	defer d.opening.Unlock()
	if h := c.handleOf(d); h != nil {
		return h, nil
	}
	f, err := d.root.Open(".")
	if err != nil {
		return nil, err
	}
	h := &Handle{FD: int(f.Fd()), file: f}
	var st unix.Stat_t
	if err := unix.Fstat(h.FD, &st); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	h.Dev = uint64(st.Dev)
	c.mu.Lock()
	defer c.mu.Unlock()
	d.handle = h
	if d.fixed {
		c.tops = append(c.tops, d)
	}
	return h, nil
}

func (c *Cache) handleOf(d *Dir) *Handle {
	c.mu.Lock()
	defer c.mu.Unlock()
	return d.handle
}

// take returns the root of a directory that is open.
func (c *Cache) take(d *Dir) *os.Root {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d.root == nil {
		return nil
	}
	d.users++
	if d.place != nil {
		c.idle.Remove(d.place)
		d.place = nil
	}
	return d.root
}

// Release ends a use.
func (c *Cache) Release(d *Dir) {
	if d.fixed {
		return
	}
	c.mu.Lock()
	if d.users--; d.users == 0 {
		d.place = c.idle.PushBack(d)
	}
	closing := c.evict()
	c.mu.Unlock()
	closeAll(closing)
}

// Forget closes a directory that has no users and will not be used again.
func (c *Cache) Forget(d *Dir) {
	c.mu.Lock()
	var closing []io.Closer
	if d.place != nil {
		closing = c.remove(d, closing)
	}
	c.mu.Unlock()
	closeAll(closing)
}

// Close closes all directories that have no users.
func (c *Cache) Close() {
	c.mu.Lock()
	c.max = 0
	closing := c.evict()
	for _, d := range c.tops {
		closing = append(closing, d.handle.file)
		d.handle = nil
	}
	c.tops = nil
	c.mu.Unlock()
	closeAll(closing)
}

// evict removes the directories that are too many. The caller holds mu, and closes the result
// without it.
func (c *Cache) evict() (closing []io.Closer) {
	for c.open.Load() > c.max && c.idle.Len() > 0 {
		closing = c.remove(c.idle.Front().Value.(*Dir), closing)
	}
	return closing
}

// remove removes a directory without users, and adds what must be closed to a list.
func (c *Cache) remove(d *Dir, closing []io.Closer) []io.Closer {
	closing = append(closing, d.root)
	if d.handle != nil {
		closing = append(closing, d.handle.file)
	}
	c.idle.Remove(d.place)
	d.place, d.root, d.handle = nil, nil, nil
	c.open.Add(-1)
	return closing
}

func closeAll(list []io.Closer) {
	for _, f := range list {
		_ = f.Close()
	}
}
