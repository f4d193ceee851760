package roce

import (
	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
)

// maxUnusedPaths is the number of paths that a pathCache keeps for responses to peers without a
// cmID.
const maxUnusedPaths = 1024

// pathCache holds the paths of MADs by GID pair. A path is either resolved or learned. A resolved
// path comes from a lookup of the next hop, and the watcher keeps it up to date. A learned path
// reverses the headers of the peer's latest MAD, so that a response needs no lookup. Received
// packets never change a resolved path, because anyone can send them.
type pathCache struct {
	entries map[bth.GIDPair]*cachedPath
	unused  [maxUnusedPaths]*cachedPath // ring; also holds entries that got users again
	next    int
}

type cachedPath struct {
	gids     bth.GIDPair
	path     Path
	slot     int     // in pathCache.unused; -1: none
	users    int     // cmIDs that use the path; without users it may be discarded
	resolved int     // users that have resolved the path
	mac      bth.MAC // of the latest packet, for a learned path
	vlan     uint16
}

func newPathCache() pathCache { return pathCache{entries: map[bth.GIDPair]*cachedPath{}} }

// find returns the path for a GID pair, nil if there is none.
func (c *pathCache) find(gids bth.GIDPair) *Path {
	if e := c.entries[gids]; e != nil {
		return &e.path
	}
	return nil
}

// learn stores the path back to the sender of a MAD. local is the MAC address of the port.
func (c *pathCache) learn(p *bth.Packet, local bth.MAC) {
	e := c.entry(bth.GIDPair{Local: p.Dst, Remote: p.Src})
	if e.users == 0 && e.slot < 0 {
		c.keep(e)
	}
	vlan := p.VLAN
	if p.VLANID() == 0 { // a priority tag belongs to no VLAN: answer without a tag
		vlan = 0
	}
	if e.resolved > 0 || (e.path.Valid() && e.mac == p.SrcMAC && e.vlan == vlan) {
		return
	}
	e.mac, e.vlan = p.SrcMAC, vlan
	e.path = frame.NewPath(&frame.Address{
		SrcMAC: local, DstMAC: e.mac, VLAN: vlan, Src: e.gids.Local, Dst: e.gids.Remote,
		SrcPort: madSourcePort, HopLimit: DefaultHopLimit,
	})
}

// entry returns the entry for a GID pair, and creates it if necessary.
func (c *pathCache) entry(gids bth.GIDPair) *cachedPath {
	e := c.entries[gids]
	if e == nil {
		e = &cachedPath{gids: gids, slot: -1}
		c.entries[gids] = e
	}
	return e
}

// keep puts an entry without users into the ring and discards the oldest one there.
func (c *pathCache) keep(e *cachedPath) {
	if e.slot >= 0 {
		c.unused[e.slot] = nil
	}
	if old := c.unused[c.next]; old != nil {
		old.slot = -1
		if old.users == 0 {
			delete(c.entries, old.gids)
		}
	}
	e.slot = c.next
	c.unused[c.next] = e
	c.next = (c.next + 1) % maxUnusedPaths
}

// use keeps the path of id until release. path is the resolved path; nil if id answers a request of
// the peer and uses the learned path.
func (c *pathCache) use(id *cmID, path *Path) {
	e := c.entry(id.gids)
	if !id.usesPath {
		id.usesPath = true
		e.users++
	}
	if path == nil {
		return
	}
	e.path = *path
	if !id.resolvedPath {
		id.resolvedPath = true
		e.resolved++
	}
}

// release ends a use. The path stays in the cache for a while, because a message may have to be
// retransmitted.
func (c *pathCache) release(id *cmID) {
	e := c.entries[id.gids]
	if e == nil || !id.usesPath {
		return
	}
	if id.resolvedPath {
		if e.resolved--; e.resolved == 0 {
			e.mac = bth.MAC{} // learn the path from the next packet
		}
	}
	id.usesPath, id.resolvedPath = false, false
	if e.users--; e.users == 0 {
		c.keep(e)
	}
}

// resolved returns the resolved paths.
func (c *pathCache) resolved() (list []Path) {
	for _, e := range c.entries {
		if e.resolved > 0 {
			list = append(list, e.path)
		}
	}
	return list
}

// replace replaces a path unless it has changed meanwhile.
func (c *pathCache) replace(old, path *Path) {
	if e := c.entries[old.GIDs()]; e != nil && e.path == *old {
		e.path = *path
	}
}
