package confine

import "golang.org/x/sys/unix"

const (
	statAt = unix.SYS_FSTATAT
)

// archCalls lists system calls that only arm64 has.
var archCalls = []int{unix.SYS_ACCEPT, unix.SYS_GETRLIMIT}

var archRules []rule
