//go:build cgo

package confine

// threadsDir is where psx finds the threads of a process with cgo, also while it restricts them.
const threadsDir = "/proc/self/task"
