//go:build linux

package xdp

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/fence"
	"github.com/gorxe/gorxe/internal/osnet"
	"golang.org/x/sys/unix"
)

// Port is an open interface. It implements driver.Port, driver.Network, driver.Groups,
// driver.Holder, driver.Backlogger and driver.RunSender. One goroutine at a time owns it and calls
// its methods; Wake, Close, Info, Addrs, Resolve, Changed, JoinGroup and LeaveGroup are safe for
// concurrent use.
//
// Every queue has a socket, and Receive polls them in turn. All frames are sent on the first queue:
// one owner gains nothing from several, and frames that overtake each other would look like loss.
type Port struct {
	queues   []*queue
	prog     *program
	net      *network
	datapath string
	multi    bool // buffers have two chunks
	capacity int  // largest frame that a buffer holds in either direction, bytes
	busyPoll bool
	splits   bool // frames may be runs of packets (generic mode)
	split    splitter

	// Fields of the owner.
	next  int // queue that Receive polls first
	out   int // number of buffers that the caller holds
	down  bool
	stats driver.Stats
	polls []unix.PollFd // that of sleeper, then one socket per queue
	bulk  bulk

	// The owner sets inside and then reads closed; Close sets closed and then reads inside. At
	// least one of them sees the other's value, so Close never unmaps memory that the owner uses.
	inside atomic.Uint32
	held   bool // the owner called Hold
	closed atomic.Bool

	sleeper osnet.Sleeper

	closing  sync.Once
	closeErr error
	mu       sync.Mutex // serializes the end of Close with late buffers
	finished bool       // guarded by mu: sockets and rings are closed
}

var (
	_ driver.Port        = (*Port)(nil)
	_ driver.Network     = (*Port)(nil)
	_ driver.Finder      = (*Port)(nil)
	_ driver.Router      = (*Port)(nil)
	_ driver.Groups      = (*Port)(nil)
	_ driver.Holder      = (*Port)(nil)
	_ driver.Backlogger  = (*Port)(nil)
	_ driver.StatsReader = (*Port)(nil)
	_ driver.RunSender   = (*Port)(nil)
)

// enter starts a call of the owner. It returns false if the Port is closed.
func (p *Port) enter() bool {
	if p.held {
		return !p.closed.Load()
	}
	p.inside.Store(1)
	if p.closed.Load() {
		fence.Store(&p.inside, 0)
		return false
	}
	return true
}

func (p *Port) leave() {
	if !p.held {
		fence.Store(&p.inside, 0)
	}
}

// Hold implements driver.Holder. It saves the owner the atomic operations of several calls.
func (p *Port) Hold() {
	p.inside.Store(1)
	p.held = true
}

// Unhold ends Hold.
func (p *Port) Unhold() {
	p.held = false
	fence.Store(&p.inside, 0)
}

// Info returns the current state of the port. It is safe for concurrent use.
func (p *Port) Info() driver.Info {
	info := p.net.state.Load().info
	if s := p.bulk.note.Load(); s != nil {
		info.Note = joinNotes(info.Note, *s)
	}
	return info
}

// Stats returns the counters. RxDropped includes frames that the kernel dropped because a ring was
// full or no buffer was free. Only the owner may call Stats. It makes one system call per queue.
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

// returnLate counts n buffers that were returned after Close. The last one frees the packet memory.
func (p *Port) returnLate(n int) {
	p.mu.Lock()
	p.out -= n
	p.freeMemory()
	p.mu.Unlock()
}

// freeMemory unmaps the packet memory when no buffer is in use. p.mu must be held.
func (p *Port) freeMemory() {
	if !p.finished || p.out > 0 {
		return
	}
	for _, q := range p.queues {
		q.unmapUMEM()
	}
}

// Close detaches the XDP program, closes the sockets and ends the netlink subscription. Packet
// memory remains mapped until the owner has returned all buffers. Close is idempotent and safe for
// concurrent use; a Wait in progress returns ErrClosed.
func (p *Port) Close() error {
	p.closing.Do(func() { p.closeErr = p.close() })
	return p.closeErr
}

// ownerPause is the interval at which Close checks whether the owner is inside a call.
const ownerPause = 20 * time.Microsecond

// awaitOwner waits until the owner is in no call. If closed is set, the owner cannot enter again.
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
	p.closed.Store(true)
	err := p.prog.close()
	p.sleeper.Signal()
	p.awaitOwner()
	p.net.close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.RxDropped += p.kernelDrops()
	for _, q := range p.queues {
		q.close()
	}
	p.bulk.close()
	p.sleeper.Close()
	p.finished = true
	p.freeMemory()
	return err
}
