package roce

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/qp"
)

// GIDKind says what address a GID stands for.
type GIDKind string

// The kinds of GIDs.
const (
	GIDLinkLocal GIDKind = "link-local"
	GIDIPv4      GIDKind = "ipv4"
	GIDIPv6      GIDKind = "ipv6"
)

// GIDEntry is an entry of the GID table. An address keeps its index as long as the interface has it; the index of an
// address that went away is given to the next new one.
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

// GIDs lists the addresses of the interface, by index.
func (d *Device) GIDs() []GIDEntry {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(d.gids), func(e GIDEntry) bool { return !e.Addr.IsValid() })
}

// localGID finds the address to send from: entry index; or, if index is negative, the first of the preferred kind among
// those of remote's IP version. A zero remote may be of either.
func (d *Device) localGID(index int, remote GID) (GIDEntry, error) {
	gids := d.GIDs()
	fits := func(e GIDEntry) bool { return remote.IsZero() || e.GID.IsIPv4() == remote.IsIPv4() }
	if index >= 0 {
		i := slices.IndexFunc(gids, func(e GIDEntry) bool { return e.Index == index })
		switch {
		case i < 0:
			return GIDEntry{}, fmt.Errorf("%w (index %d)", ErrNoGID, index)
		case !fits(gids[i]):
			return GIDEntry{}, fmt.Errorf("%w (here %v, there %v)", ErrFamily, gids[i].Addr, remote)
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
		return GIDEntry{}, fmt.Errorf("%w (no address here fits %v)", ErrFamily, remote)
	}
	return GIDEntry{}, ErrNoGID
}

// preferredKinds puts link-local addresses last, except towards a link-local peer.
func preferredKinds(remote GID) []GIDKind {
	if !remote.IsZero() && remote.Addr().IsLinkLocalUnicast() && !remote.IsIPv4() {
		return []GIDKind{GIDLinkLocal, GIDIPv6}
	}
	return []GIDKind{GIDIPv4, GIDIPv6, GIDLinkLocal}
}

func (d *Device) isOwn(g GID) bool {
	return slices.ContainsFunc(d.GIDs(), func(e GIDEntry) bool { return e.GID == g })
}

// readAddrs brings the GID table up to date with the interface, and tells whether it changed.
func (d *Device) readAddrs() bool {
	d.mu.Lock()
	gids, changed := mergeGIDs(d.gids, d.net.Addrs())
	d.gids = gids
	d.mu.Unlock()
	if changed {
		d.setLocal()
	}
	return changed
}

// mergeGIDs keeps the entries whose address is still there in their places, empties the others, and puts new addresses
// into the first empty places.
func mergeGIDs(old []GIDEntry, addrs []netip.Prefix) ([]GIDEntry, bool) {
	gids := slices.Clone(old)
	changed := false
	entries := make([]GIDEntry, len(addrs))
	for i, p := range addrs {
		entries[i] = newGIDEntry(0, p.Addr())
	}
	for i, e := range gids {
		if e.Addr.IsValid() && !slices.ContainsFunc(entries, func(n GIDEntry) bool { return n.GID == e.GID }) {
			gids[i], changed = GIDEntry{}, true
		}
	}
	for _, n := range entries {
		if slices.ContainsFunc(gids, func(e GIDEntry) bool { return e.Addr.IsValid() && e.GID == n.GID }) {
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

// setLocal tells the loop which addresses are local.
func (d *Device) setLocal() {
	var local []bth.GID
	for _, e := range d.GIDs() {
		local = append(local, e.GID)
	}
	_ = d.do(func(qp.Time) { d.loop.SetLocal(local) })
}
