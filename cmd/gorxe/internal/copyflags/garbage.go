package copyflags

import (
	"os"
	"runtime/debug"
)

// maxGarbage is the garbage for which the Go runtime waits, in bytes. Each page of the heap costs a
// page fault when it is first used, which takes longer than collecting the garbage of a page.
const maxGarbage = 8 << 20

// smallHeap is about the size of the heap without pools, in bytes.
const smallHeap = 4 << 20

// LimitGarbage sets how much garbage the process collects at a time. By default that is as much as
// the memory in use, of which nearly all are pools, which are no garbage before the end. It must be
// called when the first connection exists. The environment variable GOGC takes precedence.
func (f *Flags) LimitGarbage() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent(f.Pool.Bytes))
	}
}

// garbagePercent returns maxGarbage in percent of the heap with a pool.
func garbagePercent(pool int64) int {
	return int(max(1, min(100*maxGarbage/(pool+smallHeap), 100)))
}
