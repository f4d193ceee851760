package source

import (
	"context"
	"errors"
	"io"
	"math"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/filecopy"
	"github.com/gorxe/gorxe/internal/filecopy/extent"
	"github.com/gorxe/gorxe/internal/filecopy/record"
)

// streamDelay is how long data of a pipe waits for more that fills its block.
const streamDelay = 20 * time.Millisecond

// sendStream sends a stream. Its error ends the transfer.
func (s *Source) sendStream(ctx context.Context, it *item) error {
	session, err := s.conn.Open(ctx, it.Number)
	if err != nil {
		return err
	}
	end := record.End{Number: it.Number}
	for {
		b, err := s.conn.GetFree(ctx)
		if err != nil {
			session.Abort(err.Error())
			return err
		}
		n, err := it.fill(ctx, it.path.Stream, b.Data)
		stopped := it.stop.Load()
		if n == 0 || stopped {
			s.conn.PutFree(b)
		} else {
			e := s.sendFilled(ctx, session, b, n, &end)
			stopped = errors.Is(e, filecopy.ErrStopped)
			if e != nil && !stopped {
				return e
			}
		}
		if stopped { // the sink has said why
			session.Abort(filecopy.ErrStopped.Error())
			return nil
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			session.Abort(err.Error())
			return s.fail(ctx, it, true, reason(err))
		}
	}
	end.Size = end.Data
	if err := session.End(); err != nil {
		return err
	}
	return s.pack.add(ctx, record.AppendEnd(nil, &end))
}

// sendFilled sends a block of a stream with n bytes.
func (s *Source) sendFilled(
	ctx context.Context, session filecopy.Session, b *filecopy.Block, n int, end *record.End,
) error {
	if err := s.limit.wait(ctx, n); err != nil {
		s.conn.PutFree(b)
		return err
	}
	b.Len, b.Offset, b.CRC = n, end.Data, extent.Sum(b.Data[:n])
	if int64(n) > math.MaxInt64-end.Data {
		return errors.New("the stream is too long")
	}
	end.CRC = extent.Combine(end.CRC, b.CRC, int64(n))
	end.Data += int64(n)
	s.sent.Add(int64(n))
	s.bytes.Add(int64(n))
	err := session.Send(b)
	if err != nil {
		s.conn.PutFree(b)
	}
	return err
}

// fill reads until b is full, the stream ends, no more data is available for a while, or the sink
// has given up the stream.
func (it *item) fill(ctx context.Context, r io.Reader, b []byte) (n int, err error) {
	f, isFile := r.(*os.File)
	for n < len(b) {
		for isFile && !more(f) { // reading would wait, and could not be interrupted
			if n > 0 || it.stop.Load() {
				return n, nil
			}
			if ctx.Err() != nil {
				return 0, context.Cause(ctx)
			}
		}
		k, err := r.Read(b[n:])
		n += k
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// more reports whether a file has data, or its end, within streamDelay.
func more(f *os.File) bool {
	list := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
	n, err := unix.Poll(list, int(streamDelay/time.Millisecond))
	return n != 0 || err != nil && !errors.Is(err, unix.EINTR) // on errors Read tells
}
