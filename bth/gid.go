package bth

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// GID is the address of a RoCEv2 port in network byte order: an IPv6 address, or an IPv4 address in
// its mapped form ::ffff:a.b.c.d (IBA annex A17).
type GID [16]byte

// GIDPair is the pair of addresses that a local side and a remote side use with each other.
type GIDPair struct {
	Local, Remote GID
}

// GIDFromAddr returns the GID of an IP address. It drops a zone. The zero Addr gives the zero GID.
func GIDFromAddr(a netip.Addr) GID {
	if !a.IsValid() {
		return GID{}
	}
	return GID(a.As16())
}

// GIDFromIPv4 returns the GID of an IPv4 address.
func GIDFromIPv4(a [4]byte) (g GID) {
	g.SetIPv4(a[:])
	return g
}

// SetIPv4 sets g to the GID of the IPv4 address in the first 4 bytes of a. It uses two 8-byte
// stores because it runs twice for each received packet.
func (g *GID) SetIPv4(a []byte) {
	binary.BigEndian.PutUint64(g[0:8], 0)
	binary.BigEndian.PutUint64(g[8:16], 0xffff<<32|uint64(binary.BigEndian.Uint32(a)))
}

// ParseGID parses an IP address in any of its usual notations.
func ParseGID(s string) (GID, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		return GID{}, fmt.Errorf("GID %q is not an IP address; use the form 10.0.0.1 or fe80::1: %w",
			s, err)
	}
	return GIDFromAddr(a), nil
}

// Addr returns the GID as an IP address. A mapped IPv4 address becomes an IPv4 address.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// IsIPv4 reports whether the GID is a mapped IPv4 address.
func (g GID) IsIPv4() bool {
	return binary.BigEndian.Uint64(g[0:8]) == 0 && binary.BigEndian.Uint32(g[8:12]) == 0xffff
}

// IsZero reports whether g is the zero GID, which means "not set".
func (g GID) IsZero() bool { return g == GID{} }

// IsMulticast reports whether the GID is an IPv4 or IPv6 multicast address.
func (g GID) IsMulticast() bool {
	return g[0] == 0xff || g.IsIPv4() && g[12]>>4 == 0xe
}

// String returns the address in the form that the rdma tools use: the GID of 10.77.0.1 is
// "::ffff:10.77.0.1".
func (g GID) String() string { return netip.AddrFrom16(g).String() }

// MarshalText returns the text of String.
func (g GID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText parses what ParseGID parses.
func (g *GID) UnmarshalText(b []byte) error {
	v, err := ParseGID(string(b))
	if err == nil {
		*g = v
	}
	return err
}
