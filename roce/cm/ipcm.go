package cm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// ServiceID names what a REQ or a SIDR_REQ wants to reach.
type ServiceID uint64

// The rdma_cm's services (IBA annex A11): a prefix, the IP protocol and a port number. The annex
// speaks of protocol numbers; rdma_cm's port spaces use these prefixes.
const (
	prefixTCP  ServiceID = 0x0106_0000
	prefixUDP  ServiceID = 0x0111_0000
	prefixMask ServiceID = ^ServiceID(0xffff)
)

// TCPService is the service ID of a port in RDMA_PS_TCP: connections.
func TCPService(port uint16) ServiceID { return prefixTCP | ServiceID(port) }

// UDPService is the service ID of a port in RDMA_PS_UDP: datagram QPs, found by SIDR.
func UDPService(port uint16) ServiceID { return prefixUDP | ServiceID(port) }

// IsTCP tells whether s is a port of RDMA_PS_TCP.
func (s ServiceID) IsTCP() bool { return s&prefixMask == prefixTCP }

// IsUDP tells whether s is a port of RDMA_PS_UDP.
func (s ServiceID) IsUDP() bool { return s&prefixMask == prefixUDP }

// IsIP tells whether s belongs to the rdma_cm, so that private data of requests for it begins with
// an IPCMHeader.
func (s ServiceID) IsIP() bool { return s.IsTCP() || s.IsUDP() }

// Port is the port number of an rdma_cm service.
func (s ServiceID) Port() uint16 { return uint16(s) }

// String is "tcp:7174", "udp:7174", or the number.
func (s ServiceID) String() string {
	switch {
	case s.IsTCP():
		return fmt.Sprintf("tcp:%d", s.Port())
	case s.IsUDP():
		return fmt.Sprintf("udp:%d", s.Port())
	}
	return fmt.Sprintf("%#016x", uint64(s))
}

// IPCMHeaderLen is the length in bytes of the header that the rdma_cm puts in front of a request's
// private data.
const IPCMHeaderLen = 36

// ErrIPCMHeader: the private data does not begin with a header that this version understands.
var ErrIPCMHeader = errors.New("cm: rdma_cm header of unknown version, or for neither IPv4 nor IPv6")

// IPCMHeader tells a listener which IP addresses the request is about: version 0, IP version in the
// high nibble of the next byte, source port, source and destination address, each in 16 bytes with
// IPv4 in the last 4 (IBA annex A11). The destination port is in the service ID.
type IPCMHeader struct {
	Src netip.AddrPort
	Dst netip.Addr
}

// Decode reads the header.
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

// Encode writes the header; Src's address says of which IP version.
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
