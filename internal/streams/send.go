package streams

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/gorxe/gorxe/transport/statusbyte"
)

// finishTime bounds the sending of the last data and the end marks after an interruption.
const finishTime = 10 * time.Second

// Send sends all sources concurrently and calls sent, from several goroutines, with the numbers of
// bytes sent. If one source fails the others end too. When ctx ends, pipes and cameras end their
// streams properly, and the error is that of ctx if a file was truncated. The reports are valid in
// any case.
func Send(ctx context.Context, s *statusbyte.Sender, list []Source,
	sent func(n int)) ([]DeviceReport, error) {
	all := new(tallies)
	var wg sync.WaitGroup
	errs := make([]error, len(list))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for i, src := range list {
		t := all.of(src.device())
		wg.Go(func() {
			if errs[i] = sendOne(ctx, s, src, t, sent); errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			return all.reports(), err
		}
	}
	return all.reports(), errors.Join(errs...)
}

func sendOne(ctx context.Context, s *statusbyte.Sender, src Source, t *tally,
	sent func(n int)) error {
	// The data is not read into a send block: while a camera or pipe is silent, other devices need
	// the block.
	buf := make([]byte, s.BlockSize())
	for {
		n, err := src.next(ctx, buf)
		if n > 0 {
			e := s.Write(ctx, src.device(), buf[:n])
			if e != nil && ctx.Err() != nil && errors.Is(e, ctx.Err()) && !src.truncates() {
				e = finish(ctx, func(ctx context.Context) error {
					return s.Write(ctx, src.device(),
						buf[:n])
				})
			}
			if e != nil {
				return e
			}
			t.add(buf[:n])
			sent(n)
		}
		switch {
		case errors.Is(err, io.EOF):
			return finish(ctx, func(ctx context.Context) error { return s.End(ctx, src.device()) })
		case err != nil:
			return fmt.Errorf("read the stream of device %d: %w", src.device(), err)
		}
	}
}

// finish calls f with a context that outlives ctx for finishTime.
func finish(ctx context.Context, f func(context.Context) error) error {
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTime)
	defer cancel()
	return f(late)
}
