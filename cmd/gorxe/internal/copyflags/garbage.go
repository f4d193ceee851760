package copyflags

import (
	"os"
	"runtime/debug"
)

const (
	// startPercent is the first percentage: no collection before there are 16 MiB.
	startPercent = 400
	// maxGarbage is the garbage for which the Go runtime waits, in bytes. Each page of the heap
	// costs a page fault when it is first used, which takes longer than collecting a page.
	maxGarbage = 8 << 20
	// smallHeap is about the size of the heap without pools, in bytes.
	smallHeap = 4 << 20
)

// DelayGarbage lets the process start without a collection of garbage.
func DelayGarbage() { collectAfter(startPercent) }

// LimitGarbage sets how much garbage the process collects at a time. By default that is as much as
// the memory in use, which is mostly pools. It is called when the process has started.
func (f *Flags) LimitGarbage() { collectAfter(garbagePercent(f.Pool.Bytes)) }

// garbagePercent returns maxGarbage in percent of the heap with a pool.
func garbagePercent(pool int64) int {
	return int(max(1, min(100*maxGarbage/(pool+smallHeap), 100)))
}

// collectAfter sets the percentage of garbage, unless the user did so.
func collectAfter(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}
