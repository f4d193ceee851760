package loop

import (
	"bytes"
	"net/netip"
	"slices"

	"github.com/gorxe/gorxe/bth"
)

// Sources decides from which addresses datagrams are accepted. A packet of a connected QP needs no
// such check, because its source is the address of the peer. Sources is immutable.
type Sources struct {
	refused map[bth.GID]struct{} // the device's own addresses and the broadcasts of its subnets
	local   bool                 // see AllowLoopback
	routed  bool                 // only addresses in spans are accepted
	v4, v6  []span               // sorted and disjoint
}

// span is a range of addresses, both ends included.
type span struct{ first, last bth.GID }

// NewSources returns the Sources of an interface with the given addresses and subnets. routes are
// the prefixes that the interface's routes lead to. If routes is nil they are not known, and any
// address may be routed.
func NewSources(subnets, routes []netip.Prefix) *Sources {
	s := &Sources{refused: map[bth.GID]struct{}{}, routed: routes != nil}
	for _, p := range subnets {
		s.refused[bth.GIDFromAddr(p.Addr())] = struct{}{}
		if p.Addr().Is4() && p.Bits() <= 30 { // RFC 3021: longer prefixes have no broadcast address
			at := spanOf(p) // RFC 1122, section 3.3.6: some hosts use the first address
			s.refused[at.first], s.refused[at.last] = struct{}{}, struct{}{}
		}
	}
	if s.routed {
		s.v4, s.v6 = spans(subnets, routes)
	}
	return s
}

// AllowLoopback makes accept permit loopback addresses. It is for ports for which the kernel makes
// sure that such packets come from this host. Call it before SetLocal.
func (s *Sources) AllowLoopback() { s.local = true }

// AllowOwn makes accept permit the device's own addresses. It is for ports for which the kernel
// delivers packets to themselves. Over IPv4 the kernel drops packets that other hosts send with
// addresses of this host. Over IPv6 it does not, so a host on the same link can forge them like
// those of a neighbor. Call AllowOwn before SetLocal.
func (s *Sources) AllowOwn(subnets []netip.Prefix) {
	for _, p := range subnets {
		delete(s.refused, bth.GIDFromAddr(p.Addr()))
	}
}

// spans merges prefixes to sorted, disjoint spans.
func spans(lists ...[]netip.Prefix) (v4, v6 []span) {
	for _, list := range lists {
		for _, p := range list {
			if p.Addr().Is4() {
				v4 = append(v4, spanOf(p))
			} else {
				v6 = append(v6, spanOf(p))
			}
		}
	}
	return merge(v4), merge(v6)
}

// spanOf returns the addresses of a prefix.
func spanOf(p netip.Prefix) span {
	s := span{first: bth.GIDFromAddr(p.Masked().Addr())}
	s.last = s.first
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	for i := bits; i < 128; i++ {
		s.last[i/8] |= 0x80 >> (i % 8)
	}
	return s
}

// merge sorts spans and joins those that overlap. list is reused.
func merge(list []span) []span {
	slices.SortFunc(list, func(a, b span) int { return bytes.Compare(a.first[:], b.first[:]) })
	out := list[:0]
	for _, s := range list {
		n := len(out)
		if n == 0 || bytes.Compare(s.first[:], out[n-1].last[:]) > 0 {
			out = append(out, s)
		} else if bytes.Compare(s.last[:], out[n-1].last[:]) > 0 {
			out[n-1].last = s.last
		}
	}
	return out
}

// accept reports whether a packet may come from g. It refuses addresses that no host has (RFC 1122,
// section 3.2.1.3; RFC 4291, section 2.7), the device's own addresses, and addresses without a
// route.
func (s *Sources) accept(g *bth.GID) bool {
	routes := s.v6
	if g.IsIPv4() {
		// 0.0.0.0/8, loopback, multicast, reserved and broadcast.
		if a := g[12]; a == 0 || a == 127 && !s.local || a >= 224 {
			return false
		}
		routes = s.v4
	} else if g.IsMulticast() || g.IsZero() || *g == loopback6 && !s.local {
		return false
	}
	if _, refused := s.refused[*g]; refused {
		return false
	}
	if !s.routed {
		return true
	}
	i, found := slices.BinarySearchFunc(routes, g, func(r span, g *bth.GID) int {
		return bytes.Compare(r.first[:], g[:])
	})
	return found || i > 0 && bytes.Compare(g[:], routes[i-1].last[:]) <= 0
}

var loopback6 = bth.GIDFromAddr(netip.IPv6Loopback())

// groupMACOK reports whether dst is the MAC of a multicast group (RFC 1112, section 6.4; RFC 2464,
// section 7).
func groupMACOK(dst []byte, group *bth.GID) bool {
	if group.IsIPv4() {
		return dst[0] == 0x01 && dst[1] == 0x00 && dst[2] == 0x5e && dst[3] == group[13]&0x7f &&
			dst[4] == group[14] && dst[5] == group[15]
	}
	return dst[0] == 0x33 && dst[1] == 0x33 && bytes.Equal(dst[2:6], group[12:])
}
