package statusbyte

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/papers/kit"
)

const (
	basePort    = 7500
	connectTime = 10 * time.Second
	// closeTime is how long the receiving thread goes on to drive its device, so that the sender's disconnect is answered.
	closeTime = 100 * time.Millisecond
)

// pair is a connected sender and receiver. The receiver is its thread's.
type pair struct {
	w *world
	s sender
	r receiver

	arrived     atomic.Uint64                    // blocks
	first, last atomic.Int64                     // when the first and the last one were handed over
	tid         atomic.Int64                     // of the receiving thread
	onBlock     func(r receiver, i uint64) error // has to release the block
	onIdle      func() error                     // called when there is none; may be nil
	halt        atomic.Bool
	end         chan error
}

// release is the receiver's whole work in most experiments.
func release(r receiver, _ uint64) error { return r.release() }

// newPair connects a pair and starts the receiving thread.
func (w *world) newPair(ctx context.Context, lane string, s shape, on func(r receiver, i uint64) error, idle func() error) (*pair, error) {
	l, err := w.listen(lane, s, basePort)
	if err != nil {
		return nil, err
	}
	p := &pair{w: w, onBlock: on, onIdle: idle, end: make(chan error, 1)}
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	accepted := make(chan error, 1)
	go p.receive(ctx, l, accepted)
	p.s, err = w.dial(ctx, lane, s, basePort)
	if err == nil {
		err = <-accepted
	} else {
		cancel()
		<-accepted
	}
	if err != nil {
		p.halt.Store(true)
		<-p.end
		return nil, fmt.Errorf("connect a %s: %w", lane, err)
	}
	return p, nil
}

// receive is the receiving thread, from the connection's beginning to its end.
func (p *pair) receive(ctx context.Context, l listener, accepted chan<- error) {
	runtime.LockOSThread() // never unlocked: a pinned thread is not given back
	p.tid.Store(int64(unix.Gettid()))
	err := kit.Pin(p.w.cpus[1])
	if err == nil {
		p.r, err = l.accept(ctx)
	}
	accepted <- err
	if err == nil {
		err = errors.Join(p.serve(), p.r.close())
	}
	p.end <- errors.Join(err, l.close())
}

// serve takes blocks until it is told to end.
func (p *pair) serve() error {
	for i := uint64(0); ; {
		ok, err := p.r.poll()
		switch {
		case over(err):
			p.linger()
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

// linger drives the device until the sender has disconnected.
func (p *pair) linger() {
	for end := now() + int64(closeTime); now() < end && !p.halt.Load(); {
		p.w.dev[1].Progress()
	}
}

// close ends the connection and the thread, and says what went wrong there.
func (p *pair) close() error {
	err := p.s.close()
	p.halt.Store(true)
	return errors.Join(err, <-p.end)
}

// with connects a pair, runs f on the sending thread, and takes the pair apart.
func (w *world) with(ctx context.Context, lane string, s shape, on func(r receiver, i uint64) error, f func(p *pair) error) error {
	return w.withIdle(ctx, lane, s, on, nil, f)
}

// withIdle is with, for a receiver that has something to do when no block is there.
func (w *world) withIdle(ctx context.Context, lane string, s shape, on func(r receiver, i uint64) error, idle func() error, f func(p *pair) error) error {
	p, err := w.newPair(ctx, lane, s, on, idle)
	if err != nil {
		return err
	}
	begin, ran := now(), p.recvThread()
	err = f(p)
	// The receiving thread never sleeps: what it did not run, others did.
	w.share = min(w.share, float64(p.recvThread()-ran)/float64(max(now()-begin, 1)))
	return errors.Join(err, p.close())
}

// errStuck: a block did not arrive.
var errStuck = errors.New("a block did not arrive within 5 s: something else takes all of this machine's time, or the peer has died")

const patience = 5 * time.Second

// await drives the sending device until block n has been handed over.
func (p *pair) await(n uint64) error {
	begin := now()
	for look := 1; p.arrived.Load() < n; look++ {
		p.w.dev[0].Progress()
		if look%4096 == 0 && now()-max(begin, p.last.Load()) > int64(patience) {
			return errStuck
		}
	}
	return nil
}
