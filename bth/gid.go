package bth

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// GID is a port's address as the architecture has it: an IPv6 address, or an IPv4
// one in its mapped form ::ffff:a.b.c.d (IBA annex A17). Network byte order.
type GID [16]byte

// GIDFromAddr returns the GID of an IP address; a zone is dropped, the zero Addr
// gives the zero GID.
func GIDFromAddr(a netip.Addr) GID {
	if !a.IsValid() {
		return GID{}
	}
	return GID(a.As16())
}

// GIDFromIPv4 returns the GID of the four bytes of an IPv4 address.
func GIDFromIPv4(a [4]byte) (g GID) {
	g.SetIPv4(a[:])
	return g
}

// SetIPv4 makes g the GID of the IPv4 address in a's first 4 bytes, in place: wide
// stores and no copy, for it is done twice for each packet.
func (g *GID) SetIPv4(a []byte) {
	binary.BigEndian.PutUint64(g[0:8], 0)
	binary.BigEndian.PutUint64(g[8:16], 0xffff<<32|uint64(binary.BigEndian.Uint32(a)))
}

// ParseGID reads an IP address in any usual notation.
func ParseGID(s string) (GID, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		return GID{}, fmt.Errorf("GID %q is no IP address; give one like 10.0.0.1 or fe80::1: %w", s, err)
	}
	return GIDFromAddr(a), nil
}

// Addr returns the GID as an IP address; a mapped IPv4 address comes as IPv4.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// IsIPv4 reports whether the GID is a mapped IPv4 address.
func (g GID) IsIPv4() bool {
	return binary.BigEndian.Uint64(g[0:8]) == 0 && binary.BigEndian.Uint32(g[8:12]) == 0xffff
}

// IsZero reports whether no address is set.
func (g GID) IsZero() bool { return g == GID{} }

// IsMulticast reports whether the GID is a multicast address of either family.
func (g GID) IsMulticast() bool {
	return g[0] == 0xff || g.IsIPv4() && g[12]>>4 == 0xe
}

// String returns the address in text: "10.77.0.1" is "::ffff:10.77.0.1", as
// rdma tools show a GID.
func (g GID) String() string { return netip.AddrFrom16(g).String() }

// MarshalText writes the GID as String does.
func (g GID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText reads what ParseGID reads.
func (g *GID) UnmarshalText(b []byte) error {
	v, err := ParseGID(string(b))
	if err == nil {
		*g = v
	}
	return err
}
