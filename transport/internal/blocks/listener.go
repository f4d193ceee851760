package blocks

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/accept"
)

// maxPending bounds the memory of connections that are being accepted, in bytes. It always suffices
// for one.
const maxPending = 512 << 20

// Receiver is the receiving side of a connection.
type Receiver interface{ Close() error }

// ListenConfig describes a Listener.
type ListenConfig[R Receiver] struct {
	Protocol *Protocol
	Have     Sizes // of the receivers
	Memory   int   // bytes that each receiver needs
	// Open accepts a request with a new receiver, which uses memory. After an error, no peer can
	// access memory.
	Open    func(ctx context.Context, q *roce.Request, memory *accept.Memory) (R, error)
	Peers   roce.PeerList              // who may connect
	Permits func(peer netip.Addr) bool // the same; nil: everyone
	// Refused, if set, is called concurrently for each request that is rejected or fails.
	Refused func(peer netip.AddrPort, err error)
}

// Listener accepts senders of one protocol. Its methods are safe for concurrent use.
type Listener[R Receiver] struct {
	c    ListenConfig[R]
	l    *roce.Listener
	a    *accept.Acceptor[R]
	pool *accept.Pool
}

// Listen makes dev accept senders at addr.
func Listen[R Receiver](dev *roce.Device, addr netip.AddrPort,
	c ListenConfig[R]) (*Listener[R], error) {
	l, err := accept.Listen(dev, addr, accept.ListenOptions(c.Peers, c.Permits))
	if err != nil {
		return nil, err
	}
	b := &Listener[R]{c: c, l: l, pool: accept.NewPool(dev, c.Memory)}
	b.a = accept.New(accept.Config[R]{Listener: l, Check: b.check, Open: b.open,
		Refused: c.Refused, Max: maxPending / c.Memory})
	return b, nil
}

// Addr returns the address that the Listener listens on.
func (l *Listener[R]) Addr() netip.AddrPort { return l.l.Addr() }

// Close stops listening. Receivers that Accept has returned continue.
func (l *Listener[R]) Close() error { return errors.Join(l.a.Close(), l.pool.Close()) }

// Accept waits for the next sender. Its error is that of ctx or of the roce.Listener.
func (l *Listener[R]) Accept(ctx context.Context) (R, error) { return l.a.Accept(ctx) }

// check rejects a request of another protocol, or with other sizes.
func (l *Listener[R]) check(q *roce.Request) error {
	want, err := l.c.Protocol.Parse(q.PrivateData())
	if err == nil {
		err = l.c.Protocol.Agree(l.c.Have, want)
	}
	if err == nil {
		return nil
	}
	return errors.Join(fmt.Errorf("%w (asked by %v)", err, q.RemoteAddr()),
		q.Reject(l.c.Protocol.Put(nil, l.c.Have)))
}

func (l *Listener[R]) open(ctx context.Context, q *roce.Request) (r R, err error) {
	memory, err := l.pool.Take()
	if err != nil {
		return r, errors.Join(err, q.RejectWith(roce.RejectNoResources, nil))
	}
	if r, err = l.c.Open(ctx, q, memory); err != nil {
		return r, errors.Join(err, memory.Return())
	}
	return r, nil
}
