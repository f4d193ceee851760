package rping

import (
	"bytes"
	"context"
	"errors"
	"net/netip"

	"github.com/gorxe/gorxe/roce"
)

// ErrData: what came back is not what was sent.
var ErrData = errors.New("rping: the text that came back differs: data was corrupted on the way")

// Client is a connection to an rping server.
type Client struct {
	e    *end
	conn *roce.Conn
	seq  int
}

// Dial connects to an rping server. Texts have size bytes, 1 to MaxSize.
func Dial(ctx context.Context, dev *roce.Device, addr netip.AddrPort, size int) (*Client, error) {
	e, err := newEnd(dev, size)
	if err != nil {
		return nil, err
	}
	// rping's own numbers: one READ at a time.
	conn, err := dev.Dial(ctx, addr, e.qp, roce.DialOptions{ConnectOptions: roce.ConnectOptions{MaxRdAtomic: 1, MaxDestRdAtomic: 1}})
	if err != nil {
		return nil, errors.Join(err, e.close())
	}
	return &Client{e: e, conn: conn}, nil
}

// Close disconnects.
func (c *Client) Close() error { return errors.Join(c.conn.Close(), c.e.close()) }

// Ping sends one text there and back and compares it.
func (c *Client) Ping(ctx context.Context) error {
	e := c.e
	fill(e.out(), c.seq)
	clear(e.back())
	c.seq++
	for _, off := range []int{textOff, textOff + e.size} {
		if err := e.say(ctx, buffer{e.mr.Addr() + uint64(off), e.mr.RKey(), uint32(e.size)}); err != nil {
			return err
		}
		if _, err := e.hear(ctx); err != nil {
			return err
		}
	}
	if !bytes.Equal(e.out(), e.back()) {
		return ErrData
	}
	return nil
}

// fill writes rping's text: letters that go on from ping to ping, and a zero at the end.
func fill(b []byte, seq int) {
	const first, last = 'A', 'z'
	n := copy(b, "rdma-ping: ")
	for i := range b[n:] {
		b[n+i] = byte(first + (seq+i)%(last-first+1))
	}
	b[len(b)-1] = 0
}
