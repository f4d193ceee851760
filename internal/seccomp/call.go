package seccomp

import (
	"bytes"
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Call is an intercepted system call. Its thread waits until one of Return, Fail and Continue is
// called, once, by any goroutine.
type Call struct {
	Nr   int
	Args [6]uint64

	id  uint64
	tid int
	l   *Listener
}

// PID returns the ID of the calling thread in the PID namespace of the supervisor. All calls that
// take a process ID accept it.
func (c *Call) PID() int { return c.tid }

// Return ends the call with a result. The error is ENOENT if the thread has died.
func (c *Call) Return(val int64) error { return c.answer(response{id: c.id, val: val}) }

// Fail ends the call with an error.
func (c *Call) Fail(e syscall.Errno) error {
	return c.answer(response{id: c.id, err: -int32(e)})
}

// Continue lets the kernel execute the call.
func (c *Call) Continue() error {
	return c.answer(response{id: c.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE})
}

func (c *Call) answer(r response) error {
	for {
		if err := send(c.l.fd, &r); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Valid reports whether the thread still waits for the answer. Data that was read from /proc/PID
// belongs to the thread only if the call is valid afterwards.
func (c *Call) Valid() bool { return idValid(c.l.fd, c.id) == nil }

// Install installs a copy of the descriptor fd in the calling process under the lowest free number
// and returns the number.
func (c *Call) Install(fd int, cloexec bool) (int, error) {
	return c.install(addFD{id: c.id, src: uint32(fd)}, cloexec)
}

// InstallAt is Install with a given number. It replaces a descriptor with this number.
func (c *Call) InstallAt(fd, number int, cloexec bool) (int, error) {
	return c.install(addFD{id: c.id, src: uint32(fd), flags: unix.SECCOMP_ADDFD_FLAG_SETFD,
		dst: uint32(number)}, cloexec)
}

func (c *Call) install(a addFD, cloexec bool) (int, error) {
	if cloexec {
		a.fdFlags = unix.O_CLOEXEC
	}
	for {
		// The answer is a separate step. SECCOMP_ADDFD_FLAG_SEND can lose the descriptor if a
		// signal interrupts the supervisor.
		n, err := installFD(c.l.fd, &a)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EINPROGRESS):
			continue
		case err != nil:
			return -1, err
		}
		return n, nil
	}
}

// ReadAt fills p from the memory of the calling process.
func (c *Call) ReadAt(p []byte, addr uint64) error {
	return c.copy(unix.ProcessVMReadv, p, addr)
}

// WriteAt copies p to the memory of the calling process. If the thread has died, the error is
// ESRCH: another process may have its ID.
func (c *Call) WriteAt(p []byte, addr uint64) error {
	if !c.Valid() {
		return unix.ESRCH
	}
	return c.copy(unix.ProcessVMWritev, p, addr)
}

// WriteBoth copies p and q to the memory of the calling process, as WriteAt does, usually with one
// system call.
func (c *Call) WriteBoth(p []byte, addr uint64, q []byte, addr2 uint64) error {
	if len(p) == 0 || len(q) == 0 {
		return errors.Join(c.WriteAt(p, addr), c.WriteAt(q, addr2))
	}
	if !c.Valid() {
		return unix.ESRCH
	}
	local := [2]unix.Iovec{{Base: &p[0]}, {Base: &q[0]}}
	local[0].SetLen(len(p))
	local[1].SetLen(len(q))
	remote := [2]unix.RemoteIovec{{Base: uintptr(addr), Len: len(p)},
		{Base: uintptr(addr2), Len: len(q)}}
	n, err := unix.ProcessVMWritev(c.tid, local[:], remote[:], 0)
	if err != nil {
		return err
	}
	if n < len(p) { // the kernel stops at the end of a page that can be written
		if err := c.copy(unix.ProcessVMWritev, p[n:], addr+uint64(n)); err != nil {
			return err
		}
		n = len(p)
	}
	return c.copy(unix.ProcessVMWritev, q[n-len(p):], addr2+uint64(n-len(p)))
}

// processVM is unix.ProcessVMReadv or unix.ProcessVMWritev.
type processVM func(pid int, local []unix.Iovec, remote []unix.RemoteIovec, flags uint) (int, error)

// copy copies p from or to the memory of the calling process.
func (c *Call) copy(access processVM, p []byte, addr uint64) error {
	for len(p) > 0 {
		local := []unix.Iovec{{Base: &p[0]}}
		local[0].SetLen(len(p))
		n, err := access(c.tid, local, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(p)}}, 0)
		if err != nil {
			return err
		}
		if n == 0 {
			return unix.EFAULT
		}
		p, addr = p[n:], addr+uint64(n)
	}
	return nil
}

// maxPath is the size of the longest path, with its final zero byte.
const maxPath = unix.PathMax

// errLongPath means that a string has no zero byte within maxPath bytes.
var errLongPath = os.NewSyscallError("read a path", unix.ENAMETOOLONG)

// Path reads a zero-terminated path.
func (c *Call) Path(addr uint64) (string, error) {
	const chunk = 256 // divides the page size, so that a chunk is never partly mapped
	var buf []byte
	for len(buf) < maxPath {
		n := int(chunk - addr%chunk)
		at := len(buf)
		buf = append(buf, make([]byte, n)...)
		if err := c.ReadAt(buf[at:], addr); err != nil {
			return "", err
		}
		if i := bytes.IndexByte(buf[at:], 0); i >= 0 {
			return string(buf[:at+i]), nil
		}
		addr += uint64(n)
	}
	return "", errLongPath
}
