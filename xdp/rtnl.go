//go:build linux

package xdp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Netlink messages (linux/netlink.h, linux/rtnetlink.h, linux/neighbour.h). Numbers are in host
// byte order, and headers and attributes are aligned to 4 bytes.
const (
	nlHeader    = 16
	nlAttr      = 4
	ndmsgLen    = 12
	rtmsgLen    = 12
	ndState     = 8 // offset in struct ndmsg
	rtDstLen    = 1 // offsets in struct rtmsg
	rtType      = 7
	rtFlags     = 8
	rtNextHop   = 8 // length of struct rtnexthop; the interface is its second word
	rtmCloned   = 0x200
	ndaDst      = 1
	ndaLLAddr   = 2
	nlaTypeMask = 0x3fff // without the flags of nested and big-endian attributes
	rtaNextHop  = 30     // RTA_NH_ID
	strictDump  = 12     // NETLINK_GET_STRICT_CHK: the kernel applies the filter of a dump

	rtnlBuffer  = 32 << 10 // the kernel's messages are at most this long
	rtnlTimeout = 1        // seconds; the kernel answers at once
)

// rtnl is a netlink socket for requests about neighbors and routes. Its request has no filter
// function and few allocations, compared with the netlink library. It is safe for concurrent use.
type rtnl struct {
	mu  sync.Mutex
	fd  int // -1: closed
	seq uint32
	buf []byte
}

// openRTNL opens a socket in the network namespace of the calling thread.
func openRTNL() (*rtnl, error) {
	fd, err := netlinkSocket(0)
	if err != nil {
		return nil, err
	}
	r := &rtnl{fd: fd, buf: make([]byte, rtnlBuffer)}
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, strictDump, 1)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO,
		&unix.Timeval{Sec: rtnlTimeout}); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return r, nil
}

func netlinkSocket(flags int) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|flags,
		unix.NETLINK_ROUTE)
	if err != nil {
		return -1, fmt.Errorf("open netlink: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return -1, errors.Join(fmt.Errorf("bind netlink: %w", err), unix.Close(fd))
	}
	return fd, nil
}

func (r *rtnl) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fd >= 0 {
		_ = unix.Close(r.fd)
	}
	r.fd = -1
}

// get sends a request and calls f for each message of the answer until f returns false. f must not
// keep the message. The answer to a dump has any number of messages.
func (r *rtnl) get(kind uint16, dump bool, body []byte, f func(m message) bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fd < 0 {
		return ErrClosed
	}
	r.seq++
	flags := uint16(unix.NLM_F_REQUEST)
	if dump {
		flags |= unix.NLM_F_DUMP
	}
	req := make([]byte, nlHeader, nlHeader+len(body))
	binary.NativeEndian.PutUint32(req, uint32(nlHeader+len(body)))
	binary.NativeEndian.PutUint16(req[4:], kind)
	binary.NativeEndian.PutUint16(req[6:], flags)
	binary.NativeEndian.PutUint32(req[8:], r.seq)
	if err := unix.Sendto(r.fd, append(req, body...), 0,
		&unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	for more := true; ; {
		n, from, err := unix.Recvfrom(r.fd, r.buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if !fromKernel(from) {
			continue
		}
		done := false
		for m := range messages(r.buf[:n]) {
			switch {
			case m.seq != r.seq: // the end of an earlier answer that was not awaited
			case m.kind == unix.NLMSG_ERROR || m.kind == unix.NLMSG_DONE:
				return m.errno()
			default:
				more = more && f(m)
				done = done || !dump
			}
		}
		if done {
			return nil
		}
	}
}

// fromKernel reports whether a message came from the kernel. Other processes can send messages,
// too.
func fromKernel(from unix.Sockaddr) bool {
	k, ok := from.(*unix.SockaddrNetlink)
	return ok && k.Pid == 0
}

// message is a netlink message.
type message struct {
	kind uint16
	seq  uint32
	data []byte // after the header
}

// errno returns the error in a message of type NLMSG_ERROR or NLMSG_DONE.
func (m message) errno() error {
	if len(m.data) < 4 {
		return nil
	}
	if code := int32(binary.NativeEndian.Uint32(m.data)); code < 0 {
		return syscall.Errno(-code)
	}
	return nil
}

// index returns the interface of a link, address or neighbor message: the second 32-bit word.
func (m message) index() int {
	if len(m.data) < 8 {
		return 0
	}
	return int(int32(binary.NativeEndian.Uint32(m.data[4:])))
}

// messages iterates over the messages in b.
func messages(b []byte) func(func(message) bool) {
	return func(yield func(message) bool) {
		for len(b) >= nlHeader {
			n := int(binary.NativeEndian.Uint32(b))
			if n < nlHeader || n > len(b) {
				return
			}
			if !yield(message{binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint32(b[8:]),
				b[nlHeader:n]}) {
				return
			}
			b = b[min(align4(n), len(b)):]
		}
	}
}

// attributes iterates over the attributes after a header of n bytes.
func (m message) attributes(header int) func(func(uint16, []byte) bool) {
	return func(yield func(uint16, []byte) bool) {
		b := m.data[min(header, len(m.data)):]
		for len(b) >= nlAttr {
			n := int(binary.NativeEndian.Uint16(b))
			if n < nlAttr || n > len(b) ||
				!yield(binary.NativeEndian.Uint16(b[2:])&nlaTypeMask, b[nlAttr:n]) {
				return
			}
			b = b[min(align4(n), len(b)):]
		}
	}
}

// appendAttribute appends an attribute whose value needs no padding.
func appendAttribute(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(nlAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	return append(b, value...)
}

func align4(n int) int { return (n + 3) &^ 3 }

// addrIn returns the address in an attribute, or the zero Addr.
func addrIn(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}

// events is a netlink socket that receives notifications. One goroutine receives; close may be
// called by another.
type events struct {
	file *os.File
	conn syscall.RawConn
	buf  []byte
}

// openEvents subscribes to groups in the network namespace of the calling thread.
func openEvents(groups ...int) (*events, error) {
	fd, err := netlinkSocket(unix.SOCK_NONBLOCK)
	if err != nil {
		return nil, err
	}
	e := &events{file: os.NewFile(uintptr(fd), "netlink"), buf: make([]byte, rtnlBuffer)}
	for _, g := range groups {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP,
			g); err != nil {
			return nil, errors.Join(fmt.Errorf("subscribe to netlink group %d: %w", g, err),
				e.file.Close())
		}
	}
	if e.conn, err = e.file.SyscallConn(); err != nil {
		return nil, errors.Join(err, e.file.Close())
	}
	return e, nil
}

func (e *events) close() { _ = e.file.Close() }

// receive waits for notifications and calls f for each. The error is ENOBUFS if notifications were
// lost, and os.ErrClosed after close.
func (e *events) receive(f func(message)) error {
	n := 0
	var from unix.Sockaddr
	var err error
	if e := e.conn.Read(func(fd uintptr) bool {
		n, from, err = unix.Recvfrom(int(fd), e.buf, 0)
		return !errors.Is(err, unix.EAGAIN)
	}); e != nil {
		return e
	}
	if err != nil || !fromKernel(from) {
		return err
	}
	for m := range messages(e.buf[:n]) {
		f(m)
	}
	return nil
}
