//go:build linux

package xdp

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// workerPause is the shortest time between two runs of the worker, so that a flood of
	// notifications costs little. A run that takes long is followed by a pause of workerShare times
	// its duration, at most maxPause: on a busy host, a run takes long because other processes run.
	workerPause = 20 * time.Millisecond
	workerShare = 20
	maxPause    = time.Second
	// forgetInterval is the time between two searches for what is not used any more.
	forgetInterval = time.Minute
	// maxChangedRoutes is the number of route changes that the worker handles one by one. If there
	// are more, it looks up all routes in use again.
	maxChangedRoutes = 256
	// maxRoutes is the maximum number of routes over the interface that are read.
	maxRoutes = 1 << 14
)

// work is what notifications have left to do for the worker.
type work struct {
	mu       sync.Mutex
	link     bool           // read link, addresses and routes
	routes   bool           // read the routes
	lost     bool           // notifications were lost: read everything that is in use
	changed  []netip.Prefix // of routes
	announce time.Duration  // when to send on Changed again; 0: not
}

// watch starts the goroutines, which run until close.
func (n *network) watch() {
	n.finished.Add(2)
	go func() {
		defer n.finished.Done()
		n.receiveEvents()
	}()
	go func() {
		defer n.finished.Done()
		n.work()
	}()
}

// receiveEvents receives notifications. It must keep up with the kernel, so it leaves everything
// that takes longer than a map lookup to the worker.
func (n *network) receiveEvents() {
	for {
		err := n.events.receive(n.handleEvent)
		switch {
		case err == nil, errors.Is(err, unix.EINTR):
		case errors.Is(err, os.ErrClosed):
			return
		default: // ENOBUFS: notifications were lost; ENOMEM and the like may pass
			n.leave(func(w *work) { w.link, w.lost = true, true })
			select {
			case <-n.stop:
				return
			case <-time.After(workerPause):
			}
		}
	}
}

func (n *network) handleEvent(m message) {
	switch m.kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK, unix.RTM_NEWADDR, unix.RTM_DELADDR:
		// The kernel removes routes along with their address or link without a notification.
		if m.index() == n.index {
			n.leave(func(w *work) { w.link = true })
		}
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		if m.index() == n.index {
			n.neighborChanged(m)
		}
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		n.routeChanged(m)
	case unix.RTM_NEWRULE, unix.RTM_DELRULE, unix.RTM_NEWNEXTHOP, unix.RTM_DELNEXTHOP:
		n.leave(func(w *work) { w.routes, w.changed = true, everywhere })
	}
}

// everywhere contains all addresses.
var everywhere = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0),
	netip.PrefixFrom(netip.IPv6Unspecified(), 0)}

// routeChanged handles a notification about a route of any interface.
func (n *network) routeChanged(m message) {
	p, ours, ok := n.parseRoute(m)
	if !ok {
		return
	}
	n.leave(func(w *work) {
		w.routes = w.routes || ours
		if len(w.changed) < maxChangedRoutes {
			w.changed = append(w.changed, p)
		} else {
			w.changed = everywhere
		}
	})
}

// leave gives the worker something to do.
func (n *network) leave(f func(*work)) {
	n.todo.mu.Lock()
	f(&n.todo)
	n.todo.mu.Unlock()
	n.wakeWorker()
}

func (n *network) wakeWorker() {
	select {
	case n.kick <- struct{}{}:
	default:
	}
}

// announceLater makes the worker send on Changed when lookups are allowed again.
func (n *network) announceLater() {
	n.leave(func(w *work) {
		if w.announce == 0 {
			w.announce = n.now() + workerShare*workerPause
		}
	})
}

func (n *network) notify() {
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// work is the worker. It runs when there is something to do, with pauses in between.
func (n *network) work() {
	timer := time.NewTimer(forgetInterval)
	defer timer.Stop()
	forget := n.now() + forgetInterval
	for {
		select {
		case <-n.stop:
			return
		case <-n.kick:
		case <-timer.C:
		}
		began := n.now()
		next := n.runWork()
		if now := n.now(); now >= forget {
			n.forget()
			forget = now + forgetInterval
		}
		if next == 0 || next > forget {
			next = forget
		}
		now := n.now()
		select {
		case <-n.stop:
			return
		case <-time.After(pauseAfter(now - began)):
		}
		timer.Reset(max(next-n.now(), 0))
	}
}

// pauseAfter returns the pause of the worker after a run that took d.
func pauseAfter(d time.Duration) time.Duration {
	return min(max(workerPause, workerShare*d), maxPause)
}

// runWork does what there is to do, and returns when there is more; 0: unknown.
func (n *network) runWork() (next time.Duration) {
	n.todo.mu.Lock()
	w := &n.todo
	link, routes, lost, changed := w.link, w.routes, w.lost, w.changed
	announce := w.announce != 0 && w.announce <= n.now()
	if announce {
		w.announce = 0
	}
	later := w.announce
	w.link, w.routes, w.lost, w.changed = false, false, false, nil
	n.todo.mu.Unlock()

	// Most notifications about an interface change nothing, for example each router advertisement
	// that extends the lifetime of an address.
	differs := link && n.refresh()
	differs = (link || routes) && n.readRoutes() || differs
	if lost || link && differs {
		changed = everywhere
	}
	announce = announce || differs
	if len(changed) > 0 {
		announce = n.markStale(changed) || announce
	}
	if lost {
		n.distrustNeighbors()
		announce = true
	}
	if announce {
		n.notify()
	}
	next = n.solicitDue()
	if later != 0 && (next == 0 || later < next) {
		next = later
	}
	return next
}

// markStale marks the destinations in changed prefixes. It reports whether there were any.
func (n *network) markStale(changed []netip.Prefix) (any bool) {
	n.hops.Lock()
	defer n.hops.Unlock()
	n.generation.Add(1)
	for k, d := range n.dests {
		if slices.ContainsFunc(changed, func(p netip.Prefix) bool { return p.Contains(k.dst) }) {
			d.stale, any = true, true
		}
	}
	return any
}

// distrustNeighbors makes Resolve and Find read the entries of neighbors again.
func (n *network) distrustNeighbors() {
	n.hops.Lock()
	defer n.hops.Unlock()
	for _, x := range n.neighbors {
		x.check = true
	}
}

// readRoutes reads the routes over the interface and reports whether they have changed.
func (n *network) readRoutes() bool {
	routes := []netip.Prefix{}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		n.count.routeDumps.Add(1)
		body := make([]byte, rtmsgLen, rtmsgLen+nlAttr+4)
		body[0] = family
		body = appendAttribute(body, unix.RTA_OIF,
			binary.NativeEndian.AppendUint32(nil, uint32(n.index)))
		err := n.requests.get(unix.RTM_GETROUTE, true, body, func(m message) bool {
			if p, ours, ok := n.parseRoute(m); ok && ours && len(routes) <= maxRoutes {
				routes = append(routes, p)
			}
			return true
		})
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOENT) {
			routes = nil
			break
		}
	}
	if len(routes) > maxRoutes {
		routes = nil
	}
	next := *n.state.Load()
	if slices.Equal(routes, next.routes) && (routes == nil) == (next.routes == nil) {
		return false
	}
	next.routes = routes
	n.state.Store(&next)
	return true
}

// parseRoute returns the destination of a route and whether it leads to other hosts over the
// interface. ok is false for the routes that the kernel adds for addresses and groups of this host.
func (n *network) parseRoute(m message) (p netip.Prefix, ours, ok bool) {
	if len(m.data) < rtmsgLen || binary.NativeEndian.Uint32(m.data[rtFlags:])&rtmCloned != 0 {
		return p, false, false
	}
	switch m.data[rtType] {
	case unix.RTN_LOCAL, unix.RTN_BROADCAST, unix.RTN_ANYCAST, unix.RTN_MULTICAST:
		return p, false, false
	}
	dst := netip.IPv4Unspecified()
	if m.data[0] == unix.AF_INET6 {
		dst = netip.IPv6Unspecified()
	}
	for kind, value := range m.attributes(rtmsgLen) {
		switch kind {
		case unix.RTA_DST:
			dst = addrIn(value)
		case unix.RTA_OIF:
			ours = ours || len(value) == 4 && binary.NativeEndian.Uint32(value) == uint32(n.index)
		case unix.RTA_MULTIPATH:
			ours = ours || n.inMultipath(value)
		case rtaNextHop: // the next hops are in an object of their own
			ours = true
		}
	}
	p = netip.PrefixFrom(dst, int(m.data[rtDstLen]))
	return p, ours && m.data[rtType] == unix.RTN_UNICAST, p.IsValid()
}

// inMultipath reports whether one of the next hops of a route uses the interface.
func (n *network) inMultipath(b []byte) bool {
	for len(b) >= rtNextHop {
		size := int(binary.NativeEndian.Uint16(b))
		if binary.NativeEndian.Uint32(b[4:]) == uint32(n.index) {
			return true
		}
		if size < rtNextHop || size > len(b) {
			return false
		}
		b = b[min(align4(size), len(b)):]
	}
	return false
}
