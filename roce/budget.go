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

// budget bounds the memory of QPs, regions, queues and AllocMR. Without it a program that asks for more than the machine has would be
// killed, by Go's runtime or by the kernel, long after the call that was too much. Any goroutine.
type budget struct {
	used  *atomic.Uint64
	limit uint64
}

// What a QP and a region take at most beside their rings and memory; TestFootprint holds them to it.
const (
	qpBytes = 1024
	mrBytes = 256
)

// defaultShare is how much of the machine's memory the devices of a process take by default, at most: 3/4.
const defaultShare = 4

// common is what all devices take together whose programs set no limit: the machine is one for all.
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

// take sets n bytes aside for what, or refuses.
func (b *budget) take(n int, what string) error {
	for {
		used := b.used.Load()
		if uint64(n) > b.limit-min(used, b.limit) {
			return fmt.Errorf("%w: the limit is %d bytes, %d are in use, and %s needs %d", ErrNoMemory, b.limit, used, what, n)
		}
		if b.used.CompareAndSwap(used, used+uint64(n)) {
			return nil
		}
	}
}

func (b *budget) give(n int) { b.used.Add(-uint64(n)) }

// noLimit is more than any machine has.
const noLimit = math.MaxInt64

// available is the memory that this process may use: the machine's, or its control group's. ulimit -v is no measure of that: Go
// reserves addresses that it never uses.
func available() uint64 {
	limit := uint64(noLimit)
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		limit = uint64(info.Totalram) * uint64(info.Unit)
	}
	groups, _ := os.ReadFile("/proc/self/cgroup") // without it the mounts' own files are left
	for _, file := range groupFiles(string(groups)) {
		limit = min(limit, groupLimit(file))
	}
	return limit
}

// groupFiles are the files that may limit the memory of the groups named in /proc/self/cgroup, from the process's own up to the root as
// it is mounted here: what counts is the least. In a container the mounted root is the container's group; elsewhere the root has no limit,
// and a service's group lies below it.
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

// groupLimit is the number in a control group's file; where there is no limit the file says "max", or a number beyond any machine.
func groupLimit(file string) uint64 {
	text, err := os.ReadFile(file)
	if n, bad := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 63); err == nil && bad == nil && n > 0 {
		return n
	}
	return noLimit
}
