package roce

import (
	"container/list"
	"context"
	"fmt"
	"net/netip"
	"sync"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce/cm"
)

// How the connection manager's events reach those who wait for them.
//
// The CM lives on the shard. A dialogue is its counterpart for one communication ID: the shard appends events to it, a
// goroutine that set up the connection waits for them. It ends with EventClosed, when the shard forgets it.

// dialogue is one connection, or datagram look-up, in the making or made.
type dialogue struct {
	id   cm.CommID
	gids bth.GIDPair
	wake chan struct{} // capacity 1: an event was added

	held, looked bool  // owner: see gsi.holdWay
	conn         *Conn // owner: once established; for events that come by themselves

	queue *acceptQueue  // owner: of a request, where it waits or waited for Accept
	place *list.Element // queue's: nil once it has left

	mu     sync.Mutex
	events []cm.Event // at most one of each kind
	dead   bool       // no further event comes
}

func newDialogue(id cm.CommID, gids bth.GIDPair) *dialogue {
	return &dialogue{id: id, gids: gids, wake: make(chan struct{}, 1)}
}

func (d *dialogue) add(e cm.Event) {
	d.mu.Lock()
	d.events = append(d.events, e)
	d.mu.Unlock()
	d.signal()
}

func (d *dialogue) end() {
	d.mu.Lock()
	d.dead = true
	d.mu.Unlock()
	d.signal()
}

func (d *dialogue) signal() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// take returns the oldest event; ended says that none is left and none will come.
func (d *dialogue) take() (e cm.Event, ok, ended bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.events) == 0 {
		return e, false, d.dead
	}
	e = d.events[0]
	d.events = d.events[1:]
	return e, true, false
}

// ending is why a dialogue that the connection manager refuses to go on with has ended; or, if nobody ended it, its refusal.
func (d *dialogue) ending(refused error) error {
	e, ok, _ := d.take()
	if !ok {
		return refused
	}
	return refusal(&e, cm.EventNone)
}

func (d *dialogue) pending() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.events) > 0 || d.dead
}

// dispatch hands events to their dialogues. Owner only.
func (g *gsi) dispatch(now qp.Time) {
	for e, ok := g.cm.PollEvent(); ok; e, ok = g.cm.PollEvent() {
		switch e.Kind {
		case cm.EventConnectRequest, cm.EventSIDRRequest:
			g.offer(now, e)
		case cm.EventClosed:
			g.forget(now, e.ID)
		default:
			if d := g.conns[e.ID]; d != nil {
				if d.conn != nil {
					d.conn.heard(now, &e)
				} else {
					d.add(e)
				}
			}
		}
	}
}

// offer gives a request to its listener, or refuses it if nobody takes requests any more.
func (g *gsi) offer(now qp.Time, e cm.Event) {
	l := g.listeners[e.Listener]
	if l == nil {
		_ = g.cm.Abort(cm.Time(now), e.ID)
		return
	}
	d := newDialogue(e.ID, e.Request.Addr.GIDPair)
	g.holdWay(d, nil)
	g.conns[e.ID] = d
	if !l.put(incoming{d, e}) {
		_ = g.cm.Abort(cm.Time(now), e.ID)
	}
}

// forget lets go of a dialogue of which nothing more is to be heard.
func (g *gsi) forget(now qp.Time, id cm.CommID) {
	d := g.conns[id]
	if d == nil {
		return
	}
	delete(g.conns, id)
	g.releaseWay(d)
	if d.queue != nil {
		d.queue.drop(d)
	}
	if d.conn != nil {
		d.conn.ended(now, ErrClosed)
	}
	d.end()
}

// abort breaks a dialogue off in whatever state it is, unless the connection manager has forgotten it: then its
// ID may be another's.
func (g *gsi) abort(now qp.Time, d *dialogue) {
	if g.conns[d.id] == d {
		_ = g.cm.Abort(cm.Time(now), d.id)
	}
}

// established notes that data came in on an accepted QP whose peer's RTU may be lost.
func (g *gsi) established(now qp.Time, q *QP) {
	if d := q.talk; d != nil {
		g.cm.CommEstablished(cm.Time(now), d.id)
		g.dispatch(now)
	}
}

// abandon ends a QP's connection because the QP goes. Owner only.
func (g *gsi) abandon(now qp.Time, q *QP) {
	if d := q.talk; d != nil {
		q.talk = nil
		g.abort(now, d)
		if d.conn != nil {
			d.conn.ended(now, ErrClosed)
		}
		g.dispatch(now)
		g.transmit(now)
	}
}

// next waits for a dialogue's next event until ctx is done.
func (dev *Device) next(ctx context.Context, d *dialogue) (cm.Event, error) {
	for {
		if e, ok, ended := d.take(); ok {
			return e, nil
		} else if ended || dev.closing.Load() {
			return cm.Event{}, ErrClosed
		}
		if err := dev.standBy(ctx, d.wake, d.pending); err != nil {
			return cm.Event{}, err
		}
	}
}

// standBy waits for wake or until ctx is done; with Manual progress it drives the device meanwhile.
func (dev *Device) standBy(ctx context.Context, wake <-chan struct{}, ready func() bool) error {
	switch {
	case dev.virtual:
		return ErrVirtualTime
	case dev.manual:
		dev.loop.Await(ctx, wake, func() bool { return ready() || dev.closing.Load() })
	default:
		select {
		case <-wake:
		case <-dev.done:
		case <-ctx.Done():
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("roce: the peer is still awaited: %w", err)
	}
	return nil
}

// serviceOf is the rdma_cm's service ID of a port.
func serviceOf(datagram bool, port uint16) cm.ServiceID {
	if datagram {
		return cm.UDPService(port)
	}
	return cm.TCPService(port)
}

// listenGID finds the entry of the GID table for an address to listen on; the zero address stands for all.
func (dev *Device) listenGID(a netip.Addr) (GID, error) {
	if !a.IsValid() || a.IsUnspecified() {
		return GID{}, nil
	}
	for _, e := range dev.GIDs() {
		if e.Addr == a.Unmap().WithZone("") {
			return e.GID, nil
		}
	}
	return GID{}, fmt.Errorf("%w: %v is no address of this interface", ErrNoGID, a)
}
