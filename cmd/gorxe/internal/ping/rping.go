package ping

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/rping"
	"github.com/gorxe/gorxe/roce"
)

// minDialTime is the shortest time limit for a connection. A lost message is repeated after a
// second.
const minDialTime = 5 * time.Second

// runRping pings an rping server.
func (p *pinger) runRping(ctx context.Context) (err error) {
	f := p.f
	p.sum.Host = p.peer.Host
	if n := p.sum.Bytes; n < 1 || n > rping.MaxSize {
		return cli.Usagef("rping's messages have 1 to %d bytes, not %d: choose another size (-s)",
			rping.MaxSize, n)
	}
	c, err := p.dialRping(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	p.print("RDMA ping %s (%v): %d bytes by rping over %s (%s)\n",
		p.sum.Host, p.peer.Addr, p.sum.Bytes, p.sum.Interface, p.sum.Datapath)
	for seq := 1; f.count.N == 0 || seq <= f.count.N; seq++ {
		start := time.Now()
		if err = p.rpingOnce(ctx, c, seq); err != nil {
			break
		}
		if seq == f.count.N {
			break
		}
		if !f.longPauses() {
			if !sleep(ctx, time.Until(start.Add(f.interval.D))) {
				break
			}
			continue
		}
		if err = c.Close(); err != nil || !sleep(ctx, time.Until(start.Add(f.interval.D))) {
			break
		}
		next, e := p.dialRping(ctx)
		if err = e; err != nil {
			break
		}
		c = next
	}
	if ctx.Err() != nil {
		err = nil
	}
	return errors.Join(err, p.finish())
}

// dialRping connects to the server.
func (p *pinger) dialRping(ctx context.Context) (*rping.Client, error) {
	port := p.f.port.N
	if port == exchange.DefaultPort {
		port = rping.DefaultPort
	}
	ctx, cancel := context.WithTimeout(ctx, max(p.f.timeout.D, minDialTime))
	defer cancel()
	c, err := rping.Dial(ctx, p.dev, p.f.device.GIDIndex.Chosen(), p.addr(port), p.sum.Bytes)
	if err != nil {
		return nil, fmt.Errorf("rping %v, port %d: %w", p.peer.Addr, port, dialError(err))
	}
	return c, nil
}

// dialError returns what to report for an error of rping.Dial. It keeps the reason if the time has
// passed before a request could be sent.
func dialError(err error) error {
	if errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, roce.ErrUnreachable) {
		return roce.ErrNoAnswer
	}
	return err
}

func (p *pinger) rpingOnce(ctx context.Context, c *rping.Client, seq int) error {
	limited, cancel := context.WithTimeout(ctx, p.f.timeout.D)
	defer cancel()
	p.sum.Sent++
	start := time.Now()
	if err := c.Ping(limited); err != nil {
		if ctx.Err() != nil {
			p.sum.Sent--
			return err
		}
		return fmt.Errorf("seq=%d: %w", seq, err)
	}
	p.replied(seq, time.Since(start), 0)
	return nil
}
