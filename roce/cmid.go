package roce

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce/cm"
)

// cmID is the counterpart of a communication ID of the connection manager (rdma_cm_id): a
// connection or datagram lookup that is being set up or established. The connection manager runs
// on the loop. The owner appends events to the cmID, and the goroutine that sets up the connection
// waits for them. No event follows after the connection manager has discarded the communication ID.
type cmID struct {
	comm cm.CommID
	gids bth.GIDPair
	wake chan struct{} // capacity 1: an event was added, or the cmID ended

	// Owner only.
	usesPath, resolvedPath bool             // see pathCache.use
	conn                   *Conn            // once established: gets the events
	handler                inside.CMHandler // gets the events instead; see inside.HandleConn

	queue *acceptQueue  // owner: where a request waits or waited for Accept
	entry *list.Element // queue's: nil after the request has left it

	mu     sync.Mutex
	events []cm.Event // at most one of each kind
	over   bool       // no further event comes
}

func newCMID(comm cm.CommID, gids bth.GIDPair) *cmID {
	return &cmID{comm: comm, gids: gids, wake: make(chan struct{}, 1)}
}

func (id *cmID) add(e cm.Event) {
	id.mu.Lock()
	id.events = append(id.events, e)
	id.mu.Unlock()
	id.signal()
}

func (id *cmID) end() {
	id.mu.Lock()
	id.over = true
	id.mu.Unlock()
	id.signal()
}

func (id *cmID) signal() {
	select {
	case id.wake <- struct{}{}:
	default:
	}
}

// take returns the oldest event. ended means that there is none, and that none will come.
func (id *cmID) take() (e cm.Event, ok, ended bool) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if len(id.events) == 0 {
		return e, false, id.over
	}
	e = id.events[0]
	id.events = id.events[1:]
	return e, true, false
}

// cause returns why the peer ended the cmID; err if it did not.
func (id *cmID) cause(err error) error {
	e, ok, _ := id.take()
	if !ok {
		return err
	}
	return refusal(&e, cm.EventNone)
}

func (id *cmID) pending() bool {
	id.mu.Lock()
	defer id.mu.Unlock()
	return len(id.events) > 0 || id.over
}

// dispatch passes the events of the connection manager to their cmIDs. Owner only.
func (g *gsi) dispatch(now qp.Time) {
	for e, ok := g.cm.PollEvent(); ok; e, ok = g.cm.PollEvent() {
		switch e.Kind {
		case cm.EventConnectRequest, cm.EventSIDRRequest:
			g.offer(now, e)
		case cm.EventClosed:
			g.forget(now, e.ID)
		default:
			id := g.ids[e.ID]
			switch {
			case id == nil:
			case id.handler != nil:
				id.handler(cm.Time(now), g.cm, e)
			case e.Kind == cm.EventSuspect:
				if id.conn != nil {
					g.alive.suspect(g, now, id.conn.qp)
				}
			case id.conn != nil:
				id.conn.handle(now, &e)
			default:
				id.add(e)
			}
		}
	}
}

// offer passes a request to its listener. It refuses the request if the listener is closed.
func (g *gsi) offer(now qp.Time, e cm.Event) {
	if h := g.handlers[e.Listener]; h != nil {
		h(cm.Time(now), g.cm, e)
		return
	}
	l := g.listeners[e.Listener]
	if l == nil {
		_ = g.cm.Abort(cm.Time(now), e.ID)
		return
	}
	id := newCMID(e.ID, e.Request.Addr.GIDPair)
	g.paths.use(id, nil)
	g.ids[e.ID] = id
	if !l.put(incoming{id, e}) {
		_ = g.cm.Abort(cm.Time(now), e.ID)
	}
}

// add makes a cmID known for an active side. path is the resolved path to the peer.
func (g *gsi) add(comm cm.CommID, path *Path) *cmID {
	id := newCMID(comm, path.GIDs())
	g.ids[comm] = id
	g.paths.use(id, path)
	return id
}

// forget ends a cmID that the connection manager has discarded.
func (g *gsi) forget(now qp.Time, comm cm.CommID) {
	id := g.ids[comm]
	if id == nil {
		return
	}
	delete(g.ids, comm)
	g.paths.release(id)
	if id.queue != nil {
		id.queue.drop(id)
	}
	if id.conn != nil {
		id.conn.ended(now, ErrClosed)
	}
	if id.handler != nil {
		id.handler(cm.Time(now), g.cm, cm.Event{Kind: cm.EventClosed, ID: comm})
	}
	id.end()
}

// abort aborts a cmID in any state. If the connection manager has discarded the communication ID,
// it may belong to another cmID.
func (g *gsi) abort(now qp.Time, id *cmID) {
	if g.ids[id.comm] == id {
		_ = g.cm.Abort(cm.Time(now), id.comm)
	}
}

// established records that data came in on an accepted QP. The peer's RTU may be lost.
func (g *gsi) established(now qp.Time, q *QP) {
	if q.cmID != nil {
		g.cm.CommEstablished(cm.Time(now), q.cmID.comm)
		g.dispatch(now)
	}
}

// abandon ends the connection of a QP that is being closed. Owner only.
func (g *gsi) abandon(now qp.Time, q *QP) {
	g.alive.forget(q)
	id := q.cmID
	if id == nil {
		return
	}
	q.cmID = nil
	g.abort(now, id)
	if id.conn != nil {
		id.conn.ended(now, ErrClosed)
	}
	g.dispatch(now)
	g.transmit(now)
}

// spentID is the cmID of a QP that was reset after a connection. It belongs to no communication ID.
var spentID = &cmID{}

// leave ends the connection of a QP that was reset. What the connection manager reports about it
// later must not concern the next connection of the QP. Owner only.
func (g *gsi) leave(now qp.Time, q *QP) {
	g.alive.forget(q)
	id := q.cmID
	if id == nil || id.conn == nil {
		return
	}
	q.cmID = spentID
	id.conn.ended(now, ErrClosed)
	g.dispatch(now)
	g.transmit(now)
}

// next waits for the next event of id, until ctx is done.
func (d *Device) next(ctx context.Context, id *cmID) (cm.Event, error) {
	for {
		e, ok, ended := id.take()
		if ok {
			return e, nil
		}
		if err := d.Err(); err != nil {
			return e, err
		}
		if ended {
			return e, ErrClosed
		}
		if err := d.await(ctx, "the peer", id.wake, id.pending); err != nil {
			return cm.Event{}, err
		}
	}
}

// await waits for a value on wake, or until ctx is done. With Manual progress it drives the loop
// until ready returns true. what names what the caller waits for.
func (d *Device) await(ctx context.Context, what string, wake <-chan struct{},
	ready func() bool) error {
	switch {
	case d.virtual:
		if err := d.waitVirtual(ctx, ready); err != nil {
			return waitError(ctx, what, err)
		}
		return nil
	case d.manual:
		d.loop.Await(ctx, wake, func() bool { return ready() || d.Err() != nil })
	default:
		select {
		case <-wake:
		case <-d.done:
		case <-ctx.Done():
		}
	}
	if err := ctx.Err(); err != nil {
		return waitError(ctx, what, err)
	}
	return nil
}

// waitVirtual waits in virtual time until ready returns true or the device cannot work any more.
func (d *Device) waitVirtual(ctx context.Context, ready func() bool) error {
	if d.wait == nil {
		return ErrVirtualTime
	}
	return d.wait(ctx, func() bool { return ready() || d.Err() != nil })
}

// waitError is the error of a wait for what that has ended with err. If that is the end of ctx, it
// also says why ctx has ended.
func waitError(ctx context.Context, what string, err error) error {
	cause := context.Cause(ctx)
	if cause == nil || errors.Is(err, cause) {
		return fmt.Errorf("roce: waiting for %s: %w", what, err)
	}
	return fmt.Errorf("roce: waiting for %s: %w: %w", what, err, cause)
}

// serviceOf returns the service ID of a port, as rdma_cm defines it.
func serviceOf(datagram bool, port uint16) cm.ServiceID {
	if datagram {
		return cm.UDPService(port)
	}
	return cm.TCPService(port)
}

// listenGID returns the GID of a local address; the zero GID, which means all addresses, for an
// unspecified address.
func (d *Device) listenGID(a netip.Addr) (GID, error) {
	if !a.IsValid() || a.IsUnspecified() {
		return GID{}, nil
	}
	for _, e := range d.GIDs() {
		if e.Addr == a.Unmap().WithZone("") {
			return e.GID, nil
		}
	}
	return GID{}, fmt.Errorf("%w: %v is not an address of this interface", ErrNoGID, a)
}
