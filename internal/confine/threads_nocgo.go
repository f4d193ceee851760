//go:build !cgo

package confine

// threadsDir is empty because the Go runtime knows all threads of a process without cgo.
const threadsDir = ""
