package confine

import "golang.org/x/sys/unix"

const (
	statAt = unix.SYS_NEWFSTATAT
	setFS  = 0x1002 // ARCH_SET_FS of arch_prctl: thread-local storage
)

// archCalls lists system calls of amd64 that newer architectures do not have.
var archCalls = []int{
	unix.SYS_POLL, unix.SYS_EPOLL_WAIT, unix.SYS_SELECT, unix.SYS_ACCEPT, unix.SYS_GETRLIMIT,
	unix.SYS_STAT, unix.SYS_LSTAT, unix.SYS_READLINK, unix.SYS_ACCESS, unix.SYS_TIME,
}

var archRules = []rule{
	{unix.SYS_ARCH_PRCTL, []check{{mask: anyBit, values: []uint32{setFS}}}},
}
