package cm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// ServiceID is the service that a REQ or SIDR_REQ asks for.
type ServiceID uint64

// Prefixes of the service IDs of rdma_cm's port spaces (IBA annex A11). The low 16 bits are the
// port number.
const (
	prefixTCP  ServiceID = 0x0106_0000
	prefixUDP  ServiceID = 0x0111_0000
	prefixMask ServiceID = ^ServiceID(0xffff)
)

// TCPService returns the service ID of a port in RDMA_PS_TCP, which is for connections.
func TCPService(port uint16) ServiceID { return prefixTCP | ServiceID(port) }

// UDPService returns the service ID of a port in RDMA_PS_UDP, which is for datagram QPs found by
// SIDR.
func UDPService(port uint16) ServiceID { return prefixUDP | ServiceID(port) }

// IsTCP reports whether s is a port of RDMA_PS_TCP.
func (s ServiceID) IsTCP() bool { return s&prefixMask == prefixTCP }

// IsUDP reports whether s is a port of RDMA_PS_UDP.
func (s ServiceID) IsUDP() bool { return s&prefixMask == prefixUDP }

// IsIP reports whether s belongs to rdma_cm, so that the private data of requests starts with an
// IPCMHeader.
func (s ServiceID) IsIP() bool { return s.IsTCP() || s.IsUDP() }

// Port returns the port number of a service of rdma_cm.
func (s ServiceID) Port() uint16 { return uint16(s) }

// String returns "tcp:7174", "udp:7174" or the number.
func (s ServiceID) String() string {
	switch {
	case s.IsTCP():
		return fmt.Sprintf("tcp:%d", s.Port())
	case s.IsUDP():
		return fmt.Sprintf("udp:%d", s.Port())
	}
	return fmt.Sprintf("%#016x", uint64(s))
}

// IPCMHeaderLen is the length in bytes of the header with which rdma_cm starts a request's private
// data.
const IPCMHeaderLen = 36

// ErrIPCMHeader: the private data does not start with a valid rdma_cm header.
var ErrIPCMHeader = errors.New("cm: rdma_cm header of unknown version, " +
	"or for neither IPv4 nor IPv6")

// IPCMHeader tells a listener the IP addresses of a request (IBA annex A11). On the wire it has
// version 0, the IP version in the high nibble of the next byte, the source port, and the source
// and destination addresses in 16 bytes each, IPv4 in the last 4. The destination port is in the
// service ID.
type IPCMHeader struct {
	Src netip.AddrPort
	Dst netip.Addr
}

// Decode reads the header.
//
// Errors: ErrIPCMHeader.
func (h *IPCMHeader) Decode(b *[IPCMHeaderLen]byte) error {
	ipv4 := b[1]>>4 == 4
	if b[0] != 0 || (!ipv4 && b[1]>>4 != 6) {
		return ErrIPCMHeader
	}
	h.Src = netip.AddrPortFrom(ipcmAddr([16]byte(b[4:20]), ipv4), binary.BigEndian.Uint16(b[2:4]))
	h.Dst = ipcmAddr([16]byte(b[20:36]), ipv4)
	return nil
}

func ipcmAddr(a [16]byte, ipv4 bool) netip.Addr {
	if ipv4 {
		return netip.AddrFrom4([4]byte(a[12:]))
	}
	return netip.AddrFrom16(a)
}

// Encode writes the header. The address of Src determines the IP version.
func (h *IPCMHeader) Encode(b *[IPCMHeaderLen]byte) {
	*b = [IPCMHeaderLen]byte{1: 6 << 4}
	if h.Src.Addr().Is4() {
		b[1] = 4 << 4
	}
	binary.BigEndian.PutUint16(b[2:4], h.Src.Port())
	putIPCMAddr(b[4:20], h.Src.Addr())
	putIPCMAddr(b[20:36], h.Dst)
}

func putIPCMAddr(b []byte, a netip.Addr) {
	if a.Is4() {
		v := a.As4()
		copy(b[12:], v[:])
		return
	}
	v := a.As16()
	copy(b, v[:])
}
