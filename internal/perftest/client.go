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
	cycleBuffer = 4096 // a page of most hosts
	cacheLine   = 64
	maxCycle    = 64 << 20 // what a peer may ask for
)

// Client is the client's end. Its methods are for one goroutine, in this order:
// Agree, Keys, Start, (BeforeRun, AfterRun) for each run, End.
type Client struct {
	Peer Hello

	l    *Link
	test Test
	own  []Key
	peer []Key // as told first
}

// Greet tells the versions, and if marked also that this is a gorxe. If the peer is one, too, the
// exchange ends here and package oob's begins.
func Greet(ctx context.Context, l *Link, marked bool) (*Client, error) {
	if err := Announce(ctx, l, marked); err != nil {
		return nil, err
	}
	return Hear(ctx, l)
}

// Announce is Greet's first half: it tells our version.
func Announce(ctx context.Context, l *Link, marked bool) error { return l.send(ctx, hello(marked)) }

// Hear is Greet's second half: it hears the peer's version.
func Hear(ctx context.Context, l *Link) (*Client, error) {
	_, b, err := l.receive(ctx, kindHello, l.timeout)
	if err != nil {
		return nil, err
	}
	h, err := parseHello(b)
	if err != nil {
		return nil, err
	}
	return &Client{Peer: h, l: l}, nil
}

// Agree settles the path MTU: the smaller of ours and the peer's.
func (c *Client) Agree(ctx context.Context, mtu roce.MTU) (roce.MTU, error) {
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

// Keys tells our queue pairs and returns the peer's, one for each of ours. The
// caller connects them before Start.
func (c *Client) Keys(ctx context.Context, t Test, own []Key) ([]Key, error) {
	c.test, c.own = t, own
	for i := range own {
		k, err := c.key(ctx, i)
		if err != nil {
			return nil, err
		}
		for j := range c.peer {
			if c.peer[j].QPN == k.QPN {
				return nil, fmt.Errorf("%w: QPN %#x for two queue pairs: start both ends with the same number of them (-q)", ErrProtocol, uint32(k.QPN))
			}
		}
		c.peer = append(c.peer, k)
	}
	return c.peer, nil
}

// Blank is a barrier of its own kind: where the ends have met by rdma_cm, one comes after Agree, and another one when
// all queue pairs are connected.
func (c *Client) Blank(ctx context.Context) error {
	b, err := c.exchange(ctx, kindKey, c.l.encode(&Key{}))
	if err == nil {
		_, err = c.l.decode(b)
	}
	return err
}

// Start goes on until the server is ready for the first run.
func (c *Client) Start(ctx context.Context) error {
	_, err := c.take(ctx, c.test.steps().start, nil)
	return err
}

// BeforeRun comes in front of every run.
func (c *Client) BeforeRun(ctx context.Context) error {
	_, err := c.take(ctx, c.test.steps().before, nil)
	return err
}

// AfterRun comes after every run. It returns the server's report if the test has them there, else nil.
func (c *Client) AfterRun(ctx context.Context, own *Report) (*Report, error) {
	return c.take(ctx, c.test.steps().after, own)
}

// End comes after the last run, of which own is the report.
func (c *Client) End(ctx context.Context, own *Report) error {
	_, err := c.take(ctx, c.test.steps().end, own)
	return err
}

func (c *Client) take(ctx context.Context, list []step, own *Report) (peer *Report, err error) {
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
		err = fmt.Errorf("%w: QPN %#x where %#x was due: start both ends with the same test and number of queue pairs (-q)",
			ErrProtocol, uint32(k.QPN), uint32(c.peer[i].QPN))
	}
	return k, err
}

func (c *Client) report(ctx context.Context, own *Report) (*Report, error) {
	var got [reportWords]uint64
	for i, v := range own.words() {
		b, err := c.exchange(ctx, kindWord, word(v))
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
		err = fmt.Errorf("%w: start both ends with the same test and flags", err)
	}
	return got, err
}

func checkInt(b []byte) error {
	if v := int32(binary.BigEndian.Uint32(b)); v < 1 || v > maxCycle {
		return fmt.Errorf("%w: a page or a cache line of %d bytes", ErrProtocol, v)
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

// agreeMTU reads the peer's path MTU and takes the smaller one.
func agreeMTU(own roce.MTU, b []byte) (roce.MTU, error) {
	peer := bth.MTUFromEnum(b[0] - '0')
	if !peer.Valid() {
		return 0, fmt.Errorf("%w: %q for a path MTU", ErrProtocol, b[:1])
	}
	return min(own, peer), nil
}
