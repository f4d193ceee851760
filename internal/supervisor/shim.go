package supervisor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/seccomp"
)

// shimName is the name (argument 0) of the shim process.
const shimName = "gorxe-run-shim"

// Steps of the shim that can fail.
const (
	stepFilter = iota
	stepExec
)

// messageSize is the size of the supervisor's message: the limit on open files, and the signals
// that the program blocks.
const messageSize = 4 + 8

// Shim is called first by the main function. It returns at once, unless the process is a shim: then
// it installs the filter, passes the listener to the supervisor, executes the program, and does not
// return.
func Shim() {
	if len(os.Args) < 3 || os.Args[0] != shimName {
		return
	}
	runtime.LockOSThread()
	socket, err := strconv.Atoi(os.Args[1]) // connection to the supervisor
	if err != nil {
		os.Exit(statusFailure)
	}
	unix.CloseOnExec(socket)
	var b [messageSize]byte
	if n, err := unix.Read(socket, b[:]); n != len(b) || err != nil {
		os.Exit(statusFailure)
	}
	mask := unix.Sigset_t{Val: [16]uint64{binary.NativeEndian.Uint64(b[4:])}}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &mask, nil); err != nil {
		os.Exit(statusFailure)
	}
	p := policy(int(binary.NativeEndian.Uint32(b[:])))
	fd, err := p.Install()
	if err != nil {
		shimFailed(socket, stepFilter, err)
	}
	if err := unix.Sendmsg(socket, []byte{0}, unix.UnixRights(fd), nil, 0); err != nil {
		os.Exit(statusFailure)
	}
	_ = unix.Close(fd)
	shimFailed(socket, stepExec, syscall.Exec(os.Args[2], os.Args[3:], os.Environ()))
}

// statusFailure is the exit status of a shim that could not execute the program.
const statusFailure = 1

// shimFailed reports an error to the supervisor and ends the process.
func shimFailed(socket int, step byte, err error) {
	var e syscall.Errno
	errors.As(err, &e)
	_, _ = unix.Write(socket, binary.NativeEndian.AppendUint32([]byte{step}, uint32(e)))
	os.Exit(statusFailure)
}

// start starts the shim and waits until it has executed the program.
func (s *Supervisor) start(ctx context.Context) (*child, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	here := os.NewFile(uintptr(pair[0]), "shim")
	there := os.NewFile(uintptr(pair[1]), "supervisor")
	defer here.Close()
	c, err := startChild(ctx, "/proc/self/exe", append([]string{shimName, strconv.Itoa(pair[1]),
		s.c.Path}, s.c.Args...), s.c.Env, there)
	_ = there.Close()
	if err != nil {
		return nil, err
	}
	// A signal of the terminal that came before the process existed would be lost.
	if sig := c.ended(); sig != 0 {
		return nil, c.abandon(signaled(128 + int(sig)))
	} else if ctx.Err() != nil {
		return nil, c.abandon(context.Cause(ctx))
	}
	if c.limit < minLimit {
		c.close()
		return nil, limitError(c.limit)
	}
	s.policy = policy(c.limit)
	b := binary.NativeEndian.AppendUint32(nil, uint32(c.limit))
	b = binary.NativeEndian.AppendUint64(b, c.mask.Val[0])
	if _, err := unix.Write(pair[0], b); err != nil {
		return nil, c.abandon(os.NewSyscallError("write", err))
	}
	listener, err := receiveListener(pair[0])
	if err != nil {
		return nil, c.abandon(err)
	}
	s.l = seccomp.NewListener(listener)
	s.startServer() // the shim's execve is intercepted
	// The socket ends when the program is executed. If that fails, a message comes first.
	if err := readFailure(pair[0], s.c.Path); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// receiveListener receives the listener of the filter.
func receiveListener(fd int) (int, error) {
	var b [8]byte
	oob := make([]byte, unix.CmsgSpace(4))
	var n, oobn int
	var err error
	for {
		n, oobn, _, _, err = unix.Recvmsg(fd, b[:], oob, unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	switch {
	case err != nil:
		return -1, os.NewSyscallError("recvmsg", err)
	case n == 0:
		return -1, errShimDied
	case oobn == 0:
		return -1, shimError(b[:n], "")
	}
	list, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(list) != 1 {
		return -1, errShimDied
	}
	fds, err := unix.ParseUnixRights(&list[0])
	if err != nil || len(fds) != 1 {
		return -1, errShimDied
	}
	return fds[0], nil
}

// errShimDied means that the shim ended without a message.
var errShimDied = errors.New("the process for the program ended early")

// readFailure waits until the program is executed, and returns the error if it is not.
func readFailure(fd int, path string) error {
	var b [8]byte
	for {
		n, err := unix.Read(fd, b[:])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return os.NewSyscallError("read", err)
		case n == 0:
			return nil
		default:
			return shimError(b[:n], path)
		}
	}
}

// shimError decodes a message of the shim.
func shimError(b []byte, path string) error {
	if len(b) != 5 {
		return fmt.Errorf("message of the shim: %w", io.ErrUnexpectedEOF)
	}
	e := syscall.Errno(binary.NativeEndian.Uint32(b[1:]))
	if b[0] == stepExec {
		return &os.PathError{Op: "execute", Path: path, Err: e}
	}
	return filterError(e)
}
