package udpmsg

import (
	"syscall"
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
	// Size is the number of messages of a Batch.
	Size = 64
	// NameLen is the length of the address of a message.
	NameLen = unix.SizeofSockaddrInet6

	controlLen = 128 // more than the control messages of a packet need
	maxShort   = 256 // bytes of a packet that is copied instead of being a part of its own
)

// message has the memory to which a mmsghdr points.
type message struct {
	vectors [MaxRun]unix.Iovec
	name    [NameLen]byte
	_       [8 - NameLen%8]byte // aligns control
	control [controlLen]byte
	// Of messages to send: the number of packets, the length of each but the last, the last one.
	count, size int
	last        []byte
}

// Batch has the messages of one call of sendmmsg or recvmmsg. A message is a packet or a run.
type Batch struct {
	headers [Size]mmsghdr
	m       [Size]message
	single  unix.Iovec // see only
	short   []byte     // copies of short packets to send; see add
}

// NewBatch returns a Batch. It must not be copied.
func NewBatch() *Batch {
	b := new(Batch)
	for i := range b.headers {
		h := &b.headers[i].hdr
		h.Iov = &b.m[i].vectors[0]
		h.SetIovlen(1)
		h.Name = &b.m[i].name[0]
	}
	return b
}

// SetMemory sets part k of the memory of message i, which has k+1 parts then.
func (b *Batch) SetMemory(i, k int, data []byte) {
	b.m[i].vectors[k].Base = &data[0]
	b.m[i].vectors[k].SetLen(len(data))
	b.headers[i].hdr.SetIovlen(k + 1)
}

// begin makes message i, which is to be sent, of a packet.
func (b *Batch) begin(i int, p []byte) {
	b.SetMemory(i, 0, p)
	b.m[i].count, b.m[i].size, b.m[i].last = 1, len(p), p
}

// add adds n adjacent packets to message i, and returns where they are. Packets that are adjacent
// in memory to the one before extend its part, because more parts take the kernel more time. Short
// ones that are not are copied if there is space.
func (b *Batch) add(i int, p []byte, n int) []byte {
	m, parts := &b.m[i], int(b.headers[i].hdr.Iovlen)
	if k := len(b.short); !adjacent(m.last, p) && len(p) <= min(maxShort, cap(b.short)-k) {
		b.short = append(b.short, p...)
		p = b.short[k:]
	}
	if adjacent(m.last, p) {
		v := &m.vectors[parts-1]
		v.SetLen(int(v.Len) + len(p))
	} else {
		b.SetMemory(i, parts, p)
	}
	m.count, m.last = m.count+n, p
	return p
}

// adjacent reports whether p follows a packet in memory. Only what is within the capacity of the
// packet is known to be in the same allocation.
func adjacent(packet, p []byte) bool {
	k := len(packet)
	return k < cap(packet) && &packet[:k+1][k] == &p[0]
}

// packets returns the number of packets of message i to send.
func (b *Batch) packets(i int) int { return b.m[i].count }

// packet returns packet k of message i to send.
func (b *Batch) packet(i, k int) []byte {
	m := &b.m[i]
	at := k * m.size
	for v := range m.vectors {
		part := unsafe.Slice(m.vectors[v].Base, m.vectors[v].Len)
		if at < len(part) {
			return part[at:min(at+m.size, len(part))]
		}
		at -= len(part)
	}
	panic("udpmsg: no such packet")
}

// only reduces message i to its packet k, without the control message of a run. control is the
// length of the other control messages.
func (b *Batch) only(i, k, control int) {
	p := b.packet(i, k)
	b.single.Base = &p[0]
	b.single.SetLen(len(p))
	h := &b.headers[i].hdr
	h.Iov = &b.single
	h.SetIovlen(1)
	b.setControl(i, control)
}

// restore makes message i usable again after only.
func (b *Batch) restore(i int) { b.headers[i].hdr.Iov = &b.m[i].vectors[0] }

// send sends messages from to n-1 and returns the number of those that the kernel accepted. If it
// is 0, there is an error.
func (b *Batch) send(fd, from, n int) (int, error) {
	const flags = unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL
	if n-from > 1 {
		return b.call(unix.SYS_SENDMMSG, fd, from, n, flags)
	}
	h := &b.headers[from]
	if h.hdr.Controllen > 0 || h.hdr.Iovlen > 1 {
		return h.call(unix.SYS_SENDMSG, fd, flags)
	}
	// A packet alone is sent with the cheapest system call.
	r, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(h.hdr.Iov.Base)),
		uintptr(h.hdr.Iov.Len), flags, uintptr(unsafe.Pointer(h.hdr.Name)), uintptr(h.hdr.Namelen))
	return h.done(r, e)
}

// sendAlone sends a packet through a connected socket.
func sendAlone(fd int, p []byte) error {
	_, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&p[0])),
		uintptr(len(p)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	if e != 0 {
		return e
	}
	return nil
}

// Receive receives up to n messages from a socket without blocking, and returns their number. If
// named is false, Name is not available.
func (b *Batch) Receive(fd, n int, named bool) (int, error) {
	for i := range b.headers[:n] {
		h := &b.headers[i].hdr
		h.Name, h.Namelen, h.Flags = nil, 0, 0
		if named {
			h.Name, h.Namelen = &b.m[i].name[0], NameLen
		}
		h.Control = &b.m[i].control[0]
		h.SetControllen(controlLen)
	}
	if n == 1 {
		return b.headers[0].call(unix.SYS_RECVMSG, fd, unix.MSG_DONTWAIT)
	}
	return b.call(unix.SYS_RECVMMSG, fd, 0, n, unix.MSG_DONTWAIT)
}

// call makes a system call for one message.
func (h *mmsghdr) call(number uintptr, fd int, flags uintptr) (int, error) {
	r, _, e := unix.RawSyscall(number, uintptr(fd), uintptr(unsafe.Pointer(&h.hdr)), flags)
	return h.done(r, e)
}

// done records the result of a system call for one message.
func (h *mmsghdr) done(r uintptr, e syscall.Errno) (int, error) {
	if e != 0 {
		return 0, e
	}
	h.len = uint32(r)
	return 1, nil
}

// rawCalls is the number of messages up to which a system call bypasses the scheduler of Go, whose
// bookkeeping would delay short messages. Longer calls would delay the garbage collector.
const rawCalls = 4

func (b *Batch) call(number uintptr, fd, from, n int, flags uintptr) (int, error) {
	var r uintptr
	var e syscall.Errno
	if n-from <= rawCalls {
		r, _, e = unix.RawSyscall6(number, uintptr(fd), uintptr(unsafe.Pointer(&b.headers[from])),
			uintptr(n-from), flags, 0, 0)
	} else {
		r, _, e = unix.Syscall6(number, uintptr(fd), uintptr(unsafe.Pointer(&b.headers[from])),
			uintptr(n-from), flags, 0, 0)
	}
	if e != 0 {
		return 0, e
	}
	return int(r), nil
}

// addSegment appends the control message with the length of the packets of a run.
func (b *Batch) addSegment(i, at int, length uint16) (end int) {
	m := &b.m[i]
	h := (*unix.Cmsghdr)(unsafe.Pointer(&m.control[at]))
	h.Level, h.Type = unix.SOL_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	*(*uint16)(unsafe.Pointer(&m.control[at+unix.CmsgLen(0)])) = length
	return at + unix.CmsgSpace(2)
}

// addControl appends a control message with an int to message i.
func (b *Batch) addControl(i, at int, level, kind, value int32) (end int) {
	m := &b.m[i]
	h := (*unix.Cmsghdr)(unsafe.Pointer(&m.control[at]))
	h.Level, h.Type = level, kind
	h.SetLen(unix.CmsgLen(4))
	*(*int32)(unsafe.Pointer(&m.control[at+unix.CmsgLen(0)])) = value
	return at + unix.CmsgSpace(4)
}

// addSource appends the control message with the source address of message i and the interface that
// sends it. ip is the IP header.
func (b *Batch) addSource(i int, ip []byte, v4 bool, index int) (end int) {
	m := &b.m[i]
	h := (*unix.Cmsghdr)(unsafe.Pointer(&m.control[0]))
	data := unsafe.Pointer(&m.control[unix.CmsgLen(0)])
	if v4 {
		h.Level, h.Type = unix.IPPROTO_IP, unix.IP_PKTINFO
		h.SetLen(unix.CmsgLen(unix.SizeofInet4Pktinfo))
		*(*unix.Inet4Pktinfo)(data) = unix.Inet4Pktinfo{Ifindex: int32(index),
			Spec_dst: [4]byte(ip[12:16])}
		return unix.CmsgSpace(unix.SizeofInet4Pktinfo)
	}
	h.Level, h.Type = unix.IPPROTO_IPV6, unix.IPV6_PKTINFO
	h.SetLen(unix.CmsgLen(unix.SizeofInet6Pktinfo))
	*(*unix.Inet6Pktinfo)(data) = unix.Inet6Pktinfo{Addr: [16]byte(ip[8:24]),
		Ifindex: uint32(index)}
	return unix.CmsgSpace(unix.SizeofInet6Pktinfo)
}

// setControl sets the length of the control messages of message i.
func (b *Batch) setControl(i, n int) {
	h := &b.headers[i].hdr
	h.Control = nil
	if n > 0 {
		h.Control = &b.m[i].control[0]
	}
	h.SetControllen(n)
}

// Length returns the length of received message i, in bytes, and whether its end was cut off.
func (b *Batch) Length(i int) (n int, truncated bool) {
	h := &b.headers[i]
	return int(h.len), h.hdr.Flags&unix.MSG_TRUNC != 0
}

// Name returns the address from which message i was received, a sockaddr_in or sockaddr_in6.
func (b *Batch) Name(i int) *[NameLen]byte { return &b.m[i].name }

// Ancillary is what the control messages of a received packet say.
type Ancillary struct {
	TrafficClass, HopLimit uint8
	Segment                int // length of the packets of a run; 0: one packet
}

// Ancillary returns what the control messages of received message i say.
func (b *Batch) Ancillary(i int) (a Ancillary) {
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
			a.TrafficClass = uint8(value)
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TTL,
			h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_HOPLIMIT:
			a.HopLimit = uint8(value)
		}
		if h.Level == unix.SOL_UDP && h.Type == unix.UDP_GRO {
			a.Segment = int(value)
		}
		at += unix.CmsgSpace(size - unix.CmsgLen(0))
	}
	return a
}
