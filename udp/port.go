package udp

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/osnet"
	"github.com/gorxe/gorxe/internal/udpmsg"
	"golang.org/x/sys/unix"
)

const (
	batch     = udpmsg.Size // packets or runs of one system call
	rxRuns    = 8           // of one system call to receive
	maxGRO    = 128         // packets of a received run
	rxBuffers = 4*batch + rxRuns*maxGRO
	txBuffers = 4 * batch

	// maxPacket is the longest IP packet: a packet of path MTU 4096 with all headers is shorter.
	maxPacket = 4352
	headroom  = 64 // in front of a received packet, for its headers
	slotLen   = headroom + maxPacket
)

// Port is an open interface. It implements driver.Port, driver.Network, driver.Groups,
// driver.StatsReader, driver.Backlogger, driver.Overlapper and driver.RunSender. One goroutine at a
// time owns it and calls its methods; Wake, Close, Info, Addrs, Resolve, Changed, JoinGroup and
// LeaveGroup are safe for concurrent use.
type Port struct {
	net *network

	// mu is held by the owner in all calls, also while it sleeps, and by those who change the
	// sockets.
	mu    sync.Mutex
	socks []*socket
	polls []unix.PollFd // the event descriptor, the sockets, then mads if it is open
	slot  uint8         // see Provided
	mads  int           // see Provided; 0: there is none
	some  bool          // mads may have frames

	foreign int // received packets of other slots

	hot   int  // the socket that had packets last
	alone int  // calls of Receive
	most  int  // messages that the next system call may receive
	from  int  // the socket that has sent last
	busy  busy // the peer to which packets go one by one

	connections int   // connected sockets
	failures    int   // connected sockets that could not be opened
	fds         []int // of the sockets; for Backlog

	rx, tx pool
	in     *udpmsg.Batch
	out    *udpmsg.Sender
	lines  lines
	long   [rxRuns][]byte // what of a received run does not fit in a buffer
	ready  []driver.Buf   // received packets that did not fit in a call of Receive
	stats  driver.Stats   // without those of out

	refusals []error // with which the kernel refused packets; see refusedBy

	sleeper  osnet.Sleeper
	changing atomic.Int32 // calls of change that wait; the owner must not sleep meanwhile
	closed   atomic.Bool

	closing sync.Once
}

var (
	_ driver.Port        = (*Port)(nil)
	_ driver.Network     = (*Port)(nil)
	_ driver.Groups      = (*Port)(nil)
	_ driver.StatsReader = (*Port)(nil)
	_ driver.Backlogger  = (*Port)(nil)
	_ driver.Watcher     = (*Port)(nil)
	_ driver.Overlapper  = (*Port)(nil)
	_ driver.RunSender   = (*Port)(nil)
)

// pool is the memory of buffers.
type pool struct {
	slab []byte
	free []uint32
}

func newPool(n int) pool {
	p := pool{slab: make([]byte, n*slotLen), free: make([]uint32, n)}
	for i := range p.free {
		p.free[i] = uint32(i)
	}
	return p
}

// touch makes the kernel provide the memory of the n buffers that are taken first. Otherwise each
// of the first packets waits for a page fault.
func (p *pool) touch(n int) {
	const page = 4096
	for _, k := range p.free[len(p.free)-n:] {
		b := p.slot(k)
		for at := 0; at < len(b); at += page {
			b[at] = 0
		}
		b[len(b)-1] = 0
	}
}

func (p *pool) slot(i uint32) []byte { return p.slab[int(i)*slotLen : int(i+1)*slotLen] }

// Info implements driver.Port. It is safe for concurrent use.
func (p *Port) Info() driver.Info { return p.net.info() }

// Stats implements driver.StatsReader. RxDropped includes packets that the kernel dropped because
// the receive buffer of a socket was full. It makes one system call per socket.
func (p *Port) Stats() driver.Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, out := p.stats, &p.out.Stats
	s.RxDropped += p.kernelDrops()
	s.TxFrames, s.TxBytes, s.TxDropped = out.TxFrames, out.TxBytes, out.TxDropped
	s.Kicks, s.TxRuns = out.Kicks, out.TxRuns
	return s
}

// Backlog implements driver.Backlogger. It makes one system call per socket. The rate is not known.
func (p *Port) Backlog() (bytes int, rate int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fds = p.fds[:0]
	for _, s := range p.socks {
		p.fds = append(p.fds, s.fd)
	}
	return p.out.Backlog(p.fds...), 0
}

// change lets f change the sockets while the owner is in no call. It returns false, without calling
// f, if the Port is closed.
func (p *Port) change(f func(old []*socket) []*socket) bool {
	p.changing.Add(1)
	p.Wake()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changing.Add(-1)
	if p.closed.Load() {
		return false
	}
	old := p.socks
	p.socks = f(old)
	keep := map[*socket]bool{}
	for _, s := range p.socks {
		keep[s] = true
	}
	for _, s := range old {
		if !keep[s] {
			p.stats.RxDropped += drops(s.fd)
			s.close()
		}
	}
	p.hot, p.from, p.busy = 0, 0, busy{}
	p.makePolls()
	return true
}

// makePolls makes the list of descriptors on which the owner sleeps.
func (p *Port) makePolls() {
	p.polls = append(p.polls[:0], p.sleeper.Event())
	p.connections = 0
	for _, s := range p.socks {
		if s.parent != nil {
			p.connections++
		}
		p.polls = append(p.polls, unix.PollFd{Fd: int32(s.fd), Events: unix.POLLIN})
	}
	if p.mads > 0 {
		p.polls = append(p.polls, unix.PollFd{Fd: int32(p.mads), Events: unix.POLLIN})
	}
}

// Close implements driver.Port. A Wait in progress returns driver.ErrClosed.
func (p *Port) Close() error {
	p.closing.Do(func() {
		p.closed.Store(true)
		p.sleeper.Signal()
		p.net.close()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.stats.RxDropped += p.kernelDrops()
		for _, s := range p.socks {
			s.close()
		}
		p.socks = nil
		p.closeMADs()
		p.sleeper.Close()
	})
	return nil
}

// Addrs implements driver.Network. It lists the addresses on which the port receives.
func (p *Port) Addrs() []netip.Prefix { return p.net.state.Load().addrs }

// Changed implements driver.Network.
func (p *Port) Changed() <-chan struct{} { return p.net.changed }
