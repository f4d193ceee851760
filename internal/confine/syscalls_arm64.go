package confine

import "golang.org/x/sys/unix"

const (
	auditArch = unix.AUDIT_ARCH_AARCH64
	statAt    = unix.SYS_FSTATAT
)

// archCalls lists system calls that only arm64 has.
var archCalls = []int{unix.SYS_ACCEPT, unix.SYS_GETRLIMIT}

var archRules []rule
