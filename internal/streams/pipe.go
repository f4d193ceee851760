package streams

import (
	"context"
	"io"
	"time"
)

const (
	pipeChunk  = 64 << 10 // largest read from a pipe
	pipeChunks = 2        // chunks that may wait
	// pipeDelay is how long data of a pipe waits for more data that fits into the same block.
	pipeDelay = 20 * time.Millisecond
)

// pipe reads in a separate goroutine, because a read from a silent pipe or terminal cannot be
// canceled.
type pipe struct {
	full, empty chan []byte // together they have the capacity for all chunks
	chunk       []byte      // in use
	rest        []byte      // unread part of chunk
	err         error       // of the last read; valid after full is closed
}

func newPipe(r io.Reader) *pipe {
	p := &pipe{full: make(chan []byte, pipeChunks), empty: make(chan []byte, pipeChunks)}
	for range pipeChunks {
		p.empty <- make([]byte, pipeChunk)
	}
	go func() {
		defer close(p.full)
		for chunk := range p.empty {
			n, err := r.Read(chunk)
			if n > 0 {
				p.full <- chunk[:n]
			} else {
				p.empty <- chunk
			}
			if err != nil {
				p.err = err
				return
			}
		}
	}()
	return p
}

// next fills buf. It returns early when pipeDelay has passed since the first byte. After the end of
// ctx it returns the data that was already read, then io.EOF.
func (p *pipe) next(ctx context.Context, buf []byte) (n int, err error) {
	var late <-chan time.Time
	for {
		m := copy(buf[n:], p.rest)
		n, p.rest = n+m, p.rest[m:]
		if n == len(buf) {
			return n, nil
		}
		if n > 0 && late == nil {
			timer := time.NewTimer(pipeDelay)
			defer timer.Stop()
			late = timer.C
		}
		if p.chunk != nil {
			p.empty <- p.chunk[:pipeChunk]
			p.chunk = nil
		}
		ok := true
		select {
		case p.chunk, ok = <-p.full:
		case <-late:
			return n, nil
		case <-ctx.Done():
			select {
			case p.chunk, ok = <-p.full:
			default:
				return n, io.EOF
			}
		}
		if p.rest = p.chunk; !ok {
			return n, p.err
		}
	}
}
