package ping

import (
	"context"
	"time"

	"github.com/gorxe/gorxe/internal/ping"
	"github.com/gorxe/gorxe/internal/session"
)

// runPing pings a gorxe.
func (p *pinger) runPing(ctx context.Context) error {
	if err := p.connect(ctx); err != nil {
		return err
	}
	defer p.disconnect()
	p.sum.PathMTU = p.client.PathMTU()
	p.print("RDMA ping %s (%v): %d bytes by RC SEND over %s (%s), path MTU %d\n",
		p.sum.Host, p.peer.Addr, p.sum.Bytes, p.sum.Interface, p.sum.Datapath, p.sum.PathMTU)
	p.loop(ctx)
	return p.finish()
}

func (p *pinger) connect(ctx context.Context) error {
	addr := p.addr(p.f.port.N).String()
	c, err := ping.Dial(ctx, p.dev, p.f.device.GIDIndex, addr, ping.Params{Bytes: p.sum.Bytes})
	if err != nil {
		return err
	}
	c.Replied, p.client = p.replied, c
	return nil
}

func (p *pinger) disconnect() {
	if p.client != nil {
		p.client.Close()
		p.client = nil
	}
}

// loop sends pings until the count is reached or ctx ends. It reconnects after a failure.
func (p *pinger) loop(ctx context.Context) {
	for seq := 1; p.f.count.N == 0 || seq <= p.f.count.N; seq++ {
		start := time.Now()
		err := p.pingOnce(ctx, seq)
		if ctx.Err() != nil {
			if p.client != nil {
				p.sum.Sent -= p.client.Outstanding() // the user did not wait for these
			}
			return
		}
		if err != nil {
			p.print("seq=%d: %v\n", seq, err)
			p.disconnect()
		}
		if seq != p.f.count.N && !p.pause(ctx, start) {
			return
		}
	}
	if p.client != nil {
		// The summary shows replies that do not arrive.
		_ = p.client.Wait(ctx, time.Now().Add(p.f.timeout.D), true)
	}
}

// longPauses reports whether servers would end an idle connection between two pings.
func (f *flags) longPauses() bool { return f.interval.D > session.IdleTimeout/2 }

// pause waits until the time of the next ping. It returns false if ctx ends first.
func (p *pinger) pause(ctx context.Context, start time.Time) bool {
	next := start.Add(p.f.interval.D)
	if p.f.longPauses() {
		p.disconnect() // before the server does
	}
	if p.client == nil {
		if p.f.interval.D < minTimeout {
			next = start.Add(p.f.timeout.D) // do not reconnect without a pause
		}
		return sleep(ctx, time.Until(next))
	}
	if err := p.client.Wait(ctx, next, false); err != nil && ctx.Err() == nil {
		p.print("%v\n", err)
		p.disconnect()
	}
	return true
}

// pingOnce sends a ping and waits for the reply, but no longer than the timeout.
func (p *pinger) pingOnce(ctx context.Context, seq int) error {
	p.sum.Sent++
	if p.client == nil {
		if err := p.connect(ctx); err != nil {
			return err
		}
	}
	deadline := time.Now().Add(p.f.timeout.D)
	if err := p.prepare(ctx, seq, deadline); err != nil {
		if ctx.Err() != nil {
			p.sum.Sent--
		}
		return err
	}
	if err := p.client.Send(seq); err != nil {
		return err
	}
	if err := p.client.Wait(ctx, deadline, true); err != nil {
		return err
	}
	if p.client.Outstanding() > 0 {
		p.print("seq=%d: no answer in %v yet\n", seq, p.f.timeout.D)
	}
	return nil
}

// prepare waits until the next ping can be sent, and wakes the server if it may sleep.
func (p *pinger) prepare(ctx context.Context, seq int, deadline time.Time) error {
	if err := p.client.WaitReady(ctx, deadline); err != nil {
		return err
	}
	p.client.Prepare(seq)
	if p.f.interval.D == 0 {
		return nil
	}
	return p.client.Wake(ctx, deadline)
}
