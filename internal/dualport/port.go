package dualport

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/udp"
	"github.com/gorxe/gorxe/xdp"
	"golang.org/x/sys/unix"
)

const (
	// localToken marks the tokens of buffers of the UDP port.
	localToken = 1 << 63
	// After hotPolls calls of Receive without a packet of the UDP port, only one in pollLocal calls
	// looks there, because that is a system call.
	hotPolls  = 4
	pollLocal = 32
	// batch is the number of frames that are copied at a time.
	batch = 64
)

// Port joins an AF_XDP port and a UDP port. It implements driver.Port, Network, Finder, Router,
// Groups, Holder, StatsReader, Backlogger, Watcher, Overlapper, RunSender and Wrapper.
type Port struct {
	*xdp.Port
	local *udp.Port
	mac   atomic.Pointer[bth.MAC] // of the interface

	// Owner only.
	idle   int // calls of Receive since the UDP port had packets
	rest   [batch]driver.Buf
	copies [batch]driver.Buf
	drops  uint64

	poll     int // epoll descriptor of the sockets of the UDP port
	mu       sync.Mutex
	shares   []int // duplicates of these sockets, in poll
	closed   bool  // poll is closed
	changed  chan struct{}
	stop     chan struct{}
	stopped  sync.Once
	finished sync.WaitGroup
	closeErr error
}

var (
	_ driver.Port        = (*Port)(nil)
	_ driver.Network     = (*Port)(nil)
	_ driver.Finder      = (*Port)(nil)
	_ driver.Router      = (*Port)(nil)
	_ driver.Groups      = (*Port)(nil)
	_ driver.Holder      = (*Port)(nil)
	_ driver.StatsReader = (*Port)(nil)
	_ driver.Backlogger  = (*Port)(nil)
	_ driver.Watcher     = (*Port)(nil)
	_ driver.Overlapper  = (*Port)(nil)
	_ driver.RunSender   = (*Port)(nil)
)

// New returns a Port, which owns both ports. They must be on the same interface, and local must
// have been opened with udp.Options.Shared. If New fails, it closes them.
func New(network *xdp.Port, local *udp.Port) (*Port, error) {
	p := &Port{Port: network, local: local, changed: make(chan struct{}, 1),
		stop: make(chan struct{})}
	var err error
	if p.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		_ = local.Close()
		_ = network.Close()
		return nil, err
	}
	network.AddPoll(p.poll)
	p.refresh()
	p.finished.Add(1)
	go p.follow()
	return p, nil
}

// Receive implements driver.Port.
func (p *Port) Receive(bufs []driver.Buf) int {
	n := p.Port.Receive(bufs)
	p.idle++
	if p.idle > hotPolls && p.idle%pollLocal != 0 || n == len(bufs) {
		return n
	}
	rest := bufs[n:]
	got := p.local.Receive(rest)
	for i := range rest[:got] {
		if rest[i].Token&driver.NoHeaders == 0 {
			p.setSender(rest[i].B)
		}
		rest[i].Token |= localToken
	}
	if got > 0 {
		p.idle = 0
	}
	return n + got
}

// setSender makes answers to a frame local, too.
func (p *Port) setSender(frame []byte) {
	mac := p.mac.Load()
	copy(frame[len(mac):], mac[:])
}

// OverlapHeaders implements driver.Overlapper.
func (p *Port) OverlapHeaders() { p.local.OverlapHeaders() }

// LeastRun implements driver.RunSender: Send looks at the headers of each packet.
func (p *Port) LeastRun() int { return 0 }

// Frame implements driver.Overlapper.
func (p *Port) Frame(b *driver.Buf, i int) []byte {
	f := p.local.Frame(b, i)
	p.setSender(f)
	return f
}

// Release implements driver.Port.
func (p *Port) Release(bufs []driver.Buf) {
	for len(bufs) > 0 {
		n, local := 1, bufs[0].Token&localToken != 0
		for n < len(bufs) && (bufs[n].Token&localToken != 0) == local {
			n++
		}
		if local {
			for i := range bufs[:n] {
				bufs[i].Token &^= localToken
			}
			p.local.Release(bufs[:n])
		} else {
			p.Port.Release(bufs[:n])
		}
		bufs = bufs[n:]
	}
}

// isLocal reports whether a frame goes to this host or to a multicast group.
func (p *Port) isLocal(b []byte) bool {
	return len(b) >= 6 && (b[0]&1 != 0 || bth.MAC(b[:6]) == *p.mac.Load())
}

// Send implements driver.Port.
func (p *Port) Send(bufs []driver.Buf) (n int, err error) {
	local := false
	for i := range bufs {
		local = local || p.isLocal(bufs[i].B)
	}
	if !local {
		return p.Port.Send(bufs)
	}
	for len(bufs) > 0 && err == nil {
		var sent int
		k := min(len(bufs), batch)
		sent, err = p.sendMixed(bufs[:k])
		n += sent
		bufs = bufs[k:]
	}
	p.Port.Free(bufs)
	return n, err
}

// sendMixed sends at most batch frames, of which some go through the UDP port.
func (p *Port) sendMixed(bufs []driver.Buf) (n int, err error) {
	copies := p.copies[:p.local.Alloc(p.copies[:len(bufs)])]
	used, rest := 0, 0
	for i := range bufs {
		b := bufs[i].B
		switch {
		case !p.isLocal(b):
			p.rest[rest] = bufs[i]
			rest++
			continue
		case used == len(copies) || len(b) > len(copies[used].B):
			p.drops++
		default:
			c := &copies[used]
			c.B = c.B[:copy(c.B, b)]
			used++
		}
		p.Port.Free(bufs[i : i+1])
	}
	p.local.Free(copies[used:])
	n, err = p.local.Send(copies[:used])
	if rest > 0 {
		var sent int
		sent, err = p.Port.Send(p.rest[:rest])
		n += sent
	}
	return n, err
}

// Wait implements driver.Port.
func (p *Port) Wait(d time.Duration) error {
	err := p.Port.Wait(d)
	p.idle = 0
	return err
}

// Stats implements driver.StatsReader.
func (p *Port) Stats() driver.Stats {
	s, l := p.Port.Stats(), p.local.Stats()
	s.RxFrames += l.RxFrames
	s.RxBytes += l.RxBytes
	s.TxFrames += l.TxFrames
	s.TxBytes += l.TxBytes
	s.RxDropped += l.RxDropped
	s.TxDropped += l.TxDropped + p.drops
	s.TxRuns += l.TxRuns
	s.Kicks += l.Kicks
	return s
}

// Close implements driver.Port.
func (p *Port) Close() error {
	p.stopped.Do(func() {
		close(p.stop)
		p.finished.Wait()
		p.closeErr = p.Port.Close()
		_ = p.local.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.closeShares()
		p.closed = true
		_ = unix.Close(p.poll)
	})
	return p.closeErr
}
