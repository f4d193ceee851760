package supervisor

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/seccomp"
)

// handle answers an intercepted call.
func (s *Supervisor) handle(c *seccomp.Call) {
	s.active.RLock()
	defer s.active.RUnlock()
	switch c.Nr {
	case unix.SYS_IOCTL:
		s.ioctl(c)
	case unix.SYS_WRITE:
		s.write(c)
	case unix.SYS_SOCKET:
		s.socket(c)
	case unix.SYS_SENDTO, unix.SYS_SENDMSG:
		s.sendmsg(c)
	case unix.SYS_EXECVE, unix.SYS_EXECVEAT:
		s.execute(c)
	default:
		s.file(c)
	}
}

// An answer can fail only because the thread has died. Then there is nothing to do.

func resume(c *seccomp.Call) { _ = c.Continue() }

func result(c *seccomp.Call, v int64, e unix.Errno) {
	if e != 0 {
		_ = c.Fail(e)
		return
	}
	_ = c.Return(v)
}

// failWith answers with the error number in err.
func failWith(c *seccomp.Call, err error) {
	e := unix.EIO
	errors.As(err, &e)
	_ = c.Fail(e)
}
