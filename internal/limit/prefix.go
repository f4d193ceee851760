package limit

import "net/netip"

// Bits of the prefixes that Prefix returns.
const (
	BitsIPv4 = 32
	BitsIPv6 = 64
)

// Prefix returns the prefix that a's limits apply to: the address itself for IPv4 (also in its
// IPv4-mapped form), the /64 for IPv6. It ignores the zone.
func Prefix(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := BitsIPv6
	if a.Is4() {
		bits = BitsIPv4
	}
	p, _ := a.Prefix(bits) // fails only for the zero Addr, which has the zero Prefix
	return p
}

// Most counts the elements of list by their prefixes. It returns a function that reports whether no
// prefix has more of them than that of an element.
func Most[T any](list []T, prefix func(T) netip.Prefix) func(T) bool {
	number, most := map[netip.Prefix]int{}, 0
	for _, e := range list {
		p := prefix(e)
		number[p]++
		most = max(most, number[p])
	}
	return func(e T) bool { return number[prefix(e)] == most }
}
