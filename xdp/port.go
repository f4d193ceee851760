package xdp

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/fence"
	"golang.org/x/sys/unix"
)

// Port is a driver.Port and driver.Network on an interface. One thread at a time owns it and
// makes the calls; Wake, Close, Info, Addrs, Resolve and Changed are safe from any goroutine.
//
// Every queue served has a socket; Receive takes turns between them. All frames are sent
// on the first queue: one owner cannot feed several queues faster than one, and
// frames of a connection that overtake each other on different queues would look
// like loss to it.
type Port struct {
	queues   []*queue
	prog     *program
	net      *network
	datapath string
	multi    bool // buffers of two chunks
	capacity int  // bytes of the largest frame that a buffer takes, in both directions
	busyPoll bool

	// owner
	next    int // the queue that Receive looks at first
	out     int // buffers in the caller's hands
	down    bool
	stats   driver.Stats
	polls   []unix.PollFd // wake-up event, then a socket per queue
	timeout unix.Timespec

	// The owner sets inside, then looks at closed; Close sets closed, then looks at
	// inside: at least one sees the other, and Close unmaps nothing under the owner's feet. The owner does so all the time and
	// Close once, so Close pays for the order of both where it can (light; see fence.Heavy).
	inside atomic.Uint32
	light  bool
	held   bool // the owner stays inside over several calls
	closed atomic.Bool

	// The same pattern keeps wake-ups from being lost: Wake sets woken, then looks at
	// sleeping; Wait sets sleeping, then looks at woken.
	woken    atomic.Bool
	sleeping atomic.Bool
	event    int // eventfd

	closing  sync.Once
	closeErr error
	mu       sync.Mutex // orders the end of Close with buffers given back late
	torn     bool       // under mu: sockets and rings are gone
}

var (
	_ driver.Port    = (*Port)(nil)
	_ driver.Network = (*Port)(nil)
)

// enter starts an owner's call; if it says no, the Port is closed.
func (p *Port) enter() bool {
	if p.held {
		return !p.closed.Load()
	}
	p.mark()
	if p.closed.Load() {
		fence.Store(&p.inside, 0)
		return false
	}
	return true
}

// mark sets inside before any load that follows.
func (p *Port) mark() {
	if p.light {
		fence.Store(&p.inside, 1)
		return
	}
	p.inside.Store(1)
}

func (p *Port) leave() {
	if !p.held {
		fence.Store(&p.inside, 0)
	}
}

// Hold implements driver.Holder: a turn of the owner is some four calls.
func (p *Port) Hold() {
	p.mark()
	p.held = true
}

// Unhold ends it.
func (p *Port) Unhold() {
	p.held = false
	fence.Store(&p.inside, 0)
}

// Info describes the port as it is now.
func (p *Port) Info() driver.Info { return p.net.state.Load().info }

// Stats returns the counters. RxDropped includes what the kernel dropped because rings were
// full or buffers missing. Owner thread only; it makes a system call per queue.
func (p *Port) Stats() driver.Stats {
	s := p.stats
	if !p.enter() {
		return s
	}
	defer p.leave()
	s.RxDropped += p.kernelDrops()
	return s
}

func (p *Port) kernelDrops() (n uint64) {
	for _, q := range p.queues {
		if k, err := xskStatistics(q.fd); err == nil {
			n += k.Rx_dropped + k.Rx_ring_full
		}
	}
	return n
}

// lentBack counts n buffers that come back after Close; with the last one the packet
// memory goes.
func (p *Port) lentBack(n int) {
	p.mu.Lock()
	p.out -= n
	p.freeMemory()
	p.mu.Unlock()
}

// freeMemory unmaps the UMEMs once nobody can hold a buffer in them. Under mu.
func (p *Port) freeMemory() {
	if !p.torn || p.out > 0 {
		return
	}
	for _, q := range p.queues {
		q.unmapUMEM()
	}
}

// Close detaches the XDP program, closes the sockets and ends the netlink subscription. The
// memory of buffers that the owner still holds stays until it gives them back. Idempotent;
// callable from any goroutine, also while the owner is in Wait, which then returns
// ErrClosed.
func (p *Port) Close() error {
	p.closing.Do(func() { p.closeErr = p.close() })
	return p.closeErr
}

// ownerPause is how long Close sleeps between two looks whether the owner has left.
const ownerPause = 20 * time.Microsecond

// refuse makes the owner's calls say no, all but the one that awaitOwner waits for.
func (p *Port) refuse() {
	p.closed.Store(true)
	if p.light {
		fence.Heavy()
	}
}

// awaitOwner returns when the owner is outside, for good after refuse.
func (p *Port) awaitOwner() {
	for spins := 0; p.inside.Load() != 0; spins++ {
		if spins < 100 {
			runtime.Gosched()
		} else {
			time.Sleep(ownerPause)
		}
	}
}

func (p *Port) close() error {
	p.refuse()
	err := p.prog.close()
	p.ring()
	p.awaitOwner()
	p.net.close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.RxDropped += p.kernelDrops()
	for _, q := range p.queues {
		q.close()
	}
	_ = unix.Close(p.event)
	p.torn = true
	p.freeMemory()
	return err
}
