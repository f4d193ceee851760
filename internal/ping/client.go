package ping

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/osthread"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

// spinTime is how long the client polls for a reply before it sleeps. It is longer than a round
// trip.
const spinTime = time.Millisecond

// readyTime is how long before the next ping the client stops sleeping. Otherwise its own wake-up
// would be a part of the measured time: Go's scheduler takes the processor from a goroutine that
// has slept in a system call for 10 ms, and moves it to another thread.
const readyTime = 500 * time.Microsecond

// settleTime is how long both sides get to acknowledge the empty messages before a ping follows.
// Otherwise the ACK would leave together with the ping, and its cost would be in the measured time.
const settleTime = 50 * time.Microsecond

var (
	errBroken = errors.New("the connection failed")
	errData   = errors.New("the reply differs from what was sent: " +
		"the data was corrupted on the way, or the peer is not gorxe")
)

// Client is a connection to a server that answers pings. One goroutine may use it at a time.
type Client struct {
	// Replied is called for each reply, with the sequence number of the ping and the round-trip
	// time. wake is that of the message that woke the server before; 0: none.
	Replied func(seq int, rtt, wake time.Duration)

	conn *exchange.Conn
	s    *session.Session
	p    Params
	wcs  [sendDepth + slots]roce.WC
	// ends when the peer closes the connection or sends an error, with the cause
	closed context.Context
	stop   context.CancelCauseFunc

	sent      []message     // without a reply, oldest first; RC keeps their order
	next      int           // slot of the next ping
	woke      time.Duration // round-trip time of the latest wake-up; 0: none since the latest ping
	posted    int           // sends
	completed int           // sends
}

// message is a ping, or the empty message that wakes the server.
type message struct {
	ping  bool
	seq   int // of the ping
	slot  int
	bytes int
	at    time.Time
	woke  time.Duration
}

// Dial connects to the server at addr (host:port).
func Dial(ctx context.Context, dev *roce.Device, gid device.GIDIndex, addr string,
	p Params) (*Client, error) {
	conn, err := exchange.DialFrom(ctx, dev, addr)
	if err != nil {
		return nil, err
	}
	s, err := session.New(dev, conn.Local().AddrPort().Addr(), p.session(gid))
	if err != nil {
		conn.Close()
		return nil, err
	}
	c := &Client{conn: conn, s: s, p: p}
	if err := c.open(ctx); err != nil {
		if !errors.Is(err, exchange.ErrRemote) && !errors.Is(err, exchange.ErrGone) &&
			!errors.Is(err, cli.ErrInterrupted) {
			conn.Refuse(err)
		}
		conn.Close()
		return nil, errors.Join(err, s.Close())
	}
	c.closed, c.stop = context.WithCancelCause(ctx)
	go func() {
		_, err := conn.Await(c.closed, exchange.KindDone)
		c.stop(err)
	}()
	return c, nil
}

func (c *Client) open(ctx context.Context) error {
	if err := c.p.postRecvs(c.s); err != nil {
		return err
	}
	c.s.Expect(ctx, c.conn.Remote().AddrPort().Addr())
	qps, err := c.conn.Request(ctx, Service, c.p, c.s.Local())
	if err != nil {
		return err
	}
	return c.s.Connect(ctx, qps)
}

// Close closes the connection.
func (c *Client) Close() error {
	c.stop(nil)
	c.conn.Close()
	return c.s.Close()
}

// PathMTU returns the path MTU of the connection.
func (c *Client) PathMTU() roce.MTU { return c.s.PathMTU() }

// Outstanding returns the number of pings without a reply.
func (c *Client) Outstanding() (n int) {
	for i := range c.sent {
		if c.sent[i].ping {
			n++
		}
	}
	return n
}

// in returns the received data of a slot.
func (c *Client) in(slot int) []byte {
	return c.s.MR.Bytes()[c.s.In(0)+slot*c.p.slotBytes():][:c.p.Bytes]
}

// out returns the sent data of a slot.
func (c *Client) out(slot int) []byte {
	return c.s.MR.Bytes()[c.s.Out(0)+slot*c.p.slotBytes():][:c.p.Bytes]
}

// full reports whether another ping must wait for a reply or an acknowledgment.
func (c *Client) full() bool { return len(c.sent) == slots || c.posted-c.completed == sendDepth }

// WaitReady waits until a ping can be sent.
func (c *Client) WaitReady(ctx context.Context, deadline time.Time) error {
	for c.full() {
		now := time.Now()
		if !now.Before(deadline) {
			return fmt.Errorf("%w: %d pings without a reply", errBroken, len(c.sent))
		}
		if err := c.Wait(ctx, now.Add(spinTime), false); err != nil {
			return err
		}
	}
	return nil
}

// Prepare writes the data of the next ping, whose sequence number is seq. This may take longer than
// the server stays awake.
func (c *Client) Prepare(seq int) { fill(c.out(c.next), seq) }

// Wake wakes the server: it sends an empty message and waits for the reply, until the deadline,
// and then settleTime. A server that sleeps when a ping arrives takes several times as long as the
// rest of a round trip to wake up. Wake does nothing if a reply is outstanding, because the server
// is awake or does not answer, or if the send queue must be kept free for pings.
func (c *Client) Wake(ctx context.Context, deadline time.Time) error {
	if len(c.sent) > 0 || c.posted-c.completed >= slots {
		return nil
	}
	if err := c.post(message{}); err != nil {
		return err
	}
	if err := c.Wait(ctx, deadline, true); err != nil || len(c.sent) > 0 {
		return err
	}
	return c.Wait(ctx, time.Now().Add(settleTime), false)
}

// Send sends the ping that was prepared.
func (c *Client) Send(seq int) error {
	m := message{ping: true, seq: seq, slot: c.next, bytes: c.p.Bytes, woke: c.woke}
	c.next, c.woke = (c.next+1)%slots, 0
	return c.post(m)
}

func (c *Client) post(m message) error {
	wr := roce.SendWR{Op: roce.OpSend, Flags: roce.Signaled}
	if m.bytes > 0 {
		wr.SGEs = []roce.SGE{c.s.MR.SGE(c.s.Out(0)+m.slot*c.p.slotBytes(), m.bytes)}
	}
	m.at = time.Now()
	if err := c.s.QP.PostSend(wr); err != nil {
		return fmt.Errorf("%w: %w", errBroken, err)
	}
	c.s.Dev.Progress() // sends it before Wait prepares to wait
	c.posted++
	c.sent = append(c.sent, m)
	return nil
}

// fill fills b with pseudo-random data that differs for each ping.
func fill(b []byte, seq int) {
	src := rand.NewChaCha8([32]byte{byte(seq), byte(seq >> 8), byte(seq >> 16), byte(seq >> 24)})
	_, _ = src.Read(b) // never fails
}

// Wait handles replies until the time t. If idle is set, it returns as soon as no reply is
// outstanding. It polls at the beginning and at the end, and sleeps in between.
func (c *Client) Wait(ctx context.Context, t time.Time, idle bool) error {
	spinEnd := time.Now().Add(spinTime)
	ready := t.Add(-readyTime)
	until, cancel := context.WithDeadline(ctx, ready)
	defer cancel()
	defer context.AfterFunc(c.closed, cancel)()
	for !idle || len(c.sent) > 0 {
		n := c.s.CQ.Poll(c.wcs[:])
		if n == 0 {
			osthread.Yield() // the server may be on the same core
		}
		now := time.Now()
		if n == 0 && (len(c.sent) == 0 || now.After(spinEnd)) && now.Before(ready) {
			var err error
			n, err = c.s.CQ.Wait(until, c.wcs[:])
			now = time.Now()
			if err != nil && until.Err() == nil {
				return fmt.Errorf("%w: %w", errBroken, err)
			}
		}
		for i := range c.wcs[:n] {
			if err := c.complete(&c.wcs[i], now); err != nil {
				return fmt.Errorf("%w: %w", errBroken, err)
			}
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case c.closed.Err() != nil:
			return fmt.Errorf("%w: %w", errBroken, context.Cause(c.closed))
		case !now.Before(t):
			return nil
		}
	}
	return nil
}

func (c *Client) complete(wc *roce.WC, now time.Time) error {
	if err := endpoint.StatusError(wc); err != nil {
		return err
	}
	if wc.ID&recvFlag == 0 {
		c.completed++
		return nil
	}
	if len(c.sent) == 0 {
		return errData
	}
	m, slot := c.sent[0], int(wc.ID&^recvFlag)
	c.sent = c.sent[1:]
	if wc.ByteLen != uint32(m.bytes) ||
		!bytes.Equal(c.in(slot)[:m.bytes], c.out(m.slot)[:m.bytes]) {
		return errData
	}
	if rtt := now.Sub(m.at); m.ping {
		c.Replied(m.seq, rtt, m.woke)
	} else {
		c.woke = rtt
	}
	return c.p.postRecv(c.s, slot)
}
