package udp

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

const (
	nameLen    = unix.SizeofSockaddrInet6
	controlLen = 128 // more than the control messages of a packet need
)

// message has the memory to which a mmsghdr points.
type message struct {
	vectors [maxRun]unix.Iovec
	name    [nameLen]byte
	_       [8 - nameLen%8]byte // aligns control
	control [controlLen]byte
}

// messages is a batch for one call of sendmmsg or recvmmsg.
type messages struct {
	headers [batch]mmsghdr
	m       [batch]message
}

func newMessages() *messages {
	b := new(messages)
	for i := range b.headers {
		h := &b.headers[i].hdr
		h.Iov = &b.m[i].vectors[0]
		h.SetIovlen(1)
		h.Name = &b.m[i].name[0]
	}
	return b
}

// memory sets part k of the memory of message i, which has k+1 parts now.
func (b *messages) memory(i, k int, data []byte) {
	b.m[i].vectors[k].Base = &data[0]
	b.m[i].vectors[k].SetLen(len(data))
	b.headers[i].hdr.SetIovlen(k + 1)
}

// packets returns the number of packets of message i to send.
func (b *messages) packets(i int) uint64 { return uint64(b.headers[i].hdr.Iovlen) }

// send sends messages from to n-1 and returns the number of those that the kernel accepted. If it
// is 0, there is an error.
func (b *messages) send(fd, from, n int) (int, error) {
	return b.call(unix.SYS_SENDMMSG, fd, from, n, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

// receive receives up to n messages without blocking.
func (b *messages) receive(fd, n int) (int, error) {
	for i := range b.headers[:n] {
		h := &b.headers[i].hdr
		h.Namelen, h.Flags = nameLen, 0
		h.Control = &b.m[i].control[0]
		h.SetControllen(controlLen)
	}
	return b.call(unix.SYS_RECVMMSG, fd, 0, n, unix.MSG_DONTWAIT)
}

func (b *messages) call(number uintptr, fd, from, n int, flags uintptr) (int, error) {
	r, _, e := unix.Syscall6(number, uintptr(fd), uintptr(unsafe.Pointer(&b.headers[from])),
		uintptr(n-from), flags, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(r), nil
}

// addSegment appends the control message with the length of the packets of a run.
func (b *messages) addSegment(i, at int, length uint16) (end int) {
	m := &b.m[i]
	h := (*unix.Cmsghdr)(unsafe.Pointer(&m.control[at]))
	h.Level, h.Type = unix.SOL_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	*(*uint16)(unsafe.Pointer(&m.control[at+unix.CmsgLen(0)])) = length
	return at + unix.CmsgSpace(2)
}

// addControl appends a control message with an int to message i.
func (b *messages) addControl(i, at int, level, kind, value int32) (end int) {
	m := &b.m[i]
	h := (*unix.Cmsghdr)(unsafe.Pointer(&m.control[at]))
	h.Level, h.Type = level, kind
	h.SetLen(unix.CmsgLen(4))
	*(*int32)(unsafe.Pointer(&m.control[at+unix.CmsgLen(0)])) = value
	return at + unix.CmsgSpace(4)
}

// setControl sets the length of the control messages of message i.
func (b *messages) setControl(i, n int) {
	h := &b.headers[i].hdr
	h.Control = nil
	if n > 0 {
		h.Control = &b.m[i].control[0]
	}
	h.SetControllen(n)
}

// ancillary is what the control messages of a received packet say.
type ancillary struct {
	trafficClass, hopLimit uint8
	segment                int // length of the packets of a run; 0: one packet
}

// ancillary returns what the control messages of received message i say.
func (b *messages) ancillary(i int) (a ancillary) {
	m := &b.m[i]
	n := min(int(b.headers[i].hdr.Controllen), controlLen)
	for at := 0; at+unix.CmsgLen(1) <= n; {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&m.control[at]))
		size := int(h.Len)
		if size < unix.CmsgLen(1) || size > n-at {
			break
		}
		// A value has one byte, or four in host byte order.
		data := &m.control[at+unix.CmsgLen(0)]
		value := uint32(*data)
		if size >= unix.CmsgLen(4) {
			value = *(*uint32)(unsafe.Pointer(data))
		}
		switch {
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TOS,
			h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_TCLASS:
			a.trafficClass = uint8(value)
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TTL,
			h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_HOPLIMIT:
			a.hopLimit = uint8(value)
		}
		if h.Level == unix.SOL_UDP && h.Type == unix.UDP_GRO {
			a.segment = int(value)
		}
		at += unix.CmsgSpace(size - unix.CmsgLen(0))
	}
	return a
}

// drops returns how many packets the kernel has dropped because the receive buffer of a socket was
// full.
func drops(fd int) uint64 {
	const memInfoDrops = 8 // SK_MEMINFO_DROPS
	var info [memInfoDrops + 1]uint32
	size := uint32(unsafe.Sizeof(info))
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&info[0])), uintptr(unsafe.Pointer(&size)), 0)
	if e != 0 {
		return 0
	}
	return uint64(info[memInfoDrops])
}
