package seccomp

import "golang.org/x/sys/unix"

// AuditArch is the architecture in struct seccomp_data.
const AuditArch = unix.AUDIT_ARCH_X86_64

// PathCalls returns the system calls that open files or read their attributes.
func PathCalls() []int {
	return append([]int{unix.SYS_OPEN, unix.SYS_STAT, unix.SYS_LSTAT, unix.SYS_ACCESS,
		unix.SYS_READLINK}, commonPathCalls()...)
}

// oldFileCall decodes the calls without a directory descriptor.
func (c *Call) oldFileCall() (f FileCall, ok bool) {
	f = FileCall{Dir: unix.AT_FDCWD, Path: c.Args[0], Out: c.Args[1]}
	switch c.Nr {
	case unix.SYS_OPEN:
		f.Op, f.Flags = Open, c.Args[1]
	case unix.SYS_STAT:
		f.Op = Stat
	case unix.SYS_LSTAT:
		f.Op, f.Flags = Stat, unix.AT_SYMLINK_NOFOLLOW
	case unix.SYS_ACCESS:
		f.Op, f.Mode = Access, uint32(c.Args[1])
	case unix.SYS_READLINK:
		f.Op, f.Size = Readlink, c.Args[2]
	default:
		return FileCall{}, false
	}
	return f, true
}
