package statusbyte

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/papers/kit"
)

const (
	basePort    = 7500
	connectTime = 10 * time.Second
	// closeTime is how long the receiving thread continues to drive its device after the last
	// block, so that the sender's disconnect request is answered.
	closeTime = 100 * time.Millisecond
	// arrivalTimeout is how long await waits without an arriving block.
	arrivalTimeout = 5 * time.Second
)

// pair is a connected sender and receiver. The receiver belongs to its thread.
type pair struct {
	d *devices
	s sender
	r receiver

	handler
	arrived     atomic.Uint64 // blocks
	first, last atomic.Int64  // time of the first and of the latest arrival
	tid         atomic.Int64  // ID of the receiving thread
	halt        atomic.Bool
	done        <-chan error
}

// handler is what the receiver does.
type handler struct {
	onBlock func(r receiver, i uint64) error // must release the block
	onIdle  func() error                     // called when there is no block; may be nil
}

// releaseAll releases every block at once.
var releaseAll = handler{onBlock: func(r receiver, _ uint64) error { return r.release() }}

// connect connects a pair and starts the receiving thread.
func (d *devices) connect(ctx context.Context, transport string, s shape, h handler) (
	*pair, error) {
	l, err := d.listen(transport, s, basePort)
	if err != nil {
		return nil, err
	}
	p := &pair{d: d, handler: h}
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	accepted := make(chan error, 1)
	p.done = kit.GoOnCPU(d.cpus[1], func() error { return p.receive(ctx, l, accepted) })
	p.s, err = d.dial(ctx, transport, s, basePort)
	if err != nil {
		cancel()
	}
	select {
	case e := <-accepted:
		err = errors.Join(err, e)
	case e := <-p.done: // the thread could not be pinned
		err = errors.Join(err, e)
	}
	if err != nil {
		p.halt.Store(true)
		<-p.done
		_ = l.close() // closed already unless the thread could not be pinned
		return nil, fmt.Errorf("connect with %s: %w", transport, err)
	}
	return p, nil
}

// receive runs on the receiving thread as long as the connection lasts.
func (p *pair) receive(ctx context.Context, l *listener, accepted chan<- error) (err error) {
	p.tid.Store(int64(unix.Gettid()))
	p.r, err = l.accept(ctx)
	accepted <- err
	if err == nil {
		err = errors.Join(p.serve(), p.r.Close())
	}
	return errors.Join(err, l.close())
}

// serve takes blocks until halt is set or the sender closes.
func (p *pair) serve() error {
	for i := uint64(0); ; {
		ok, err := p.r.poll()
		switch {
		case errors.Is(err, io.EOF):
			for end := now() + int64(closeTime); now() < end && !p.halt.Load(); {
				p.d.Dev[1].Progress()
			}
			return nil
		case err != nil:
			return err
		case ok:
			at := now()
			if i == 0 {
				p.first.Store(at)
			}
			p.last.Store(at)
			if err := p.onBlock(p.r, i); err != nil {
				return err
			}
			i++
			p.arrived.Store(i)
		case p.halt.Load():
			return nil
		case p.onIdle != nil:
			if err := p.onIdle(); err != nil {
				return err
			}
		}
	}
}

// close ends the connection and the thread, and returns the error of both.
func (p *pair) close() error {
	err := p.s.Close()
	p.halt.Store(true)
	return errors.Join(err, <-p.done)
}

// with connects a pair, runs f on the calling thread, and closes the pair.
func (d *devices) with(
	ctx context.Context, transport string, s shape, h handler, f func(p *pair) error,
) error {
	p, err := d.connect(ctx, transport, s, h)
	if err != nil {
		return err
	}
	begin, ran := now(), p.recvThread()
	err = f(p)
	// The receiving thread never sleeps: when it does not run, another program has its CPU.
	d.share = min(d.share, float64(p.recvThread()-ran)/float64(max(now()-begin, 1)))
	return errors.Join(err, p.close())
}

var errNoArrival = fmt.Errorf("no block arrived within %v: "+
	"end other programs, or check that the peer still runs", arrivalTimeout)

// await drives the sending device until n blocks have arrived.
func (p *pair) await(n uint64) error {
	const clockEvery = 4096
	begin := now()
	for i := 1; p.arrived.Load() < n; i++ {
		p.d.Dev[0].Progress()
		if i%clockEvery == 0 && now()-max(begin, p.last.Load()) > int64(arrivalTimeout) {
			return errNoArrival
		}
	}
	return nil
}

// finish transmits everything and waits until n blocks have arrived.
func (p *pair) finish(ctx context.Context, n uint64) error {
	if err := p.s.Flush(ctx); err != nil {
		return err
	}
	return p.await(n)
}

// postAll sends n blocks of size bytes one after the other and waits until they have arrived.
func (p *pair) postAll(ctx context.Context, n uint64, size int) error {
	for range n {
		if err := p.s.post(ctx, size); err != nil {
			return err
		}
	}
	return p.finish(ctx, n)
}
