package seccomp

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// notification is struct seccomp_notif.
type notification struct {
	id    uint64
	pid   uint32
	flags uint32
	nr    int32
	arch  uint32
	ip    uint64
	args  [6]uint64
}

// response is struct seccomp_notif_resp. err is a negative error number.
type response struct {
	id    uint64
	val   int64
	err   int32
	flags uint32
}

// addFD is struct seccomp_notif_addfd.
type addFD struct {
	id      uint64
	flags   uint32
	src     uint32
	dst     uint32
	fdFlags uint32
}

// Load installs a filter on the calling thread. With SECCOMP_FILTER_FLAG_NEW_LISTENER it returns
// the listener. With SECCOMP_FILTER_FLAG_TSYNC it installs the filter on all threads; if one of
// them has another filter, it returns its ID.
func Load(prog []bpf.RawInstruction, flags uint) (int, error) {
	f := make([]unix.SockFilter, len(prog))
	for i, in := range prog {
		f[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	p := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	n, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, uintptr(flags),
		uintptr(unsafe.Pointer(&p)))
	runtime.KeepAlive(f)
	return int(n), errOf(e)
}

func receive(fd int, n *notification) error {
	_, err := ioctl(fd, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(n))
	return err
}

func send(fd int, r *response) error {
	return quickIoctl(fd, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(r))
}

func installFD(fd int, a *addFD) (int, error) {
	return ioctl(fd, unix.SECCOMP_IOCTL_NOTIF_ADDFD, unsafe.Pointer(a))
}

func idValid(fd int, id uint64) error {
	return quickIoctl(fd, unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&id))
}

// signalMask returns the signals that a stopped thread, which this thread traces, blocks.
func signalMask(tid int) (mask uint64, err error) {
	err = ptraceMask(unix.PTRACE_GETSIGMASK, tid, &mask)
	return mask, err
}

// setSignalMask sets the signals that such a thread blocks.
func setSignalMask(tid int, mask uint64) error {
	return ptraceMask(unix.PTRACE_SETSIGMASK, tid, &mask)
}

func ptraceMask(request, tid int, mask *uint64) error {
	_, _, e := unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(tid), unsafe.Sizeof(*mask),
		uintptr(unsafe.Pointer(mask)), 0, 0)
	return errOf(e)
}

func setNotifyFlags(fd int, flags uint64) error {
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_SET_FLAGS,
		uintptr(flags))
	return errOf(e)
}

func ioctl(fd int, cmd uint, p unsafe.Pointer) (int, error) {
	n, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(cmd), uintptr(p))
	return int(n), errOf(e)
}

// quickIoctl is ioctl for commands that do not wait. It bypasses Go's scheduler.
func quickIoctl(fd int, cmd uint, p unsafe.Pointer) error {
	_, _, e := unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), uintptr(cmd), uintptr(p))
	return errOf(e)
}

func errOf(e syscall.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}
