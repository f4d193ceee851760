package guard

import (
	"net/netip"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/limit"
	"github.com/gorxe/gorxe/roce"
)

// all is the word that means every address.
const all = "all"

// anyone are the prefixes of every address.
var anyone = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0),
	netip.PrefixFrom(netip.IPv6Unspecified(), 0)}

// Flags are the flags of a server about its peers.
type Flags struct {
	allow, deny prefixes
}

// Register adds --allow and --deny.
func (f *Flags) Register(fs *pflag.FlagSet) {
	fs.Var(&f.allow, "allow", "serve only peers with these addresses: a list of prefixes such as "+
		"10.0.0.0/8,2001:db8::/32, or all (default: the subnets of the interface)")
	fs.Var(&f.deny, "deny",
		"do not serve peers with these addresses, even if --allow contains them")
}

// Guard returns a Guard for a server on dev.
func (f *Flags) Guard(dev *roce.Device) *Guard {
	return New(f.access(), dev.Subnets)
}

func (f *Flags) access() limit.Access { return limit.Access{Allow: f.allow, Deny: f.deny} }

// prefixes is a flag value. A flag that is given several times adds to its list.
type prefixes []netip.Prefix

// Set implements pflag.Value.
func (p *prefixes) Set(text string) error {
	for field := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(field) != all {
			continue
		}
		if strings.TrimSpace(text) != all {
			return cli.Usagef("%q is not a list of prefixes: %s means every address, write it alone",
				text, all)
		}
		*p = append(*p, anyone...)
		return nil
	}
	list, err := limit.ParsePrefixes(text)
	if err == nil && len(list) == 0 {
		err = cli.Usagef("the list is empty: write a prefix such as 10.0.0.0/8, or %s", all)
	}
	*p = append(*p, list...)
	return err
}

// String implements pflag.Value.
func (p *prefixes) String() string { return join(*p) }

// Type implements pflag.Value.
func (p *prefixes) Type() string { return "prefixes" }
