package indirect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/indirect/core"
)

// Conn is a connection to a peer's Endpoint. Both sides may start transfers. Data uses an RC QP of
// the connection; requests and answers use the endpoints' UD QPs.
type Conn struct {
	ep    *Endpoint
	index int
	// distinguishes completions of this connection from those of an earlier one with the same index
	gen  uint16
	own  Params // sent to the peer
	peer Params

	qp    *roce.QP
	rc    *roce.Conn // nil without the connection manager
	ah    *roce.AH
	slots *roce.MR // granted to the peer; nil: none

	m        *core.Machine // nil until joined
	up       bool
	from     netip.Addr // of an accepted connection: it counts in Endpoint.peers
	err      error      // why the connection has ended
	asked    []Request  // by entry, like the next two fields
	attempts []uint32   // how often the Host was asked for the entry
	regions  []Region
	waiters  []*waiter
}

// slotsAt is the address of every connection's first slot as its peer sees it. Keys distinguish the
// regions, and no peer learns the addresses of this process.
const slotsAt = 1 << 32

// waiter is a caller of Write or Read.
type waiter struct {
	done   chan struct{}
	status Status
	over   bool
}

// Prepare creates a connection's local side, for peers that do not use the connection manager. The
// caller sends the results of Local to the peer and passes the peer's to Join.
func (e *Endpoint) Prepare() (*Conn, error) { return e.prepare(netip.Addr{}) }

// prepare is Prepare for a connection that the peer from asked for, unless from is invalid.
func (e *Endpoint) prepare(from netip.Addr) (*Conn, error) {
	c := &Conn{
		ep: e, from: from, asked: make([]Request, e.cfg.Entries), attempts: make([]uint32, e.cfg.Entries),
		regions: make([]Region, e.cfg.Entries), waiters: make([]*waiter, e.cfg.Entries),
	}
	e.mu.Lock()
	err := c.enter()
	e.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if err := c.open(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// enter takes a slot in the table and a share of the indirect buffer. The caller holds the lock.
func (c *Conn) enter() error {
	e := c.ep
	if e.closed {
		return ErrClosed
	}
	for i := range e.conns {
		if e.conns[i] != nil {
			continue
		}
		if c.from.IsValid() && !e.peers.Take(c.from, 1) {
			return ErrTooManyPeerConns
		}
		c.index, c.gen = i, uint16(e.cfg.Rand())
		c.own = Params{
			QPN: e.ud.QPN(), QKey: e.qkey, Token: uint32(e.cfg.Rand())&^0xff | uint32(i),
			Entries: uint16(e.cfg.Entries), Segment: uint32(e.cfg.Segment),
			Slots: uint16(min(e.cfg.Slots, e.free/e.cfg.MaxTransfer)),
			Slot:  uint32(e.cfg.MaxTransfer),
		}
		e.free -= int(c.own.Slots) * e.cfg.MaxTransfer
		e.conns[i] = c
		return nil
	}
	return ErrTooManyConns
}

func (c *Conn) open() (err error) {
	e := c.ep
	if c.own.Slots > 0 {
		c.slots, err = e.pd.AllocMR(int(c.own.Slots)*e.cfg.MaxTransfer,
			roce.LocalWrite|roce.RemoteWrite, roce.WithIOVA(slotsAt))
		if err != nil {
			return err
		}
		r := c.slots.Remote()
		c.own.Base, c.own.RKey = r.Addr, r.RKey
	}
	c.qp, err = e.dev.CreateQP(e.pd,
		roce.QPConfig{SendCQ: e.cq, SendDepth: 2 * core.Window, RecvDepth: recvDepth,
			Class: e.cfg.RC.Class})
	if err != nil {
		return err
	}
	for range recvDepth {
		if err := c.qp.PostRecv(roce.RecvWR{ID: wrID(wrData, c)}); err != nil {
			return err
		}
	}
	return nil
}

// Local returns the arguments for the peer's Join.
func (c *Conn) Local() (roce.Endpoint, Params) { return c.qp.Local(), c.own }

// Join connects to a peer with the results of its Local. Errors: ErrMismatch and those of roce.
func (c *Conn) Join(ctx context.Context, remote roce.Endpoint, peer Params) error {
	if err := peer.fits(&c.own); err != nil {
		return err
	}
	if err := c.qp.Connect(ctx, remote, c.ep.cfg.RC); err != nil {
		return err
	}
	return c.join(ctx, remote.GID, &peer)
}

// join starts the protocol.
func (c *Conn) join(ctx context.Context, gid roce.GID, peer *Params) error {
	ah, err := c.ep.dev.CreateAH(ctx, roce.AHAttr{Remote: gid,
		PathOptions: roce.PathOptions{Class: c.ep.cfg.RC.Class}})
	if err != nil {
		return err
	}
	cfg := &c.ep.cfg
	m, err := core.New(core.Config{
		Dynamic: !cfg.Traditional, Entries: cfg.Entries, Timeout: core.Time(cfg.Timeout),
		Patience: core.Time(cfg.Patience), Silence: core.Time(cfg.Silence),
		PeerToken: peer.Token, PeerSlots: int(peer.Slots), PeerSlot: peer.Slot, PeerBase: peer.Base,
		PeerKey: uint32(peer.RKey),
		Slots:   int(c.own.Slots), Slot: c.own.Slot, Segment: c.own.Segment,
		FirstTID: TID(cfg.Rand()),
	})
	if err != nil {
		return errors.Join(fmt.Errorf("%w: %w", ErrPeer, err), ah.Close())
	}
	c.ep.mu.Lock()
	defer c.ep.mu.Unlock()
	if c.err != nil {
		return errors.Join(c.err, ah.Close())
	}
	c.m, c.ah, c.peer, c.up = m, ah, *peer, true
	return nil
}

// Dial connects to an Endpoint that listens at addr, through the connection manager.
func (e *Endpoint) Dial(ctx context.Context, addr netip.AddrPort) (*Conn, error) {
	c, err := e.Prepare()
	if err != nil {
		return nil, err
	}
	if err := c.dial(ctx, addr); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Conn) dial(ctx context.Context, addr netip.AddrPort) error {
	rc, err := c.ep.dev.Dial(ctx, addr, c.qp,
		roce.DialOptions{ConnectOptions: c.ep.cfg.RC, PrivateData: c.own.append(nil)})
	if err != nil {
		return err
	}
	if err := c.hold(rc); err != nil {
		return err
	}
	var peer Params
	if err := peer.parse(rc.PrivateData()); err != nil {
		return err
	}
	if err := peer.fits(&c.own); err != nil {
		return err
	}
	return c.join(ctx, gidOf(addr), &peer)
}

// hold keeps the connection manager's connection. Another goroutine that drives the endpoint may
// already use it or may have ended the connection.
func (c *Conn) hold(rc *roce.Conn) error {
	c.ep.mu.Lock()
	ended := c.err
	if ended == nil {
		c.rc = rc
	}
	c.ep.mu.Unlock()
	if ended != nil {
		return errors.Join(ended, rc.Close())
	}
	return nil
}

// Err returns why the connection has ended, nil while it lasts.
func (c *Conn) Err() error {
	c.ep.mu.Lock()
	defer c.ep.mu.Unlock()
	return c.err
}

// Peer returns the parameters that the peer sent, such as the slots it granted.
func (c *Conn) Peer() Params {
	c.ep.mu.Lock()
	defer c.ep.mu.Unlock()
	return c.peer
}

// Counters returns the counters of the connection.
func (c *Conn) Counters() core.Counters {
	c.ep.mu.Lock()
	defer c.ep.mu.Unlock()
	if c.m == nil {
		return core.Counters{}
	}
	return c.m.Counters
}

// Close ends the connection. Outstanding transfers end with StatusLost. Data that the peer has
// parked here is dropped. Closing twice has no effect.
func (c *Conn) Close() error {
	c.ep.mu.Lock()
	gone := c.down(ErrClosed)
	c.ep.mu.Unlock()
	if !gone {
		return nil
	}
	return c.dispose()
}

// down ends the connection for its users. It returns false if that happened before. The caller
// holds the lock. dispose frees the verbs objects later, without the lock.
func (c *Conn) down(why error) bool {
	e := c.ep
	if c.err != nil {
		return false
	}
	c.err, c.up = why, false
	if c.m != nil {
		c.m.Fail(e.now())
		c.pump(e.now())
		e.events.past.Add(&c.m.Counters)
	}
	e.events.push(Event{Kind: Down, Conn: c, Err: why})
	return true
}

// dispose frees the verbs objects of the connection, then its share of the buffer, in this order,
// so that no packet of the old peer reaches memory of the next one.
func (c *Conn) dispose() error {
	var errs []error
	c.ep.mu.Lock()
	rc := c.rc
	c.ep.mu.Unlock()
	if rc != nil {
		errs = append(errs, rc.Close())
	}
	if c.qp != nil {
		errs = append(errs, c.qp.Close())
	}
	if c.slots != nil {
		errs = append(errs, c.slots.Close())
	}
	if c.ah != nil {
		errs = append(errs, c.ah.Close())
	}
	e := c.ep
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.conns[c.index] == c {
		e.conns[c.index] = nil
		if c.from.IsValid() {
			e.peers.Return(c.from, 1)
		}
		e.free += int(c.own.Slots) * e.cfg.MaxTransfer
	}
	return errors.Join(errs...)
}

func gidOf(a netip.AddrPort) roce.GID { return roce.GID(a.Addr().As16()) }
