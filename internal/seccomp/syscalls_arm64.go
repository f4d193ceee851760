package seccomp

import "golang.org/x/sys/unix"

// AuditArch is the architecture in struct seccomp_data.
const AuditArch = unix.AUDIT_ARCH_AARCH64

// PathCalls returns the system calls that open files or read their attributes.
func PathCalls() []int { return commonPathCalls() }

// oldFileCall decodes the calls without a directory descriptor, which this architecture does not
// have.
func (c *Call) oldFileCall() (FileCall, bool) { return FileCall{}, false }
