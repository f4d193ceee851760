package roce

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/loop"
	"github.com/gorxe/gorxe/qp"
)

// GIDKind is the kind of address of a GID.
type GIDKind string

// The kinds of GIDs.
const (
	GIDLinkLocal GIDKind = "link-local"
	GIDIPv4      GIDKind = "ipv4"
	GIDIPv6      GIDKind = "ipv6"
)

// GIDEntry is an entry of the GID table. An address keeps its index as long as the interface has
// it. The index of a removed address is reused for the next new one.
type GIDEntry struct {
	Index int        `json:"index"`
	GID   GID        `json:"gid"`
	Addr  netip.Addr `json:"addr"`
	Kind  GIDKind    `json:"kind"`
}

func newGIDEntry(i int, a netip.Addr) GIDEntry {
	a = a.Unmap().WithZone("")
	e := GIDEntry{Index: i, GID: bth.GIDFromAddr(a), Addr: a, Kind: GIDIPv6}
	switch {
	case a.Is4():
		e.Kind = GIDIPv4
	case a.IsLinkLocalUnicast():
		e.Kind = GIDLinkLocal
	}
	return e
}

// GIDs returns the GID table: the addresses of the interface, ordered by index.
func (d *Device) GIDs() []GIDEntry {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(d.gids),
		func(e GIDEntry) bool { return !e.Addr.IsValid() })
}

// Subnets returns the subnets of the interface's addresses, without duplicates. A host with an
// address in one of them is usually reachable without a router.
func (d *Device) Subnets() []netip.Prefix {
	var list []netip.Prefix
	for _, p := range d.net.Addrs() {
		p = netip.PrefixFrom(p.Addr().WithZone(""), p.Bits()).Masked()
		if p.IsValid() && !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	return list
}

// localGID returns the entry with an index. For a negative index it returns the first entry of the
// preferred kind that has the IP version of remote. A zero remote allows both versions.
func (d *Device) localGID(index int, remote GID) (GIDEntry, error) {
	gids := d.GIDs()
	fits := func(e GIDEntry) bool { return remote.IsZero() || e.GID.IsIPv4() == remote.IsIPv4() }
	if index >= 0 {
		i := slices.IndexFunc(gids, func(e GIDEntry) bool { return e.Index == index })
		switch {
		case i < 0:
			return GIDEntry{}, fmt.Errorf("%w (index %d)", ErrNoGID, index)
		case !fits(gids[i]):
			return GIDEntry{}, fmt.Errorf("%w (local %v, remote %v)", ErrFamily, gids[i].Addr,
				remote)
		}
		return gids[i], nil
	}
	for _, kind := range preferredKinds(remote) {
		for _, e := range gids {
			if e.Kind == kind && fits(e) {
				return e, nil
			}
		}
	}
	if len(gids) > 0 {
		return GIDEntry{}, fmt.Errorf("%w (no local address fits %v)", ErrFamily, remote)
	}
	return GIDEntry{}, ErrNoGID
}

// preferredKinds returns the kinds of local addresses to use for a peer, the best one first.
func preferredKinds(remote GID) []GIDKind {
	if !remote.IsZero() && remote.Addr().IsLinkLocalUnicast() && !remote.IsIPv4() {
		return []GIDKind{GIDLinkLocal, GIDIPv6}
	}
	return []GIDKind{GIDIPv4, GIDIPv6, GIDLinkLocal}
}

func (d *Device) isOwn(g GID) bool {
	return slices.ContainsFunc(d.GIDs(), func(e GIDEntry) bool { return e.GID == g })
}

// readAddrs updates the GID table from the interface and reports whether it has changed. It also
// tells the loop the new addresses and routes.
func (d *Device) readAddrs() bool {
	addrs := d.net.Addrs()
	var routes []netip.Prefix
	if d.router != nil {
		routes = d.router.Routes()
	}
	d.mu.Lock()
	gids, changed := mergeGIDs(d.gids, addrs)
	tell := changed || !slices.Equal(addrs, d.addrs) || !slices.Equal(routes, d.routes)
	d.gids, d.addrs, d.routes = gids, addrs, routes
	d.mu.Unlock()
	if tell {
		d.setLocal(addrs, routes)
	}
	return changed
}

// removedAddr comes before a removed address in addrChanges.
const removedAddr = "removed"

// addrChanges describes the difference between two GID tables.
func addrChanges(old, now []GIDEntry) string {
	var parts []string
	list := func(what string, from, without []GIDEntry) {
		for _, e := range from {
			if !slices.ContainsFunc(without, func(o GIDEntry) bool { return o.GID == e.GID }) {
				parts = append(parts, what+" "+e.Addr.String())
			}
		}
	}
	list(removedAddr, old, now)
	list("added", now, old)
	return strings.Join(parts, ", ")
}

// mergeGIDs updates a GID table: it keeps the entries whose address still exists, clears the
// others, and puts new addresses into the first free entries.
func mergeGIDs(old []GIDEntry, addrs []netip.Prefix) ([]GIDEntry, bool) {
	gids := slices.Clone(old)
	changed := false
	entries := make([]GIDEntry, len(addrs))
	for i, p := range addrs {
		entries[i] = newGIDEntry(0, p.Addr())
	}
	for i, e := range gids {
		if e.Addr.IsValid() &&
			!slices.ContainsFunc(entries, func(n GIDEntry) bool { return n.GID == e.GID }) {
			gids[i], changed = GIDEntry{}, true
		}
	}
	for _, n := range entries {
		if slices.ContainsFunc(gids,
			func(e GIDEntry) bool { return e.Addr.IsValid() && e.GID == n.GID }) {
			continue
		}
		i := slices.IndexFunc(gids, func(e GIDEntry) bool { return !e.Addr.IsValid() })
		if i < 0 {
			i = len(gids)
			gids = append(gids, GIDEntry{})
		}
		n.Index = i
		gids[i], changed = n, true
	}
	return gids, changed
}

// setLocal tells the loop the local addresses and the routes.
func (d *Device) setLocal(addrs, routes []netip.Prefix) {
	var local []bth.GID
	for _, e := range d.GIDs() {
		local = append(local, e.GID)
	}
	sources := loop.NewSources(addrs, routes)
	if d.sockets {
		sources.AllowLoopback()
		sources.AllowOwn(addrs)
	}
	_ = d.do(func(qp.Time) { d.loop.SetLocal(local, sources) })
}
