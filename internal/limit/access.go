package limit

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// Access permits or refuses peers by address. Deny has precedence. An empty Allow permits all
// addresses that Deny does not contain, so the zero Access permits everyone.
type Access struct {
	Allow, Deny []netip.Prefix
}

// Checked returns a copy of l in which IPv4-mapped prefixes are IPv4 prefixes. It returns an error
// if a prefix is not valid, which would match no address.
func (l *Access) Checked() (Access, error) {
	allow, err := checked(l.Allow)
	if err != nil {
		return Access{}, err
	}
	deny, err := checked(l.Deny)
	return Access{Allow: allow, Deny: deny}, err
}

func checked(list []netip.Prefix) (out []netip.Prefix, err error) {
	for _, p := range list {
		if !p.IsValid() {
			return nil, errors.New("a prefix is not valid: " +
				"make it with netip.ParsePrefix or netip.PrefixFrom")
		}
		if p, err = unmap(p); err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// Permits reports whether a may use the service. IPv4-mapped addresses match IPv4 prefixes, and
// zones are ignored.
func (l *Access) Permits(a netip.Addr) bool {
	return !contains(l.Deny, a) && (len(l.Allow) == 0 || contains(l.Allow, a))
}

func contains(list []netip.Prefix, a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	for _, p := range list {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// ParsePrefixes parses a list of prefixes and addresses separated by commas, for example
// "192.0.2.0/24,fe80::/10,2001:db8::7". An address means the prefix that contains only itself. Bits
// beyond the prefix length must be zero. The empty text is an empty list.
func ParsePrefixes(text string) ([]netip.Prefix, error) {
	var list []netip.Prefix
	for field := range strings.SplitSeq(text, ",") {
		if field = strings.TrimSpace(field); field == "" {
			continue
		}
		p, err := parsePrefix(field)
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, nil
}

func parsePrefix(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if a, notAddr := netip.ParseAddr(text); notAddr == nil && a.Zone() == "" {
		p, err = netip.PrefixFrom(a, a.BitLen()), nil
	}
	if err != nil {
		return p, fmt.Errorf("%q is neither an address nor a prefix: "+
			"write 192.0.2.7, 192.0.2.0/24 or 2001:db8::/32", text)
	}
	if p, err = unmap(p); err != nil {
		return p, err
	}
	if m := p.Masked(); m != p {
		return p, fmt.Errorf("%q has bits beyond its prefix length: write %v", text, m)
	}
	return p, nil
}

// unmap returns the IPv4 prefix of an IPv4-mapped one, and other prefixes unchanged.
func unmap(p netip.Prefix) (netip.Prefix, error) {
	a := p.Addr()
	switch {
	case !a.Is4In6():
		return p, nil
	case p.Bits() < 96:
		return p, fmt.Errorf("\"%v\" contains more than IPv4-mapped addresses: "+
			"write the IPv4 prefix", p)
	}
	return netip.PrefixFrom(a.Unmap(), p.Bits()-96), nil
}
