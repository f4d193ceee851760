package live

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/rftp"
)

// config makes the goroutine that sends or receives run the device, as "gorxe perf" does.
func config(streams int) rftp.Config { return rftp.Config{DataQPs: streams, Drive: true} }

// sendBlocks sends blocks from memory: no bytes are put into them. The time is that from opening
// the session until the receiver has consumed all blocks.
func sendBlocks(
	ctx context.Context, dev *roce.Device, to netip.AddrPort, size int64, streams int,
	cpuTime func() time.Duration,
) (r result, err error) {
	cfg := config(streams)
	cfg.Hold = true // receives no blocks
	c, err := rftp.Dial(ctx, dev, to, cfg)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	begin, before := time.Now(), cpuTime()
	s, err := c.Open(ctx, nil)
	if err != nil {
		return r, err
	}
	for r.Bytes < size {
		b, err := s.GetFree(ctx)
		if err != nil {
			return r, err
		}
		b.Offset, b.Len = uint64(r.Bytes), int(min(int64(len(b.Data)), size-r.Bytes))
		r.Bytes += int64(b.Len)
		if err := s.Send(b); err != nil {
			return r, err
		}
	}
	s.End()
	if err := s.Wait(ctx); err != nil {
		return r, err
	}
	r.Took, r.CPU = time.Since(begin), cpuTime()-before
	return r, c.Finish(ctx)
}

// receiveBlocks serves one connection and drops its blocks.
func receiveBlocks(ctx context.Context, l *rftp.Listener, cpuTime func() time.Duration) (
	r result, err error) {
	c, err := l.Accept(ctx)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	begin, before := time.Now(), cpuTime()
	for {
		e, err := c.GetReady(ctx)
		if errors.Is(err, io.EOF) {
			return r, nil
		}
		if err != nil {
			return r, err
		}
		switch e.Kind {
		case rftp.Data:
			r.Bytes += int64(e.Block.Len)
			if err := c.PutFree(e.Block); err != nil {
				return r, err
			}
		case rftp.Ended:
			r.Took, r.CPU = time.Since(begin), cpuTime()-before
		}
	}
}
