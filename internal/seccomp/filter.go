package seccomp

import (
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data, in bytes. Both architectures are little-endian: the lower half of
// an argument comes first.
const (
	OffsetNr   = 0
	OffsetArch = 4
	OffsetArgs = 16
	ArgSize    = 8
	WordSize   = 4
)

const (
	allow  = unix.SECCOMP_RET_ALLOW
	notify = unix.SECCOMP_RET_USER_NOTIF
)

// Policy selects the system calls that are intercepted.
type Policy struct {
	Calls   []int // always intercepted
	FDCalls []int // intercepted if the first argument is a descriptor in FDs
	FDs     FDRange
	Ioctl   uint32   // command of ioctl that is intercepted, for all descriptors
	Sockets []Socket // sockets whose creation is intercepted
}

// FDRange is the range of descriptor numbers First <= fd < First+Count.
type FDRange struct{ First, Count int }

// Contains reports whether fd is in the range.
func (r FDRange) Contains(fd int) bool { return fd >= r.First && fd < r.First+r.Count }

// Socket is the address family and the protocol of a socket.
type Socket struct{ Family, Protocol uint32 }

// Program returns the filter program.
func (p *Policy) Program() []bpf.Instruction {
	load := func(off uint32) bpf.Instruction { return bpf.LoadAbsolute{Off: off, Size: WordSize} }
	arg := func(i uint32) bpf.Instruction { return load(OffsetArgs + i*ArgSize) }
	ret := func(v uint32) bpf.Instruction { return bpf.RetConstant{Val: v} }
	prog := []bpf.Instruction{
		load(OffsetArch),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: AuditArch, SkipTrue: 1},
		ret(allow),
		load(OffsetNr),
	}
	on := func(nr int, body ...bpf.Instruction) {
		prog = append(prog, bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(nr),
			SkipFalse: uint8(len(body))})
		prog = append(prog, body...)
	}
	if p.FDs.Count > 0 {
		for _, nr := range p.FDCalls {
			on(nr, arg(0),
				bpf.JumpIf{Cond: bpf.JumpLessThan, Val: uint32(p.FDs.First), SkipTrue: 2},
				bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: uint32(p.FDs.First + p.FDs.Count),
					SkipTrue: 1},
				ret(notify),
				ret(allow))
		}
	}
	if p.Ioctl != 0 {
		on(unix.SYS_IOCTL, arg(1),
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: p.Ioctl, SkipFalse: 1},
			ret(notify),
			ret(allow))
	}
	for _, s := range p.Sockets {
		on(unix.SYS_SOCKET, arg(0),
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: s.Family, SkipFalse: 3},
			arg(2),
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: s.Protocol, SkipFalse: 1},
			ret(notify),
			load(OffsetNr))
	}
	for _, nr := range p.Calls {
		on(nr, ret(notify))
	}
	return append(prog, ret(allow))
}

// installFlags create the listener, let only fatal signals interrupt calls that the supervisor has
// received, and keep kernels before 5.16 from turning off speculative execution.
const installFlags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER |
	unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV | unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW

// Install installs the filter on the calling OS thread and returns the listener, a descriptor that
// is closed by execve. It sets no_new_privs. The thread must be locked to its goroutine. It must
// not make an intercepted call before the supervisor serves the listener. The error is EBUSY if a
// process above has a listener already, EINVAL, ENOSYS, EPERM or EACCES if the kernel is too old or
// a container forbids seccomp.
func (p *Policy) Install() (fd int, err error) {
	raw, err := bpf.Assemble(p.Program())
	if err != nil {
		return -1, fmt.Errorf("seccomp: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, fmt.Errorf("seccomp: set no_new_privs: %w", err)
	}
	fd, err = Load(raw, installFlags)
	if err != nil {
		return -1, fmt.Errorf("seccomp: install the filter: %w", err)
	}
	return fd, nil
}

// commonPathCalls are the calls of PathCalls that all architectures have.
func commonPathCalls() []int {
	return []int{unix.SYS_OPENAT, unix.SYS_OPENAT2, unix.SYS_NEWFSTATAT, unix.SYS_FSTAT, unix.SYS_STATX,
		unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2, unix.SYS_READLINKAT, unix.SYS_GETXATTR,
		unix.SYS_LGETXATTR, unix.SYS_LISTXATTR, unix.SYS_LLISTXATTR, unix.SYS_CHDIR}
}
