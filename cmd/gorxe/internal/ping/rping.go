package ping

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/rping"
	"github.com/gorxe/gorxe/roce"
)

// rping pings a peer that speaks rping's protocol.
func (p *pinger) rping(ctx context.Context) (err error) {
	f := p.f
	port := f.port.N
	if port == exchange.DefaultPort {
		port = rping.DefaultPort
	}
	if n := f.size.Int(); n < 1 || n > rping.MaxSize {
		return cli.Usagef("rping's texts have 1 to %d bytes, not %d: choose another size", rping.MaxSize, n)
	}
	dial, cancel := context.WithTimeout(ctx, max(f.timeout.D, minDial))
	defer cancel()
	c, err := rping.Dial(dial, p.dev, netip.AddrPortFrom(p.peer.Addr, uint16(port)), f.size.Int())
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = roce.ErrNoAnswer
		}
		return fmt.Errorf("rping %v, port %d: %w", p.peer.Addr, port, err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	info := p.dev.Info()
	p.sum = Summary{Host: p.peer.Host, Interface: info.Name, Datapath: info.Datapath, PathMTU: info.ActiveMTU, Bytes: f.size.Int()}
	p.say("RDMA ping %s (%v): %d bytes by rping over %s (%s)\n", p.peer.Host, p.peer.Addr, p.sum.Bytes, info.Name, info.Datapath)
	for seq := 1; f.count.N == 0 || seq <= f.count.N; seq++ {
		start := time.Now()
		if err = p.oneRping(ctx, c, seq); err != nil {
			break
		}
		if seq != f.count.N && !sleep(ctx, time.Until(start.Add(f.interval.D))) {
			break
		}
	}
	if ctx.Err() != nil {
		err = nil
	}
	return errors.Join(err, p.finish())
}

// minDial is the least time that a connection set-up gets: a lost message is repeated after a second.
const minDial = 5 * time.Second

func (p *pinger) oneRping(ctx context.Context, c *rping.Client, seq int) error {
	one, cancel := context.WithTimeout(ctx, p.f.timeout.D)
	defer cancel()
	p.sum.Sent++
	start := time.Now()
	if err := c.Ping(one); err != nil {
		if ctx.Err() != nil {
			p.sum.Sent--
			return err
		}
		return fmt.Errorf("seq=%d: %w", seq, err)
	}
	rtt := time.Since(start)
	p.sum.Received++
	p.times.Record(rtt)
	p.say("%d bytes from %v: seq=%d time=%.1f us\n", p.sum.Bytes, p.peer.Addr, seq, cli.Micros(rtt))
	return nil
}
