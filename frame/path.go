package frame

import (
	"encoding/binary"

	"github.com/gorxe/gorxe/bth"
)

// The ECN bits of the IPv4 TOS and the IPv6 traffic class.
const (
	ecnMask = 3
	ecnECT0 = 2
)

// Path is the path to one peer: the addresses of both sides and, for ports that send whole Ethernet
// frames, the headers that precede the BTH of each packet. A path without headers is for ports
// whose kernel writes them.
//
// A Path is a value: it can be copied, compared and used as a map key. The zero Path is not valid.
type Path struct {
	addr      Address
	header    [bth.MaxNetHeader]byte // zeros after headerLen
	headerLen uint8                  // 0: a path without headers
}

// NewPath returns a path with prepared headers. It panics if a.Src and a.Dst are of different
// families.
func NewPath(a *Address) Path {
	p := Path{addr: *a}
	p.build()
	return p
}

// NewBarePath returns a path without headers.
func NewBarePath(a *Address) Path { return Path{addr: *a} }

func (p *Path) build() {
	clear(p.header[:])
	p.headerLen = uint8(PutHeaders(p.header[:], &p.addr))
}

// Valid reports whether the path leads to a peer.
func (p *Path) Valid() bool { return !p.addr.Dst.IsZero() }

// Address returns what the headers contain, or would contain.
func (p *Path) Address() Address { return p.addr }

// GIDs returns the addresses of both sides.
func (p *Path) GIDs() bth.GIDPair { return bth.GIDPair{Local: p.addr.Src, Remote: p.addr.Dst} }

// Matches reports whether a received packet came from the path's remote GID to its local GID, in
// the path's VLAN. The priority in a tag does not matter.
func (p *Path) Matches(pkt *bth.Packet) bool {
	return pkt.Src == p.addr.Dst && pkt.Dst == p.addr.Src && (pkt.VLAN^p.addr.VLAN)&bth.MaskVLANID == 0
}

// SourcePort returns the UDP source port.
func (p *Path) SourcePort() uint16 { return p.addr.SrcPort }

// SetSourcePort changes the UDP source port.
func (p *Path) SetSourcePort(port uint16) {
	p.addr.SrcPort = port
	putSourcePort(p.header[:], int(p.headerLen), port)
}

// Relink changes the Ethernet addresses and the VLAN tag, after the port's MAC, the next hop's MAC
// or its VLAN has changed. Address.PCP applies to the new tag, too.
func (p *Path) Relink(local, remote bth.MAC, vlan uint16) {
	p.addr.SrcMAC, p.addr.DstMAC, p.addr.VLAN = local, remote, vlan
	if p.headerLen > 0 {
		p.build()
	}
}

// SetECT sets the ECN bits of the traffic class to ECT(0), ECN-capable transport (RFC 3168), unless
// they are already set.
func (p *Path) SetECT() {
	if p.addr.TrafficClass&ecnMask != 0 {
		return
	}
	p.addr.TrafficClass |= ecnECT0
	if p.headerLen > 0 {
		p.build()
	}
}

// ClearECT changes ECT(0) in the traffic class to not ECN-capable.
func (p *Path) ClearECT() {
	if p.addr.TrafficClass&ecnMask != ecnECT0 {
		return
	}
	p.addr.TrafficClass &^= ecnMask
	if p.headerLen > 0 {
		p.build()
	}
}

// HeaderLen returns the number of header bytes: 0 for a path without headers.
func (p *Path) HeaderLen() int { return int(p.headerLen) }

// Put writes the headers to the start of b and returns their length. b has at least
// bth.MaxNetHeader bytes, all of which Put overwrites: a copy of constant length compiles to a few
// instructions.
func (p *Path) Put(b []byte) int {
	*(*[bth.MaxNetHeader]byte)(b) = p.header
	return int(p.headerLen)
}

// PutFrom is Put with another UDP source port.
func (p *Path) PutFrom(b []byte, port uint16) int {
	n := p.Put(b)
	putSourcePort(b, n, port)
	return n
}

// putSourcePort writes the port into n bytes of headers. They end with the UDP header, which begins
// with the source port.
func putSourcePort(b []byte, n int, port uint16) {
	if n >= lenUDP {
		binary.BigEndian.PutUint16(b[n-lenUDP:], port)
	}
}
