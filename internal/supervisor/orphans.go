package supervisor

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// signalDescendants sends a signal to all processes that descend from this one.
func signalDescendants(sig syscall.Signal) {
	children := childrenOf()
	for list := children[os.Getpid()]; len(list) > 0; {
		pid := list[0]
		list = append(list[1:], children[pid]...)
		_ = unix.Kill(pid, sig)
	}
}

// childrenOf returns the children of each process.
func childrenOf() map[int][]int {
	children := map[int][]int{}
	names, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // the process has ended
		}
		// The name, in parentheses, can contain spaces and parentheses.
		var pid, parent int
		var state string
		_, err = fmt.Sscan(string(b[bytes.LastIndexByte(b, ')')+1:]), &state, &parent)
		if _, e := fmt.Sscanf(name, "/proc/%d/stat", &pid); err == nil && e == nil {
			children[parent] = append(children[parent], pid)
		}
	}
	return children
}
