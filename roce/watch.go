package roce

import (
	"context"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/qp"
)

const (
	// settle is how long the watcher waits after a change, so that a burst of them is one.
	settle = 5 * time.Millisecond
	// refreshTimeout bounds the look-up of one neighbour.
	refreshTimeout = time.Second
)

// watch follows changes of addresses, link, MTU and neighbours. On the caller's clock there is no goroutine: Progress
// looks.
func (d *Device) watch() {
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	if d.virtual {
		return
	}
	d.watcher.Add(1)
	go func() {
		defer d.watcher.Done()
		for {
			select {
			case <-d.done:
				return
			case <-d.net.Changed():
			}
			select {
			case <-d.done:
				return
			case <-time.After(settle):
			}
			d.networkChanged(ctx)
		}
	}()
}

// pollNetwork is the watcher's work for a device on the caller's clock.
func (d *Device) pollNetwork() {
	select {
	case <-d.net.Changed():
		d.networkChanged(context.Background())
	default:
	}
}

// networkChanged takes over what may have changed, and says so.
func (d *Device) networkChanged(ctx context.Context) {
	var p driver.Info
	open := false
	if d.do(func(qp.Time) {
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
		d.emit(Event{Kind: kind})
	}
	if old.ActiveMTU != now.ActiveMTU {
		d.emit(Event{Kind: EventMTUChange})
	}
	if d.readAddrs() {
		d.emit(Event{Kind: EventGIDChange})
	}
	d.refreshPaths(ctx)
}

// refreshPaths looks up the neighbours of all paths again. A peer that cannot be found now keeps its old path: it may
// just be away for a moment.
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
	find := func(p *Path) *driver.Hop {
		r := p.GIDs()
		h, known := hops[r]
		if !known {
			h = d.lookUp(ctx, r)
			hops[r] = h
		}
		return h
	}
	mac := d.Info().MAC
	for len(qps) > 0 {
		n := min(len(qps), pathsATurn)
		for _, p := range d.pathsOf(qps[:n]) {
			if h := find(&p.path); h != nil {
				p.q.repath(&p, mac, h)
			}
		}
		qps = qps[n:]
	}
	for _, a := range ahs {
		p := a.Path()
		if h := find(p); h != nil {
			if n := relink(p, mac, h); *n != *p {
				qp.UpdateAH(a, n)
			}
		}
	}
	var ways []Path
	_ = d.do(func(qp.Time) { ways = d.gsi.lookedUp() })
	for i := range ways {
		p := &ways[i]
		if h := find(p); h != nil {
			if n := relink(p, mac, h); *n != *p {
				_ = d.do(func(qp.Time) { d.gsi.repath(p, n) })
			}
		}
	}
}

func (d *Device) lookUp(ctx context.Context, r bth.GIDPair) *driver.Hop {
	ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	h, err := d.net.Resolve(ctx, r.Local.Addr(), r.Remote.Addr())
	if err != nil {
		return nil
	}
	return &h
}

// pathsATurn bounds the QPs whose paths are asked for at a time, lest the shard's other work waits.
const pathsATurn = 256

// qpPath is a QP's path at some moment.
type qpPath struct {
	q     *QP
	path  Path
	count uint32 // of paths that the QP had been given
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

// repath gives the engine a path whose neighbour has changed, unless somebody has given it another one meanwhile.
func (q *QP) repath(p *qpPath, mac bth.MAC, h *driver.Hop) {
	n := relink(&p.path, mac, h)
	if *n == p.path {
		return
	}
	_ = q.device().do(func(now qp.Time) {
		if q.path == p.count && !q.closed.Load() {
			// Refused where the QP is between two states; its next Modify or Connect brings a path of its own.
			_ = q.modify(now, &Attr{Path: *n}, AttrPath)
		}
	})
}

// relink returns the path with the next hop's Ethernet header.
func relink(p *Path, mac bth.MAC, h *driver.Hop) *Path {
	n := *p
	n.Relink(mac, h.MAC, h.VLAN)
	return &n
}
