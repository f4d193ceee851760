package roce

import (
	"context"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/qp"
)

const (
	// settleTime is how long the watcher waits after a change, so that it handles a burst of
	// changes at once.
	settleTime = 5 * time.Millisecond
	// refreshInterval is the time between two looks at all paths if nothing changes, which keep
	// the network following them.
	refreshInterval = time.Minute
	// After its work the watcher pauses for watcherShare times as long as it took, at most
	// maxPause, so that a flood of changes costs little.
	watcherShare = 10
	maxPause     = time.Second
	// refreshTimeout limits the lookup of one neighbor if the network is not a driver.Finder.
	refreshTimeout = time.Second
	// pathsPerCommand limits the QPs that one command of the watcher reads, so that it does not
	// delay the loop.
	pathsPerCommand = 256
)

// watch starts the watcher, which follows changes of addresses, link, MTU and neighbors. In virtual
// time there is no goroutine: Progress calls pollNetwork.
func (d *Device) watch() {
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	if d.virtual {
		return
	}
	d.watcher.Add(1)
	go func() {
		defer d.watcher.Done()
		var tick <-chan time.Time
		if d.finder != nil {
			ticker := time.NewTicker(refreshInterval)
			defer ticker.Stop()
			tick = ticker.C
		}
		var rest time.Time // the watcher pauses until then
		for {
			changed := false
			select {
			case <-d.done:
				return
			case <-tick:
			case <-d.net.Changed():
				changed = true
			}
			select {
			case <-d.done:
				return
			case <-time.After(max(settleTime, time.Until(rest))):
			}
			began := time.Now()
			if changed {
				d.networkChanged(ctx)
			} else {
				d.refreshPaths(ctx)
			}
			rest = time.Now().Add(min(watcherShare*time.Since(began), maxPause))
		}
	}()
}

// pollNetwork does the watcher's work in virtual time.
func (d *Device) pollNetwork() {
	select {
	case <-d.net.Changed():
		d.networkChanged(context.Background())
	default:
	}
}

// networkChanged handles changes and emits their events.
func (d *Device) networkChanged(ctx context.Context) {
	var p driver.Info
	open := false
	if d.do(func(qp.Time) {
		d.loop.CheckPort()
		if p, open = d.loop.PortInfo(); open {
			d.setPortMTU(p.MTU)
		}
	}) != nil || !open {
		return
	}
	old, now := d.setInfo(p)
	if old.Up != now.Up {
		kind := EventPortErr
		if now.Up {
			kind = EventPortActive
		}
		d.emit(Event{Kind: kind, Detail: now.Name})
	}
	if old.ActiveMTU != now.ActiveMTU {
		d.emit(Event{Kind: EventMTUChange, Detail: fmt.Sprintf("%d, before %d (MTU of %s: %d)",
			int(now.ActiveMTU), int(old.ActiveMTU), now.Name, now.MTU)})
	}
	if old.Note != now.Note && now.Note != "" {
		d.emit(Event{Kind: EventPortNote, Detail: now.Note})
	}
	before := d.GIDs()
	if d.readAddrs() {
		d.emit(Event{Kind: EventGIDChange, Detail: addrChanges(before, d.GIDs())})
	}
	d.refreshPaths(ctx)
}

// refreshPaths looks up the next hops of all paths again. Paths to peers that are not found now
// stay as they are.
func (d *Device) refreshPaths(ctx context.Context) {
	d.ctl.Lock()
	qps := make([]*QP, 0, len(d.qps))
	for q := range d.qps {
		qps = append(qps, q)
	}
	ahs := make([]*AH, 0, len(d.ahs))
	for a := range d.ahs {
		ahs = append(ahs, a)
	}
	d.ctl.Unlock()

	hops := map[bth.GIDPair]*driver.Hop{}
	mac := d.Info().MAC
	// relink returns the path with the current next hop; nil if nothing has changed.
	relink := func(p *Path) *Path {
		gids := p.GIDs()
		h, known := hops[gids]
		if !known {
			h = d.lookUp(ctx, gids)
			hops[gids] = h
		}
		if h == nil {
			return nil
		}
		n := *p
		if n.Relink(mac, h.MAC, h.VLAN); n == *p {
			return nil
		}
		return &n
	}
	for len(qps) > 0 {
		n := min(len(qps), pathsPerCommand)
		for _, p := range d.pathsOf(qps[:n]) {
			if path := relink(&p.path); path != nil {
				p.q.replacePath(&p, path)
			}
		}
		qps = qps[n:]
	}
	for _, a := range ahs {
		if path := relink(a.Path()); path != nil {
			qp.UpdateAH(&a.ah, path)
		}
	}
	var resolved []Path
	_ = d.do(func(qp.Time) { resolved = d.gsi.paths.resolved() })
	for i := range resolved {
		if path := relink(&resolved[i]); path != nil {
			_ = d.do(func(qp.Time) { d.gsi.paths.replace(&resolved[i], path) })
		}
	}
}

// lookUp returns the next hop of a path, nil if it is not found.
func (d *Device) lookUp(ctx context.Context, gids bth.GIDPair) *driver.Hop {
	if d.finder != nil {
		if h, ok := d.finder.Find(gids.Local.Addr(), gids.Remote.Addr()); ok {
			return &h
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	h, err := d.net.Resolve(ctx, gids.Local.Addr(), gids.Remote.Addr())
	if err != nil {
		return nil
	}
	return &h
}

// qpPath is the path of a QP at some moment.
type qpPath struct {
	q       *QP
	path    Path
	version uint32 // QP.path
}

func (d *Device) pathsOf(qps []*QP) (list []qpPath) {
	_ = d.do(func(qp.Time) {
		for _, q := range qps {
			if q.path != 0 && !q.closed.Load() {
				list = append(list, qpPath{q, q.qp.Query().Path, q.path})
			}
		}
	})
	return list
}

// replacePath replaces a path of the QP unless it has changed meanwhile.
func (q *QP) replacePath(old *qpPath, path *Path) {
	_ = q.device().do(func(now qp.Time) {
		if q.path == old.version && !q.closed.Load() {
			// This fails in some states. Then the next Modify or Connect sets a new path.
			_ = q.modify(now, &Attr{Path: *path}, AttrPath)
		}
	})
}
