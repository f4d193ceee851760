package flow

import (
	"context"
	"errors"
	"net/netip"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/accept"
)

// maxPending bounds the memory of connections that are being accepted, in bytes. It always suffices
// for one.
const maxPending = 512 << 20

// Listener accepts senders. Its methods are safe for concurrent use. It needs real time.
type Listener struct {
	l    *roce.Listener
	a    *accept.Acceptor[*Receiver]
	pool *accept.Pool
}

// Listen makes the layer accept senders at addr. Each gets its own channel. In virtual time it
// returns roce.ErrVirtualTime: use roce.Device.Listen and AcceptRequest there.
func (l *Layer) Listen(addr netip.AddrPort, c ReceiverConfig) (*Listener, error) {
	if err := c.Channel.check(); err != nil {
		return nil, err
	}
	rl, err := accept.Listen(l.dev, addr, accept.ListenOptions(c.Peers, c.Permits))
	if err != nil {
		return nil, err
	}
	need := c.Channel.memory()
	n := &Listener{l: rl, pool: accept.NewPool(l.dev, need)}
	n.a = accept.New(accept.Config[*Receiver]{Listener: rl, Check: checkRequest,
		Open: func(ctx context.Context, q *roce.Request) (*Receiver, error) {
			return n.open(ctx, l, q, c)
		},
		Refused: c.Refused, Max: maxPending / need})
	return n, nil
}

// open accepts a request with memory of the pool.
func (n *Listener) open(ctx context.Context, l *Layer, q *roce.Request, c ReceiverConfig) (
	*Receiver, error) {
	memory, err := n.pool.Take()
	if err != nil {
		return nil, errors.Join(err, q.RejectWith(roce.RejectNoResources, nil))
	}
	mr, err := l.pd.RegisterMR(memory.Bytes(), roce.LocalWrite|roce.RemoteWrite)
	if err != nil {
		return nil, errors.Join(err, q.RejectWith(roce.RejectNoResources, nil), memory.Return())
	}
	r, err := l.accept(ctx, q, c, mr)
	if err != nil {
		return nil, errors.Join(err, memory.Return())
	}
	r.memory = memory
	return r, nil
}

// Addr returns the address that the Listener listens on.
func (n *Listener) Addr() netip.AddrPort { return n.l.Addr() }

// Accept waits for the next sender. Its error is that of ctx or of the roce.Listener. Requests of
// other protocols are rejected, and several requests are answered at a time, so that a sender that
// does not exist delays no others; see ReceiverConfig.Refused.
func (n *Listener) Accept(ctx context.Context) (*Receiver, error) { return n.a.Accept(ctx) }

// Close stops listening. Receivers that Accept has returned continue.
func (n *Listener) Close() error { return errors.Join(n.a.Close(), n.pool.Close()) }
