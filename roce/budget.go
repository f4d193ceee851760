package roce

import (
	"fmt"
	"math"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// budget limits the memory of QPs, regions, queues and AllocMR. Without it, a program that exceeds
// the machine's memory would be killed long after the call that was too much. It is safe for
// concurrent use.
//
// Memory of a closed object that the program may still refer to counts until the garbage collector
// has freed it.
type budget struct {
	*account
	limit uint64
}

// account is the memory in use, in bytes.
type account struct {
	used    atomic.Uint64
	garbage atomic.Uint64 // part of used: closed objects that are not freed yet
}

// Upper bounds of the bytes of a QP and of a region, without rings and memory. TestFootprint checks
// them. QPs are counted by slabs.
const (
	qpBytes = 1024
	mrBytes = 256
)

// How long take waits for the cleanups of a garbage collection.
const (
	cleanupTries = 100
	cleanupPause = time.Millisecond
)

// defaultShare is the part of the memory that is left to others by default: 1/4.
const defaultShare = 4

// common is the account of all devices that do not set Expert.MaxMemory.
var common account

var commonLimit = sync.OnceValue(func() uint64 {
	limit := available()
	return limit - limit/defaultShare
})

// newBudget returns a budget of limit bytes; 0: that of all devices without a limit of their own.
func newBudget(limit uint64) budget {
	if limit == 0 {
		return budget{account: &common, limit: commonLimit()}
	}
	return budget{account: new(account), limit: limit}
}

// take counts n bytes for what, which are about to be allocated, or returns ErrNoMemory.
func (b *budget) take(n int, what string) error {
	if err := b.count(n, what); err != nil {
		return err
	}
	if err := probe(n); err != nil {
		b.give(n)
		return fmt.Errorf("%w: %s needs %d bytes, which the operating system refuses: %w",
			ErrNoMemory, what, n, err)
	}
	return nil
}

// count is take for memory that exists already. If closed objects are in the way, it runs the
// garbage collector first.
func (b *budget) count(n int, what string) error {
	used, ok := b.reserve(uint64(n))
	if !ok && uint64(n) <= b.limit && b.garbage.Load() > 0 {
		runtime.GC()
		// The cleanups run in goroutines of the runtime after the collection.
		for i := 0; i < cleanupTries && !ok; i++ {
			time.Sleep(cleanupPause)
			used, ok = b.reserve(uint64(n))
		}
	}
	if !ok {
		return fmt.Errorf("%w: the limit is %d bytes, %d are in use, and %s needs %d",
			ErrNoMemory, b.limit, used, what, n)
	}
	return nil
}

// reserve takes n bytes if they are free. It returns how many were in use.
func (b *budget) reserve(n uint64) (used uint64, ok bool) {
	for {
		used = b.used.Load()
		if n > b.limit-min(used, b.limit) {
			return used, false
		}
		if b.used.CompareAndSwap(used, used+n) {
			return used, true
		}
	}
}

// give returns n bytes.
func (a *account) give(n int) { a.used.Add(-uint64(n)) }

// lapse returns n bytes when the garbage collector has freed the object that p points to.
func lapse[T any](a *account, p *T, n int) runtime.Cleanup {
	a.garbage.Add(uint64(n))
	return runtime.AddCleanup(p, a.collected, n)
}

// collected returns n bytes of garbage.
func (a *account) collected(n int) {
	a.garbage.Add(-uint64(n))
	a.give(n)
}

// noLimit is more memory than any machine has.
const noLimit = math.MaxInt64

// available returns the memory that this process may use: that of the machine or of its control
// group. ulimit -v does not count, because Go reserves addresses that it never uses.
func available() uint64 {
	limit := machineMemory()
	groups, _ := os.ReadFile("/proc/self/cgroup") // on error: only the mount points
	for _, file := range groupFiles(string(groups)) {
		limit = min(limit, groupLimit(file))
	}
	return limit
}

// groupFiles returns the files that may limit the memory of the control groups listed in
// /proc/self/cgroup: those of each group and of its ancestors up to the mounted root. The smallest
// limit counts. In a container the mounted root is the container's group.
func groupFiles(groups string) []string {
	files := []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}
	for line := range strings.Lines(groups) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, group, ok := strings.Cut(rest, ":")
		root, name := "/sys/fs/cgroup", "memory.max" // version 2 names no controllers
		switch {
		case !ok:
			continue
		case slices.Contains(strings.Split(controllers, ","), "memory"):
			root, name = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		case controllers != "":
			continue
		}
		for dir := path.Clean("/" + group); dir != "/"; dir = path.Dir(dir) {
			files = append(files, path.Join(root, dir, name))
		}
	}
	return files
}

// groupLimit returns the limit in a control group's file, or noLimit: the file may be missing or
// say "max".
func groupLimit(file string) uint64 {
	text, err := os.ReadFile(file)
	if n, bad := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 63); err == nil &&
		bad == nil && n > 0 {
		return n
	}
	return noLimit
}
