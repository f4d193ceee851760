package device

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/roce"
)

// GIDIndex is an index into a device's GID table, or AnyGID. *GIDIndex is a flag value.
type GIDIndex int

// AnyGID lets Choose select the GID.
const AnyGID GIDIndex = -1

const maxGIDIndex = 255

// Set implements pflag.Value.
func (g *GIDIndex) Set(text string) error {
	v := cli.Int{Min: 0, Max: maxGIDIndex}
	if err := v.Set(text); err != nil {
		return err
	}
	*g = GIDIndex(v.N)
	return nil
}

// String implements pflag.Value.
func (g *GIDIndex) String() string {
	if *g < 0 {
		return ""
	}
	return fmt.Sprint(int(*g))
}

// Type implements pflag.Value.
func (g *GIDIndex) Type() string { return "int" }

// Choose returns the index of the GID for a connection. For AnyGID, it is the GID with the address
// local, which is the local address of the TCP connection to the same peer. If there is none, it is
// the first GID of the same IP version.
func (g GIDIndex) Choose(dev *roce.Device, local netip.Addr) (*int, error) {
	if i := g.Chosen(); i != nil {
		return i, nil
	}
	local = local.Unmap().WithZone("")
	family := -1
	for _, e := range dev.GIDs() {
		if e.Addr.WithZone("") == local {
			i := e.Index
			return &i, nil
		}
		if family < 0 && e.Addr.Is4() == local.Is4() && !e.Addr.IsLinkLocalUnicast() {
			family = e.Index
		}
	}
	if family < 0 {
		version := "IPv6"
		if local.Is4() {
			version = "IPv4"
		}
		return nil, fmt.Errorf("%s has no %s address: add one (ip addr add), or choose a GID by its index",
			dev.Info().Name, version)
	}
	return &family, nil
}

// Chosen returns the index that the user has chosen, or nil for AnyGID.
func (g GIDIndex) Chosen() *int {
	if g < 0 {
		return nil
	}
	i := int(g)
	return &i
}

// check returns an error if the device has no GID with this index.
func (g GIDIndex) check(dev *roce.Device) error {
	if g < 0 {
		return nil
	}
	var have []string
	for _, e := range dev.GIDs() {
		if e.Index == int(g) {
			return nil
		}
		have = append(have, fmt.Sprintf("%d (%v)", e.Index, e.GID))
	}
	return cli.Usagef("GID index %d does not exist on %s: choose one of %s",
		int(g), dev.Info().Name, strings.Join(have, ", "))
}
