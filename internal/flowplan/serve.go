package flowplan

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"sync"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/flow"
)

// ServeConfig describes a server of Serve.
type ServeConfig struct {
	Port uint16 // RDMA port of the first flow
	// Permits reports whether a peer may send; nil: all may.
	Permits func(peer netip.Addr) bool
	// Refused, if set, is called for each request that is refused, concurrently.
	Refused func(peer netip.AddrPort, err error)
	// Listening, if set, is called when all ports are open. Its error ends Serve.
	Listening func() error
	// Ended, if set, is called for each sender that has ended, concurrently.
	Ended func(Received)
}

// Received is what one sender has sent.
type Received struct {
	Flow     string
	Peer     netip.Addr
	Messages uint64
	Bytes    uint64
	Err      error // nil if the sender has disconnected
}

// Serve receives the messages of p on dev and discards them, until ctx ends. Each flow has one
// sender at a time.
func Serve(ctx context.Context, p *Plan, dev *roce.Device, c ServeConfig) (err error) {
	layer, err := flow.NewLayer(dev, layerConfig(p))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, layer.Close()) }()
	var listeners []*flow.Listener
	defer func() {
		for _, l := range listeners {
			err = errors.Join(err, l.Close())
		}
	}()
	for i, f := range p.Flows {
		l, err := layer.Listen(netip.AddrPortFrom(netip.Addr{}, c.Port+uint16(i)),
			flow.ReceiverConfig{Permits: c.Permits, Refused: c.Refused,
				Channel: flow.ChannelConfig{Name: f.Name, Size: f.Size, Slots: slots,
					Overflow: flow.Refuse}})
		if err != nil {
			return err
		}
		listeners = append(listeners, l)
	}
	if c.Listening != nil {
		if err := c.Listening(); err != nil {
			return err
		}
	}
	var wg sync.WaitGroup
	errs := make([]error, len(listeners))
	for i, l := range listeners {
		wg.Go(func() { errs[i] = serveFlow(ctx, l, p.Flows[i].Name, c.Ended) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// serveFlow serves one sender after the other.
func serveFlow(ctx context.Context, l *flow.Listener, name string, ended func(Received)) error {
	for {
		r, err := l.Accept(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		got := Received{Flow: name, Peer: r.Remote()}
		for {
			m, err := r.Receive(ctx)
			if err != nil {
				if err != io.EOF && ctx.Err() == nil {
					got.Err = err
				}
				break
			}
			got.Messages++
			got.Bytes += uint64(len(m.Data))
			m.Release()
		}
		got.Err = errors.Join(got.Err, r.Close())
		if ended != nil {
			ended(got)
		}
	}
}
