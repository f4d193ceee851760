package rping

import (
	"bytes"
	"context"
	"errors"
	"net/netip"

	"github.com/gorxe/gorxe/roce"
)

// ErrData means that the returned text differs from the text that was sent.
var ErrData = errors.New("rping: the returned text differs: the data was corrupted on the way")

// Client is a connection to an rping server. One goroutine may use it at a time.
type Client struct {
	side *side
	seq  int
}

// Dial connects to the rping server at addr, from the GID with an index; if gid is nil, the route
// selects it. The texts have size bytes, 1 to MaxSize.
func Dial(ctx context.Context, dev *roce.Device, gid *int, addr netip.AddrPort, size int) (
	*Client, error) {
	s, err := newSide(dev, gid, size, 0)
	if err != nil {
		return nil, err
	}
	// Like rping's client, allow one READ at a time.
	o := roce.DialOptions{ConnectOptions: roce.ConnectOptions{MaxRdAtomic: 1, MaxDestRdAtomic: 1}}
	if err := s.Conn.Dial(ctx, addr, o); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return &Client{side: s}, nil
}

// Close disconnects.
func (c *Client) Close() error { return c.side.Close() }

// Ping sends one text to the server and back and compares it.
func (c *Client) Ping(ctx context.Context) error {
	s := c.side
	fill(s.source(), c.seq)
	clear(s.sink())
	c.seq++
	for _, offset := range []int{s.Memory(), s.Memory() + s.size} {
		b := buffer{s.MR.Addr() + uint64(offset), s.MR.RKey(), uint32(s.size)}
		if err := s.announce(ctx, b); err != nil {
			return err
		}
		if _, err := s.receive(ctx); err != nil {
			return err
		}
	}
	if !bytes.Equal(s.source(), s.sink()) {
		return ErrData
	}
	return nil
}

// fill writes rping's text: letters that start one further for each ping, and a final zero.
func fill(b []byte, seq int) {
	const first, last = 'A', 'z'
	n := copy(b, "rdma-ping: ")
	for i := range b[n:] {
		b[n+i] = byte(first + (seq+i)%(last-first+1))
	}
	b[len(b)-1] = 0
}
