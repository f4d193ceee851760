package rftp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/gorxe/gorxe/roce"
)

// Dial connects to the Listener at addr. Errors: ErrConfig, ErrMismatch, ErrPeer, ErrLost, or those
// of roce.Device.Dial.
func Dial(ctx context.Context, dev *roce.Device, addr netip.AddrPort, cfg Config) (*Conn, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	c, err := newConn(dev, cfg, cfg.MinBlockSize, nil)
	if err != nil {
		return nil, err
	}
	if err := c.dial(ctx, addr); err != nil {
		return nil, errors.Join(err, c.destroy())
	}
	return c, nil
}

func (c *Conn) dial(ctx context.Context, addr netip.AddrPort) error {
	o := roce.DialOptions{ConnectOptions: c.connect(true), PrivateData: c.own.putRequest(c.class)}
	rc, err := c.dev.Dial(ctx, addr, c.ctl, o)
	if err != nil {
		return refused(err, c.own)
	}
	c.rcs = []*roce.Conn{rc}
	a, id, err := parseReply(rc.PrivateData(), c.own)
	if err != nil {
		return err
	}
	if err := c.agree(a); err != nil {
		return err
	}
	// The listener would refuse a larger path MTU of a data QP, as that of the control QP.
	attr, err := c.ctl.Query()
	if err != nil {
		return err
	}
	c.mtu = attr.PathMTU
	c.rcs = append(c.rcs, make([]*roce.Conn, a.qps)...)
	errs := make([]error, a.qps)
	var wg sync.WaitGroup
	for i := range a.qps {
		dial := func() { c.rcs[1+i], errs[i] = c.dialData(ctx, addr, id, i) }
		if c.manual { // one goroutine drives the device
			dial()
			continue
		}
		wg.Go(dial)
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return c.start()
}

// dialData connects data QP i of connection id.
func (c *Conn) dialData(ctx context.Context, addr netip.AddrPort, id uint64, i int) (*roce.Conn,
	error) {
	q, err := c.createData(i)
	if err != nil {
		return nil, err
	}
	o := roce.DialOptions{ConnectOptions: c.connect(false), PrivateData: putData(id, i)}
	rc, err := c.dev.Dial(ctx, addr, q, o)
	var r *roce.RejectError
	if errors.As(err, &r) && r.Reason == roce.RejectConsumer {
		return nil, fmt.Errorf("%w: the peer does not know the connection of data QP %d, perhaps "+
			"because it was restarted: connect again", ErrLost, i)
	}
	if err != nil {
		return nil, fmt.Errorf("rftp: connect data QP %d: %w", i, err)
	}
	if kind, err := parseHeader(rc.PrivateData()); err != nil || kind != kindData {
		return nil, errors.Join(fmt.Errorf("%w: the reply to data QP %d", ErrPeer, i), rc.Close())
	}
	return rc, nil
}

// Params is what the peer must know to Join a connection. It marshals to JSON.
type Params struct {
	Limits  Limits
	Control roce.Endpoint
	Data    []roce.Endpoint
}

// Prepare creates one side of a connection without the connection manager. Both sides exchange the
// results of Local and call Join.
func Prepare(dev *roce.Device, cfg Config) (*Conn, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	c, err := newConn(dev, cfg, cfg.MinBlockSize, nil)
	if err != nil {
		return nil, err
	}
	if err := c.prepareData(); err != nil {
		return nil, errors.Join(err, c.destroy())
	}
	return c, nil
}

// prepareData creates as many data QPs as this side may need.
func (c *Conn) prepareData() error {
	a := agreement{c.own.Mode, c.own.DataQPs, c.own.MinBlockSize} // the most receives
	if err := c.agree(a); err != nil {
		return err
	}
	for i := range c.data {
		if _, err := c.createData(i); err != nil {
			return err
		}
	}
	return nil
}

// Local returns the argument of the peer's Join.
func (c *Conn) Local() Params {
	p := Params{Limits: c.own, Control: c.ctl.Local()}
	for _, q := range c.data {
		p.Data = append(p.Data, q.Local())
	}
	return p
}

// Join connects to a peer with the result of its Local. Errors: ErrMismatch, ErrPeer, and those of
// roce.QP.Connect.
func (c *Conn) Join(ctx context.Context, peer Params) error {
	a, err := agree(c.own, peer.Limits)
	if err != nil {
		return err
	}
	if len(peer.Data) < a.qps {
		return fmt.Errorf("%w: it has %d data QPs, agreed are %d", ErrPeer, len(peer.Data), a.qps)
	}
	c.agreed = a
	c.blocks, c.sources = blocksOf(c.cfg.Pool, a.size), blocksOf(c.cfg.SourcePool, a.size)
	if err := c.ctl.Connect(ctx, peer.Control, c.connect(true)); err != nil {
		return err
	}
	for i, q := range c.data {
		if i >= a.qps {
			if err := q.Close(); err != nil {
				return err
			}
			continue
		}
		if err := q.Connect(ctx, peer.Data[i], c.connect(false)); err != nil {
			return err
		}
	}
	c.data = c.data[:a.qps]
	return c.start()
}
