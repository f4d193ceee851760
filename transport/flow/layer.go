package flow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/roce"
)

// Layer is the send and receive layer on one device. It works with a Scheduler and without. Its
// methods are safe for concurrent use.
//
// On a device with Auto progress, a goroutine of the Layer handles completions. With Manual
// progress, the methods that block do so, and Poll.
type Layer struct {
	dev *roce.Device
	cfg LayerConfig
	pd  *roce.PD
	cq  *roce.CQ

	manual bool
	now    func() int64
	cancel context.CancelFunc
	poller sync.WaitGroup
	sched  atomic.Pointer[Scheduler]

	closeMu sync.Mutex // held by Close

	pollMu sync.Mutex // held while completions are handled
	wcs    [pollBatch]roce.WC

	// mu guards the fields below, and what Channel, Sender and Receiver say. Locks are taken in the
	// order closeMu, pollMu, Scheduler.mu, mu.
	mu       sync.Mutex
	conns    map[uint32]conn
	next     uint32 // ID of the next connection
	reserved int    // completions that connections need at most
	channels []*Channel
	closed   bool
}

// conn is a Sender or a Receiver.
type conn interface {
	// complete handles a completion, with mu held.
	complete(wc *roce.WC) happening
	end(err error)
}

// happening is what the scheduler must know about a completion.
type happening struct {
	sender  *Sender
	part    bool // a part of a message ended
	last    bool // it was the last part of its message
	credit  bool // the receiver has a free slot
	broken  bool // the connection has ended
	arrived *Channel
}

const pollBatch = 32

// NewLayer creates a layer on dev. The device stays the caller's.
func NewLayer(dev *roce.Device, c LayerConfig) (*Layer, error) {
	if c.Completions == 0 {
		c.Completions = DefaultCompletions
	}
	l := &Layer{dev: dev, cfg: c, conns: map[uint32]conn{}, now: c.Clock,
		manual: dev.Info().Progress == roce.Manual || c.Wait != nil}
	if l.now == nil {
		l.now = systemClock
	}
	var err error
	if l.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	if l.cq, err = dev.CreateCQ(c.Completions); err != nil {
		return nil, errors.Join(err, l.pd.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	if !l.manual {
		l.poller.Go(func() { l.pollAlways(ctx) })
	}
	return l, nil
}

// epoch is when the process started, with and without the monotonic clock.
var epoch = time.Now()

// systemClock returns the time since 1970 in nanoseconds. It never decreases.
func systemClock() int64 { return epoch.UnixNano() + int64(time.Since(epoch)) }

// Device returns the device of the layer.
func (l *Layer) Device() *roce.Device { return l.dev }

// Alloc allocates memory for Sender.Send. It lives until it is closed, at the latest with the
// device.
func (l *Layer) Alloc(size int) (*roce.MR, error) { return l.pd.AllocMR(size, roce.LocalWrite) }

// lockScheduler locks the scheduler of the layer, if there is one.
func (l *Layer) lockScheduler() *Scheduler {
	s := l.sched.Load()
	if s != nil {
		s.mu.Lock()
	}
	return s
}

// pollAlways handles completions until ctx ends or the device fails.
func (l *Layer) pollAlways(ctx context.Context) {
	var wcs [pollBatch]roce.WC
	for {
		n, err := l.cq.Wait(ctx, wcs[:])
		if err != nil {
			if ctx.Err() == nil {
				l.fail(err)
			}
			return
		}
		l.pollMu.Lock()
		l.handle(wcs[:n])
		l.pollMu.Unlock()
	}
}

// Poll handles completions and returns their number. On a device with Manual progress it runs the
// protocol.
func (l *Layer) Poll() int {
	l.pollMu.Lock()
	defer l.pollMu.Unlock()
	n := l.cq.Poll(l.wcs[:])
	l.handle(l.wcs[:n])
	return n
}

// handle passes completions to their connections, and what happened to the scheduler.
func (l *Layer) handle(wcs []roce.WC) {
	if len(wcs) == 0 {
		return
	}
	s := l.lockScheduler()
	if s != nil {
		s.m.Advance(l.now())
	}
	for i := range wcs {
		l.mu.Lock()
		var h happening
		if c := l.conns[uint32(wcs[i].ID>>idConn)]; c != nil {
			h = c.complete(&wcs[i])
		}
		l.mu.Unlock()
		if s != nil {
			s.happened(h)
		}
	}
	if s != nil {
		s.unlock()
	}
}

// fail ends all connections.
func (l *Layer) fail(err error) {
	s := l.lockScheduler()
	l.mu.Lock()
	posts := map[*Sender]int{}
	for _, c := range l.conns {
		c.end(err)
		if c, ok := c.(*Sender); ok {
			posts[c] = c.posts
			c.posts = 0
		}
	}
	l.mu.Unlock()
	if s == nil {
		return
	}
	for c, n := range posts {
		s.abandoned(c, n)
	}
	s.unlock()
}

// await waits until ready returns true, and then does not call it again. wake is signaled when it
// may have changed.
func (l *Layer) await(ctx context.Context, wake <-chan struct{}, ready func() bool) error {
	switch {
	case l.cfg.Wait != nil:
		done := false // Wait may ask several times
		return l.cfg.Wait(ctx, func() bool {
			for !done && l.Poll() > 0 {
			}
			done = done || ready()
			return done
		})
	case l.manual:
		for !ready() {
			if l.Poll() > 0 {
				continue
			}
			if err := cmp.Or(ctx.Err(), l.dev.Err()); err != nil {
				return err
			}
			runtime.Gosched()
		}
		return nil
	}
	for !ready() {
		select {
		case <-wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// reserve registers a connection that has at most n completions at a time.
func (l *Layer) reserve(n int) (id uint32, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return 0, ErrClosed
	case l.reserved+n > l.cfg.Completions:
		return 0, fmt.Errorf("%w: %d of %d completions are reserved, and this one needs %d: raise "+
			"LayerConfig.Completions", ErrTooMany, l.reserved, l.cfg.Completions, n)
	}
	l.reserved += n
	l.next++
	return l.next, nil
}

// release undoes reserve.
func (l *Layer) release(id uint32, n int) {
	l.mu.Lock()
	delete(l.conns, id)
	l.reserved -= n
	l.mu.Unlock()
}

func (l *Layer) add(id uint32, c conn) {
	l.mu.Lock()
	l.conns[id] = c
	l.mu.Unlock()
}

// beginClose calls mark if connection id is open and no running scheduler uses it. scheduled
// reports whether schedulers use it, and is called with the layer locked, as mark is.
func (l *Layer) beginClose(id uint32, scheduled func() bool, mark func()) (open, used bool) {
	s := l.lockScheduler()
	if s != nil {
		defer s.mu.Unlock()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, open = l.conns[id]
	used = s != nil && s.running && scheduled()
	if open && !used {
		mark()
	}
	return open, used
}

// Close frees the channels and the objects of the layer. Close its senders and receivers, the
// scheduler, and the memory of Alloc before.
//
// Errors: ErrBusy; roce.ErrInUse if memory of Alloc is left: close it, and call Close again.
func (l *Layer) Close() error {
	l.closeMu.Lock()
	defer l.closeMu.Unlock()
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return l.pd.Close()
	}
	if len(l.conns) > 0 || l.sched.Load() != nil {
		l.mu.Unlock()
		return fmt.Errorf("%w: close its scheduler, senders and receivers before the layer",
			ErrBusy)
	}
	l.closed = true
	channels := l.channels
	for _, c := range channels {
		c.closed = true
	}
	l.mu.Unlock()
	l.cancel()
	l.poller.Wait()
	var errs []error
	for _, c := range channels {
		errs = append(errs, c.mr.Close())
	}
	return errors.Join(append(errs, l.cq.Close(), l.pd.Close())...)
}

// A work request's ID has the connection, the kind of operation, the receiver's slot and the local
// slot.
const (
	idConn   = 32
	idKind   = 24
	idRemote = 16
	idLocal  = 8

	kindPart   = 1 // a part of a message
	kindLast   = 2 // the last part
	kindRecv   = 3 // a receive
	kindCredit = 4 // a released slot

	noSlot = 0xff
)

func workID(conn uint32, kind, remote, local int) uint64 {
	return uint64(conn)<<idConn | uint64(kind)<<idKind | uint64(remote)<<idRemote |
		uint64(local)<<idLocal
}

func field(id uint64, at int) int { return int(id >> at & 0xff) }

// signal wakes a waiter.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
