package stock

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/perf"
	"github.com/gorxe/gorxe/internal/perftest"
	"github.com/gorxe/gorxe/roce"
)

// Options are the properties of a test that perftest's protocol depends on, in addition to
// perf.Params.
type Options struct {
	All      bool // one run per size
	Duration bool // a run has a duration
	Infinite bool // endless runs; the server sees one run
	Gbits    bool // reports use perf.UnitGb
}

// Dial connects over TCP to the server at addr, gorxe or perftest, and starts a session.
func Dial(
	ctx context.Context, dev *roce.Device, gid device.GIDIndex, addr string, p *perf.Params,
	o Options,
) (perf.Client, error) {
	conn, err := exchange.DialFrom(ctx, dev, addr)
	if err != nil {
		return nil, err
	}
	c, err := open(ctx, dev, gid, conn, p, o)
	if err != nil {
		conn.Close()
	}
	return c, err
}

func open(
	ctx context.Context, dev *roce.Device, gid device.GIDIndex, conn *exchange.Conn, p *perf.Params,
	o Options,
) (perf.Client, error) {
	link := perftest.NewLink(conn.Stream())
	msgs, err := greet(ctx, conn, link)
	if err != nil {
		return nil, err
	}
	if msgs.Peer.Gorxe {
		return perf.NewClient(ctx, dev, conn, gid, p)
	}
	server := peer{link: link, local: conn.Local().AddrPort().Addr()}
	c, err := newClient(ctx, dev, gid, server, msgs, p, o)
	if err != nil {
		return nil, err // not a perf.Client that contains nil
	}
	return c, nil
}

// greet exchanges hellos. It announces gorxe to the server.
func greet(ctx context.Context, conn *exchange.Conn, link *perftest.Link) (
	*perftest.Client, error) {
	if err := perftest.SendHello(ctx, link, true); err != nil {
		return nil, err
	}
	switch first, err := conn.PeekByte(ctx, perftest.Timeout); {
	case errors.Is(err, exchange.ErrTimeout):
		return nil, perftest.ErrTimeout
	case err == nil && first == '{': // a busy gorxe server sends an error instead of its hello
		_, err := conn.Receive(ctx)
		return nil, err
	}
	return perftest.ReceiveHello(ctx, link)
}

// DialCM connects by rdma_cm (-R) to the server at addr and starts a session. Two gorxe sides use
// perftest's protocol, too.
func DialCM(
	ctx context.Context, dev *roce.Device, gid device.GIDIndex, addr netip.AddrPort, p *perf.Params,
	o Options,
) (perf.Client, error) {
	m, err := newMessageConn(dev, gid.Chosen(), peerQuiet)
	if err != nil {
		return nil, err
	}
	link := perftest.NewMessageLink(m)
	c, err := openCM(ctx, dev, gid, m, link, addr, p, o)
	if err != nil {
		link.Close()
		return nil, err
	}
	return c, nil
}

func openCM(
	ctx context.Context, dev *roce.Device, gid device.GIDIndex, m *messageConn, link *perftest.Link,
	addr netip.AddrPort, p *perf.Params, o Options,
) (*client, error) {
	if err := m.c.Dial(ctx, addr, roce.DialOptions{}); err != nil {
		return nil, cmError(addr, err)
	}
	msgs, err := perftest.Greet(ctx, link, false)
	if err != nil {
		return nil, err
	}
	// The server recognizes the requests for the queue pairs by the client's address, so they use
	// the same one.
	server := peer{link: link, local: m.c.CM().LocalAddr().Addr(), cm: addr}
	return newClient(ctx, dev, gid, server, msgs, p, o)
}

// cmError returns the error for a connection over rdma_cm that failed with err. If the host was not
// found, err has the advice.
func cmError(addr netip.AddrPort, err error) error {
	err = fmt.Errorf("cannot connect to %v, rdma_cm port %d: %w", addr.Addr(), addr.Port(), err)
	if !errors.Is(err, roce.ErrUnreachable) {
		err = fmt.Errorf("%w: check that a perftest server runs there with -R", err)
	}
	return err
}
