package roce

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// budget bounds the memory of queues and of AllocMR. Without it a program that asks for more than the machine has would be
// killed, by Go's runtime or by the kernel, long after the call that was too much. Under Device.ctl.
type budget struct{ used, limit uint64 }

// defaultShare is how much of the machine's memory a device takes by default, at most: 3/4.
const defaultShare = 4

func newBudget(limit uint64) budget {
	if limit == 0 {
		limit = 1<<63 - 1
		var info unix.Sysinfo_t
		if unix.Sysinfo(&info) == nil {
			limit = min(uint64(info.Totalram)*uint64(info.Unit), groupLimit("/sys/fs/cgroup/memory.max"), groupLimit("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
			limit -= limit / defaultShare
		}
	}
	return budget{limit: limit}
}

// groupLimit is the memory that this process's control group may use, by the file that says so (cgroup v2 or v1, as a container sees
// them): a container has as much as its group, not as its machine.
func groupLimit(file string) uint64 {
	text, err := os.ReadFile(file)
	if n, bad := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 63); err == nil && bad == nil && n > 0 {
		return n
	}
	return 1<<63 - 1
}

// take sets n bytes aside for what, or refuses.
func (b *budget) take(n int, what string) error {
	if uint64(n) > b.limit-b.used {
		return fmt.Errorf("%w: the limit is %d bytes, %d are in use, and %s needs %d", ErrNoMemory, b.limit, b.used, what, n)
	}
	b.used += uint64(n)
	return nil
}

func (b *budget) give(n int) { b.used -= uint64(n) }
