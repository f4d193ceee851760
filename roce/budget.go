package roce

import (
	"fmt"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// budget limits the memory of QPs, regions, queues and AllocMR. Without it, a program that exceeds
// the machine's memory would be killed long after the call that was too much. It is safe for
// concurrent use.
type budget struct {
	used  *atomic.Uint64
	limit uint64
}

// Upper bounds of the bytes of a QP and of a region, without rings and memory. TestFootprint checks
// them.
const (
	qpBytes = 1024
	mrBytes = 256
)

// defaultShare is the part of the memory that is left to others by default: 1/4.
const defaultShare = 4

// common is the memory in use by all devices that do not set Expert.MaxMemory.
var common atomic.Uint64

var commonLimit = sync.OnceValue(func() uint64 {
	limit := available()
	return limit - limit/defaultShare
})

func newBudget(limit uint64) budget {
	if limit == 0 {
		return budget{used: &common, limit: commonLimit()}
	}
	return budget{used: new(atomic.Uint64), limit: limit}
}

// take reserves n bytes for what, or returns ErrNoMemory.
func (b *budget) take(n int, what string) error {
	for {
		used := b.used.Load()
		if uint64(n) > b.limit-min(used, b.limit) {
			return fmt.Errorf("%w: the limit is %d bytes, %d are in use, and %s needs %d",
				ErrNoMemory, b.limit, used, what, n)
		}
		if b.used.CompareAndSwap(used, used+uint64(n)) {
			return nil
		}
	}
}

func (b *budget) give(n int) { b.used.Add(-uint64(n)) }

// noLimit is more memory than any machine has.
const noLimit = math.MaxInt64

// available returns the memory that this process may use: that of the machine or of its control
// group. ulimit -v does not count, because Go reserves addresses that it never uses.
func available() uint64 {
	limit := uint64(noLimit)
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		limit = uint64(info.Totalram) * uint64(info.Unit)
	}
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
