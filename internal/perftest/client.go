package perftest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/roce"
)

const (
	cycleBuffer = 4096 // the page size of most hosts
	cacheLine   = 64
	maxCycle    = 64 << 20 // largest size that is accepted from a peer
)

// Client is the client side of the protocol. One goroutine calls its methods in this order:
// AgreeMTU, ExchangeKeys, Start, then BeforeRun and AfterRun for each run, and End.
type Client struct {
	Peer Hello

	l    *Link
	test Test
	own  []Key
	peer []Key // the first key of each queue pair
}

// Greet exchanges hellos. marked tells the peer that this side is a gorxe. If the peer is a gorxe
// too, both sides continue with the protocol of package exchange.
func Greet(ctx context.Context, l *Link, marked bool) (*Client, error) {
	if err := SendHello(ctx, l, marked); err != nil {
		return nil, err
	}
	return ReceiveHello(ctx, l)
}

// SendHello is the first half of Greet.
func SendHello(ctx context.Context, l *Link, marked bool) error {
	return l.send(ctx, hello(marked))
}

// ReceiveHello is the second half of Greet.
func ReceiveHello(ctx context.Context, l *Link) (*Client, error) {
	h, err := l.receiveHello(ctx)
	if err != nil {
		return nil, err
	}
	return &Client{Peer: h, l: l}, nil
}

// AgreeMTU exchanges path MTUs and returns the smaller one. mtu is the local one.
func (c *Client) AgreeMTU(ctx context.Context, mtu roce.MTU) (roce.MTU, error) {
	for _, v := range [...]uint32{cycleBuffer, cacheLine} {
		b, err := c.exchange(ctx, kindInt, binary.BigEndian.AppendUint32(nil, v))
		if err != nil {
			return 0, err
		}
		if err := checkInt(b); err != nil {
			return 0, err
		}
	}
	b, err := c.exchange(ctx, kindMTU, mtuText(mtu))
	if err != nil {
		return 0, err
	}
	return agreeMTU(mtu, b)
}

// ExchangeKeys sends the keys of the local queue pairs and returns those of the peer's, one for
// each. The caller connects the queue pairs before it calls Start.
func (c *Client) ExchangeKeys(ctx context.Context, t Test, own []Key) ([]Key, error) {
	c.test, c.own = t, own
	for i := range own {
		k, err := c.key(ctx, i)
		if err != nil {
			return nil, err
		}
		for j := range c.peer {
			if c.peer[j].QPN == k.QPN {
				return nil, fmt.Errorf("%w: QPN %#x belongs to two queue pairs: "+
					"use the same number of queue pairs (-q) on both sides", ErrProtocol,
					uint32(k.QPN))
			}
		}
		c.peer = append(c.peer, k)
	}
	return c.peer, nil
}

// ExchangeBlankKeys is a barrier for sides that connected by rdma_cm. Call it after AgreeMTU and
// again when all queue pairs are connected.
func (c *Client) ExchangeBlankKeys(ctx context.Context) error {
	b, err := c.exchange(ctx, kindKey, c.l.encode(&Key{}))
	if err == nil {
		_, err = c.l.decode(b)
	}
	return err
}

// Start performs the steps up to the point where the server is ready for the first run.
func (c *Client) Start(ctx context.Context) error {
	_, err := c.perform(ctx, c.test.steps().start, nil)
	return err
}

// BeforeRun performs the steps before a run.
func (c *Client) BeforeRun(ctx context.Context) error {
	_, err := c.perform(ctx, c.test.steps().before, nil)
	return err
}

// AfterRun performs the steps after a run. It returns the server's report, or nil if the test
// exchanges no reports there.
func (c *Client) AfterRun(ctx context.Context, own *Report) (*Report, error) {
	return c.perform(ctx, c.test.steps().after, own)
}

// End performs the steps after the last run. own is the report of that run.
func (c *Client) End(ctx context.Context, own *Report) error {
	_, err := c.perform(ctx, c.test.steps().end, own)
	return err
}

func (c *Client) perform(ctx context.Context, list []step, own *Report) (peer *Report, err error) {
	for _, s := range list {
		switch s {
		case stepSync:
			_, err = c.key(ctx, 0)
		case stepKeys:
			for i := 0; i < len(c.own) && err == nil; i++ {
				_, err = c.key(ctx, i)
			}
		case stepReport:
			peer, err = c.report(ctx, own)
		}
		if err != nil {
			return nil, err
		}
	}
	return peer, nil
}

func (c *Client) key(ctx context.Context, i int) (Key, error) {
	b, err := c.exchange(ctx, kindKey, c.l.encode(&c.own[i]))
	if err != nil {
		return Key{}, err
	}
	k, err := c.l.decode(b)
	if err == nil && i < len(c.peer) && k.QPN != c.peer[i].QPN {
		err = fmt.Errorf("%w: QPN %#x instead of %#x: "+
			"use the same test and number of queue pairs (-q) on both sides", ErrProtocol,
			uint32(k.QPN), uint32(c.peer[i].QPN))
	}
	return k, err
}

func (c *Client) report(ctx context.Context, own *Report) (*Report, error) {
	var got [reportValues]uint64
	for i, v := range own.values() {
		b, err := c.exchange(ctx, kindValue, encodeValue(v))
		if err != nil {
			return nil, err
		}
		got[i] = binary.BigEndian.Uint64(b)
	}
	peer := new(Report)
	peer.read(got)
	return peer, nil
}

func (c *Client) exchange(ctx context.Context, k kind, b []byte) ([]byte, error) {
	if err := c.l.send(ctx, b); err != nil {
		return nil, err
	}
	_, got, err := c.l.receive(ctx, k, c.l.timeout)
	if errors.Is(err, ErrTimeout) {
		err = fmt.Errorf("%w: use the same test and flags on both sides", err)
	}
	return got, err
}

func checkInt(b []byte) error {
	if v := int32(binary.BigEndian.Uint32(b)); v < 1 || v > maxCycle {
		return fmt.Errorf("%w: page or cache line of %d bytes", ErrProtocol, v)
	}
	return nil
}

func mtuText(m roce.MTU) []byte { return []byte{'0' + m.Enum(), 0} }

func plausibleMTU(got []byte) error {
	if got[0] < '0' || got[0] > '9' || (len(got) > 1 && got[1] != 0) {
		return ErrGarbage
	}
	return nil
}

// agreeMTU parses the peer's path MTU and returns the smaller one.
func agreeMTU(own roce.MTU, b []byte) (roce.MTU, error) {
	peer := bth.MTUFromEnum(b[0] - '0')
	if !peer.Valid() {
		return 0, fmt.Errorf("%w: path MTU %q", ErrProtocol, b[:1])
	}
	return min(own, peer), nil
}
