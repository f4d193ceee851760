package bench

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mmsghdr is struct mmsghdr of sendmmsg(2) and recvmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
	_   [unsafe.Sizeof(uintptr(0)) - 4]byte
}

// messages is a batch of datagrams of one size, for a socket whose datagrams need no address.
type messages struct {
	headers []mmsghdr
	vectors []unix.Iovec
	data    []byte
}

func newMessages(n, size int) *messages {
	m := &messages{headers: make([]mmsghdr, n), vectors: make([]unix.Iovec, n),
		data: make([]byte, n*size)}
	for i := range n {
		m.vectors[i].Base = &m.data[i*size]
		m.vectors[i].SetLen(size)
		m.headers[i].hdr.Iov = &m.vectors[i]
		m.headers[i].hdr.SetIovlen(1)
	}
	return m
}

// send sends the datagrams and returns how many were sent.
func (m *messages) send(fd int) (int, error) { return m.call(unix.SYS_SENDMMSG, fd, 0) }

// receive blocks until a datagram arrives, and takes all that have arrived.
func (m *messages) receive(fd int) (int, error) {
	return m.call(unix.SYS_RECVMMSG, fd, unix.MSG_WAITFORONE)
}

func (m *messages) call(number uintptr, fd int, flags uintptr) (int, error) {
	n, _, e := unix.Syscall6(number, uintptr(fd),
		uintptr(unsafe.Pointer(&m.headers[0])), uintptr(len(m.headers)), flags, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}

// rawSend sends b without blocking. Like rawReceive it bypasses the Go scheduler, whose
// bookkeeping costs a spinning thread about 50 ns per system call: the comparison should not
// burden the kernel's TCP.
func rawSend(fd int, b []byte) error {
	_, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd),
		uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	if e != 0 {
		return e
	}
	return nil
}

// rawReceive receives into b without blocking.
func rawReceive(fd int, b []byte) error {
	n, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd),
		uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_DONTWAIT, 0, 0)
	switch {
	case e != 0:
		return e
	case n == 0:
		return unix.ECONNRESET
	}
	return nil
}
