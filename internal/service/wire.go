package service

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// wire sends and receives messages. send is safe for concurrent use.
type wire struct {
	c *net.UnixConn

	mu  sync.Mutex // of senders
	buf []byte     // of the receiver
	oob []byte
}

func newWire(c *net.UnixConn) *wire {
	return &wire{c: c, buf: make([]byte, MaxMessage+1), oob: make([]byte, oobLen)}
}

// oobLen is the length of the control messages that receive takes. The kernel closes descriptors
// that do not fit.
var oobLen = unix.CmsgSpace(4 * maxFDs)

// maxFDs is the number of descriptors of a message that receive looks at. It closes all but one.
const maxFDs = 4

// errTooLong means that a message is longer than MaxMessage.
var errTooLong = fmt.Errorf("message is longer than %d bytes", MaxMessage)

// send sends a message and, unless fd is negative, a descriptor, which stays open. It fails if the
// receiver does not read for a second.
func (w *wire) send(m *message, fd int) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(b) > MaxMessage {
		return errTooLong
	}
	var oob []byte
	if fd >= 0 {
		oob = unix.UnixRights(fd)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.c.SetWriteDeadline(time.Now().Add(writePatience)); err != nil {
		return err
	}
	_, _, err = w.c.WriteMsgUnix(b, oob, nil)
	return err
}

// receive receives a message, and a descriptor or -1. The descriptor belongs to the caller.
func (w *wire) receive(m *message) (fd int, err error) {
	fd = -1
	n, oobn, flags, _, err := w.c.ReadMsgUnix(w.buf, w.oob)
	if oobn > 0 {
		fd = takeFD(w.oob[:oobn])
	}
	switch {
	case err != nil:
	case n == 0:
		err = io.EOF
	case n > MaxMessage || flags&unix.MSG_TRUNC != 0:
		err = errTooLong
	default:
		*m = message{}
		if e := json.Unmarshal(w.buf[:n], m); e != nil {
			err = fmt.Errorf("not a message of a node service: %w", e)
		}
	}
	if err != nil && fd >= 0 {
		_ = unix.Close(fd)
		fd = -1
	}
	return fd, err
}

// takeFD returns the first descriptor of control messages, or -1, and closes the others.
func takeFD(oob []byte) int {
	fd := -1
	list, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fd
	}
	for i := range list {
		fds, err := unix.ParseUnixRights(&list[i])
		if err != nil {
			continue
		}
		for _, f := range fds {
			if fd < 0 {
				unix.CloseOnExec(f)
				fd = f
				continue
			}
			_ = unix.Close(f)
		}
	}
	return fd
}

// peerOf returns the user and the process at the remote side.
func peerOf(c *net.UnixConn) (cred unix.Ucred, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return cred, err
	}
	var p *unix.Ucred
	if e := raw.Control(func(fd uintptr) {
		p, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); e != nil {
		return cred, e
	}
	if err != nil {
		return cred, err
	}
	return *p, nil
}

// sealed are the seals of a memory file: its size and content cannot change.
const sealed = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE

// memFile returns a sealed memory file with a content. The caller closes it.
func memFile(content []byte) (fd int, err error) {
	fd, err = unix.MemfdCreate("gorxe", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, fmt.Errorf("create a memory file: %w", err)
	}
	for rest := content; len(rest) > 0; {
		n, e := unix.Write(fd, rest)
		if e != nil {
			_ = unix.Close(fd)
			return -1, fmt.Errorf("write a memory file: %w", e)
		}
		rest = rest[n:]
	}
	if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sealed); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("seal a memory file: %w", err)
	}
	return fd, nil
}

// errNoMemFile means that a descriptor is not that of a sealed memory file of the stated size.
var errNoMemFile = errors.New("not a sealed memory file of the stated size")

// readMemFile reads a memory file of at most limit bytes and closes it. A descriptor of another
// kind could block the reader, or change its content.
func readMemFile(fd, size, limit int) ([]byte, error) {
	if fd < 0 {
		return nil, errNoMemFile
	}
	f := os.NewFile(uintptr(fd), "memory file")
	defer f.Close()
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&sealed != sealed || size < 0 || size > limit {
		return nil, errNoMemFile
	}
	b := make([]byte, size)
	for at := 0; at < size; {
		n, err := unix.Pread(fd, b[at:], int64(at))
		if err != nil || n == 0 {
			return nil, errNoMemFile
		}
		at += n
	}
	return b, nil
}
