package udp

import (
	"encoding/binary"
	"net/netip"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/udpmsg"
	"golang.org/x/sys/unix"
)

// socket is a socket that is bound to UDP port 4791 of one address: an address of the interface, or
// a multicast group.
type socket struct {
	fd     int
	addr   netip.Addr
	gid    bth.GID
	group  bool
	buffer int           // size of the receive buffer, bytes
	runs   bool          // the kernel cuts and merges runs
	long   bool          // long runs came recently
	class  *udpmsg.Class // of sent packets
	from   Provider      // that has opened it; may be nil
	header []byte        // the headers of received packets, with what is the same in all of them
	// parent is the socket of all peers of the address. If it is not nil, this socket is connected
	// to one of them.
	parent *socket
	out    connected
}

// openSocket opens a socket in the network namespace of the calling thread. index is the number of
// the interface. If shared is true, other sockets may be bound to the same address.
func openSocket(a netip.Addr, index int, shared bool) (*socket, error) {
	l, err := udpmsg.Listen(a, index, shared)
	if err != nil {
		return nil, err
	}
	return newSocket(a, l), nil
}

// newSocket returns a socket that is bound to an address.
func newSocket(a netip.Addr, l udpmsg.Listener) *socket {
	s := &socket{fd: l.FD, addr: a, gid: bth.GIDFromAddr(a), group: a.IsMulticast(),
		buffer: l.Buffer, runs: l.Runs, class: udpmsg.NewClass(l.FD, a.Is6())}
	s.makeHeader()
	return s
}

func (s *socket) close() {
	if s.parent != nil {
		s.out.Close()
		return
	}
	_ = unix.Close(s.fd)
	if s.from != nil {
		s.from.Closed(s.addr)
	}
}

// Lengths and offsets of headers. Frames have no VLAN tag, because the kernel adds and removes
// tags.
const (
	etherLen = 14
	ipv4Len  = 20
	ipv6Len  = 40
	udpLen   = 8
	protoUDP = 17
	dontFrag = 0x4000
)

// makeHeader prepares the headers of received packets.
func (s *socket) makeHeader() {
	h := make([]byte, udpmsg.LenV6)
	a := s.addr.As16()
	if s.group {
		copy(h, multicastMAC(s.addr))
	}
	ip := h[etherLen:]
	if s.addr.Is4() {
		h = h[:udpmsg.LenV4]
		binary.BigEndian.PutUint16(h[12:], udpmsg.EtherIPv4)
		ip[0] = 4<<4 | ipv4Len/4
		binary.BigEndian.PutUint16(ip[6:], dontFrag)
		ip[9] = protoUDP
		copy(ip[16:20], a[12:])
	} else {
		binary.BigEndian.PutUint16(h[12:], udpmsg.EtherIPv6)
		ip[0] = 6 << 4
		ip[6] = protoUDP
		copy(ip[24:40], a[:])
	}
	binary.BigEndian.PutUint16(h[len(h)-udpLen+2:], bth.Port)
	s.header = h
}

// multicastMAC maps a multicast address to an Ethernet address (RFC 1112, section 6.4; RFC 2464,
// section 7).
func multicastMAC(a netip.Addr) []byte {
	b := a.As16()
	if a.Is4() {
		return []byte{0x01, 0x00, 0x5e, b[13] & 0x7f, b[14], b[15]}
	}
	return []byte{0x33, 0x33, b[12], b[13], b[14], b[15]}
}
