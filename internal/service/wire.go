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

// newWire returns a wire that takes no descriptors. The close of a file of a FUSE file system takes
// as long as its owner likes, and even SIGKILL does not end it. A descriptor that this process does
// not take is discarded without such a close.
func newWire(c *net.UnixConn) *wire { return &wire{c: c, buf: make([]byte, MaxMessage+1)} }

// newMemberWire returns a wire that takes descriptors.
func newMemberWire(c *net.UnixConn) *wire {
	w := newWire(c)
	w.oob = make([]byte, oobLen)
	return w
}

// oobLen is the length of the control messages that receive takes. The kernel discards descriptors
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

// parts are the content of a report or of a status, which is sent in several messages. A memory
// file would use memory for as long as the receiver likes, and the service takes no descriptors.
type parts struct{ b []byte }

// partLen is the length of the parts, bytes. In a message they are a third longer.
const partLen = 32 << 10

// partsTime is how long a receiver may take to read all parts.
const partsTime = 5 * time.Second

// errSlow means that the receiver does not read the parts.
var errSlow = errors.New("it reads too slowly")

// sendParts sends a content in messages like m.
func (w *wire) sendParts(m message, b []byte) error {
	m.Size = len(b)
	for end := time.Now().Add(partsTime); time.Now().Before(end); {
		part := min(len(b), partLen)
		m.Frame = b[:part]
		switch err := w.send(&m, -1); {
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue
		case err != nil || part == len(b):
			return err
		}
		b = b[part:]
	}
	return errSlow
}

// add takes a part. It returns true with the last one.
func (p *parts) add(m *message, limit int) (done bool, err error) {
	if m.Size > limit || len(p.b)+len(m.Frame) > m.Size {
		return false, errProtocol
	}
	p.b = append(p.b, m.Frame...)
	if len(p.b) < m.Size && len(m.Frame) == 0 {
		return false, errProtocol
	}
	return len(p.b) == m.Size, nil
}
