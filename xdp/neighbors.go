//go:build linux

package xdp

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/limit"
	"golang.org/x/sys/unix"
)

// Limits of the neighbors that a Port follows, and of what it asks the kernel about them and about
// routes. Anyone on the network can cause changes, and anyone who can connect can cause lookups.
const (
	maxNeighbors = 1 << 14
	maxDests     = 1 << 14
	// A neighbor or destination that nobody has asked for is forgotten after this time. The device
	// asks for those in use once a minute.
	forgetAfter = 5 * time.Minute
	// A neighbor that does not answer is asked again after this time, then after twice the time.
	firstRetry = time.Second
	lastRetry  = time.Minute
)

var (
	// Lookups, each one or two requests, of callers of Resolve and of the watcher.
	callerLookups  = limit.Budget{PerSecond: 2000, Burst: 1000}
	watcherLookups = limit.Budget{PerSecond: 500, Burst: 500}
	// Requests to the kernel to resolve or verify a neighbor, each of which may send packets.
	solicitations = limit.Budget{PerSecond: 100, Burst: 100}
)

// States of a neighbor entry with a usable MAC.
const neighUsable = unix.NUD_REACHABLE | unix.NUD_STALE | unix.NUD_DELAY | unix.NUD_PROBE |
	unix.NUD_PERMANENT | unix.NUD_NOARP

// neighbor is what is known about a next hop. It is read from the kernel once and then kept up to
// date by the kernel's notifications.
type neighbor struct {
	mac    bth.MAC
	known  bool          // mac is valid; it stays so when the neighbor stops answering
	usable bool          // the kernel has a MAC for the neighbor
	check  bool          // notifications may have been lost: read the entry again
	wake   chan struct{} // closed when the MAC is found; nil if nobody waits
	due    time.Duration // when to solicit it again; 0: not
	retry  time.Duration // pause after the next solicitation without an answer
	used   time.Duration // when it was last asked for
}

// entry is a neighbor entry of the kernel.
type entry struct {
	ip    netip.Addr
	state uint16
	mac   bth.MAC
	ether bool // mac is set
}

func (e *entry) usable() bool { return e.state&neighUsable != 0 && e.ether }

// parseNeighbor parses a message about a neighbor.
func parseNeighbor(m message) (e entry) {
	if len(m.data) < ndmsgLen {
		return e
	}
	e.state = binary.NativeEndian.Uint16(m.data[ndState:])
	for kind, value := range m.attributes(ndmsgLen) {
		switch kind {
		case ndaDst:
			e.ip = addrIn(value)
		case ndaLLAddr:
			e.ether = copy(e.mac[:], value) == len(e.mac) && len(value) == len(e.mac)
		}
	}
	return e
}

// readNeighbor reads one entry of the kernel's neighbor table. It does not read the whole table.
func (n *network) readNeighbor(ip netip.Addr) (e entry, err error) {
	n.count.neighbors.Add(1)
	body := make([]byte, ndmsgLen, ndmsgLen+nlAttr+16)
	body[0] = byte(family(ip))
	binary.NativeEndian.PutUint32(body[4:], uint32(n.index))
	body = appendAttribute(body, ndaDst, ip.AsSlice())
	err = n.requests.get(unix.RTM_GETNEIGH, false, body, func(m message) bool {
		e = parseNeighbor(m)
		return false
	})
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	e.ip = ip
	return e, err
}

// neighborChanged handles a notification about a neighbor. Most notifications are about neighbors
// that the Port does not use, or do not change a MAC; they cost a map lookup.
func (n *network) neighborChanged(m message) {
	e := parseNeighbor(m)
	if m.kind == unix.RTM_DELNEIGH {
		e.state = unix.NUD_NONE
	}
	n.hops.Lock()
	defer n.hops.Unlock()
	if x := n.neighbors[e.ip]; x != nil && n.update(x, &e) {
		n.notify()
	}
}

// update stores what the kernel knows about a neighbor and reports whether its MAC is new. It plans
// the next solicitation: at once for a stale entry, because the kernel sees none of the Port's
// traffic and would never verify it, and later for one that does not answer. n.hops is held.
func (n *network) update(x *neighbor, e *entry) (changed bool) {
	x.check = false
	now := n.now()
	if !e.usable() {
		x.usable = false
		if x.retry == 0 {
			x.retry = firstRetry
			n.plan(x, now+firstRetry)
		}
		return false
	}
	x.retry, x.due = 0, 0
	if e.state&unix.NUD_STALE != 0 {
		n.plan(x, now)
	}
	changed = !x.known || !x.usable || x.mac != e.mac
	x.mac, x.known, x.usable = e.mac, true, true
	if x.wake != nil {
		close(x.wake)
		x.wake = nil
	}
	return changed
}

// plan makes the worker solicit a neighbor at the given time. n.hops is held.
func (n *network) plan(x *neighbor, at time.Duration) {
	x.due = max(at, 1)
	n.wakeWorker()
}

// follow returns the state of a neighbor, which is kept up to date from now on. n.hops is held.
func (n *network) follow(ip netip.Addr) *neighbor {
	x := n.neighbors[ip]
	if x == nil {
		if len(n.neighbors) >= maxNeighbors {
			dropOne(n.neighbors)
		}
		x = &neighbor{check: true}
		n.neighbors[ip] = x
	}
	x.used = n.now()
	return x
}

// dropOne removes an entry, which the map's iteration chooses at random.
func dropOne[K comparable, V any](m map[K]V) {
	for k := range m {
		delete(m, k)
		return
	}
}

// refreshNeighbor reads an entry again if notifications may have been lost, or if it is new. It
// returns false if the limit of lookups is reached. n.hops is held, but released meanwhile.
func (n *network) refreshNeighbor(ip netip.Addr, x *neighbor, budget *limit.Rate) (bool, error) {
	if !x.check {
		return true, nil
	}
	if !budget.Allow(int64(n.now()), netip.Addr{}, 1) {
		return false, nil
	}
	x.check = false // a notification from now on is newer than what is read
	n.hops.Unlock()
	e, err := n.readNeighbor(ip)
	n.hops.Lock()
	if err != nil {
		x.check = true
		return true, err
	}
	if e.usable() || !x.usable { // otherwise a notification was faster
		n.update(x, &e)
	}
	return true, nil
}

// solicitDue solicits the neighbors that are due, as many as the limit allows, and returns when the
// next one is due; 0: none. It does not wait for answers.
func (n *network) solicitDue() (next time.Duration) {
	n.hops.Lock()
	defer n.hops.Unlock()
	now := n.now()
	for ip, x := range n.neighbors {
		if x.due == 0 {
			continue
		}
		if x.due > now {
			if next == 0 || x.due < next {
				next = x.due
			}
			continue
		}
		if !n.solicitBudget.Allow(int64(now), netip.Addr{}, 1) {
			return now + workerPause
		}
		n.solicited(x, now)
		n.hops.Unlock()
		_ = n.solicit(ip)
		n.hops.Lock()
		if x.due != 0 && (next == 0 || x.due < next) {
			next = x.due
		}
	}
	return next
}

// solicited plans the next solicitation of a neighbor that is being solicited. n.hops is held.
func (n *network) solicited(x *neighbor, now time.Duration) {
	if x.due = 0; x.usable {
		return
	}
	x.retry = min(max(2*x.retry, firstRetry), lastRetry)
	x.due = now + x.retry
}

// forget removes what nobody has asked for since forgetAfter.
func (n *network) forget() {
	n.hops.Lock()
	defer n.hops.Unlock()
	old := n.now() - forgetAfter
	for ip, x := range n.neighbors {
		if x.used < old && x.wake == nil {
			delete(n.neighbors, ip)
		}
	}
	for k, d := range n.dests {
		if d.used < old {
			delete(n.dests, k)
		}
	}
}

func family(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
