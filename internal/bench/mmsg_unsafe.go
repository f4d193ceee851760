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

// messages is a batch of datagrams of one size, for a connected socket or one that does not ask who sends.
type messages struct {
	headers []mmsghdr
	vectors []unix.Iovec
	data    []byte
}

func newMessages(n, size int) *messages {
	m := &messages{headers: make([]mmsghdr, n), vectors: make([]unix.Iovec, n), data: make([]byte, n*size)}
	for i := range n {
		m.vectors[i].Base = &m.data[i*size]
		m.vectors[i].SetLen(size)
		m.headers[i].hdr.Iov = &m.vectors[i]
		m.headers[i].hdr.SetIovlen(1)
	}
	return m
}

func (m *messages) send(fd int) (int, error) {
	n, _, e := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&m.headers[0])), uintptr(len(m.headers)), 0, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}

// receive blocks for the first datagram and takes what else is there.
func (m *messages) receive(fd int) (int, error) {
	n, _, e := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&m.headers[0])), uintptr(len(m.headers)), unix.MSG_WAITFORONE, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}

// rawSend and rawReceive are system calls without the Go scheduler's bookkeeping, which costs a spinning thread some
// 50 ns each: kernel TCP shall look as good as it can. They do not block.

func rawSend(fd int, b []byte) error {
	_, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	if e != 0 {
		return e
	}
	return nil
}

func rawReceive(fd int, b []byte) error {
	n, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_DONTWAIT, 0, 0)
	switch {
	case e != 0:
		return e
	case n == 0:
		return unix.ECONNRESET
	}
	return nil
}
