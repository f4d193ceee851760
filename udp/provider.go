package udp

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/osnet"
	"github.com/gorxe/gorxe/internal/udpmsg"
	"golang.org/x/sys/unix"
)

// Provider opens the sockets of a Port and answers its questions about the network, instead of the
// network namespace of the process. Its methods are safe for concurrent use.
type Provider interface {
	// State returns the present state. The Port closes its sockets of addresses that are not in
	// the state, and opens those of new ones. After an error, it closes all sockets, and Port.Wait
	// returns this error.
	State() (Provided, error)
	// Changed returns a channel that receives a value after the state has changed.
	Changed() <-chan struct{}
	// Open returns the descriptor of a socket that is bound to UDP port 4791 of an address, or of a
	// multicast group. It belongs to the Port then.
	Open(a netip.Addr) (fd int, err error)
	// Closed says that the Port has closed the socket of an address.
	Closed(a netip.Addr)
	// Mixed says that runs have packets of several slots, because the kernel has merged received
	// packets (GRO), so that packets get lost. It does not block.
	Mixed()
	// Resolve is that of driver.Network.
	Resolve(ctx context.Context, src, dst netip.Addr) (driver.Hop, error)
	// Close releases everything. Calls in progress return driver.ErrClosed.
	Close()
}

// Provided is what a Provider knows about the network.
type Provided struct {
	// Datapath, MaxFrame, Queues, SourcePort, ReceiveBuffer and Runs are not used
	Info  driver.Info
	Index int            // number of the interface in its network namespace; may not change
	Addrs []netip.Prefix // in the order of the GID table, at least one at first
	// Slot, if it is not 0, is the top byte of the QPNs whose packets the Port receives. It drops
	// packets with other ones.
	Slot uint8
	// MADs, if it is not 0, is a descriptor of a datagram socket from which the Port receives
	// further frames, from the Ethernet header to the ICRC. It belongs to the Port. It may not
	// change.
	MADs int
}

// OpenProvided opens a Port whose sockets a Provider opens. The Provider belongs to the Port then,
// also after an error.
func OpenProvided(from Provider) (*Port, error) {
	p, err := openProvided(from)
	if err != nil {
		from.Close()
	}
	return p, err
}

func openProvided(from Provider) (_ *Port, err error) {
	now, err := from.State()
	if err != nil {
		return nil, err
	}
	n := &network{from: from, index: now.Index, changed: make(chan struct{}, 1),
		stop: make(chan struct{}), groups: map[netip.Addr]*socket{}}
	p := &Port{net: n, slot: now.Slot, mads: now.MADs}
	defer func() {
		if err != nil {
			for _, s := range p.socks {
				s.close()
			}
			p.sleeper.Close()
			if p.mads > 0 {
				_ = unix.Close(p.mads)
			}
		}
	}()
	for _, a := range now.Addrs {
		if find(p.socks, a.Addr()) != nil { // an address with several prefixes
			continue
		}
		s, err := n.open(a.Addr())
		if err != nil {
			return nil, err
		}
		p.socks = append(p.socks, s)
	}
	if len(p.socks) == 0 {
		return nil, noAddress(now.Info.Name, nil)
	}
	if err := p.sleeper.Open(); err != nil {
		return nil, err
	}
	n.base = driver.Info{Datapath: "udp", Queues: 1, SourcePort: bth.Port,
		ReceiveBuffer: p.socks[0].buffer, Runs: p.socks[0].runs}
	n.state.Store(&state{addrs: now.Addrs, info: n.merge(now.Info)})
	p.start()
	return p, nil
}

// merge returns the Info of a Port from that of its Provider.
func (n *network) merge(info driver.Info) driver.Info {
	b := &n.base
	info.Datapath, info.Queues, info.SourcePort = b.Datapath, b.Queues, b.SourcePort
	info.ReceiveBuffer, info.Runs = b.ReceiveBuffer, b.Runs
	info.MaxFrame = min(info.MTU, maxPacket) + etherLen
	info.VLAN = 0
	return info
}

// openProvided opens the socket of an address.
func (n *network) openProvided(a netip.Addr) (*socket, error) {
	fd, err := n.from.Open(a)
	if err != nil {
		return nil, err
	}
	s := newSocket(a, udpmsg.Adopt(fd))
	s.from = n.from
	return s, nil
}

// follow takes over the states of the Provider until close.
func (p *Port) follow() {
	n := p.net
	for {
		select {
		case <-n.stop:
			return
		case <-n.from.Changed():
		}
		if p.takeState() {
			n.notify()
		}
	}
}

// takeState publishes the state of the Provider and reports whether it differs from the old one.
func (p *Port) takeState() (changed bool) {
	n := p.net
	old := n.state.Load()
	next := *old
	now, err := n.from.State()
	if err != nil {
		next.err, next.info.Up = err, false
		n.state.Store(&next)
		// A new service needs the addresses.
		p.change(func([]*socket) []*socket { return nil })
		return !errors.Is(old.err, err)
	}
	next.info = n.merge(now.Info)
	if !slices.Equal(now.Addrs, old.addrs) {
		next.addrs = p.setAddrs(now.Addrs, &next.info)
	}
	if next.info == old.info && slices.Equal(next.addrs, old.addrs) {
		return false
	}
	n.state.Store(&next)
	return true
}

// Share returns a duplicate of the socket that is bound to an address of a Port with
// Options.Shared. The caller closes it. The error wraps driver.ErrNoAddress if there is none. Share
// is safe for concurrent use.
func (p *Port) Share(a netip.Addr) (fd int, err error) {
	err = driver.ErrNoAddress
	p.change(func(old []*socket) []*socket {
		if s := find(old, a); s != nil {
			fd, err = unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 0)
		}
		return old
	})
	return fd, err
}

// InNamespace calls f in the network namespace of the interface.
func (p *Port) InNamespace(f func() error) error { return osnet.In(p.net.ns, f) }

// Index returns the number of the interface.
func (p *Port) Index() int { return p.net.index }

// noteMADs looks at the latest result of poll for the Provider's socket.
func (p *Port) noteMADs() {
	if p.mads > 0 && p.polls[len(p.polls)-1].Revents != 0 {
		p.some = true
	}
}

// madBatch is the maximum number of frames that one call takes from the Provider's socket.
const madBatch = 16

// receiveMADs appends frames of the Provider's socket to p.ready.
func (p *Port) receiveMADs() {
	for range madBatch {
		if p.mads == 0 || len(p.rx.free) == 0 {
			return
		}
		k := p.rx.free[len(p.rx.free)-1]
		slot := p.rx.slot(k)
		n, _, err := unix.Recvfrom(p.mads, slot, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			p.some = false
			return
		case err != nil || n == 0: // the Provider has closed it
			p.closeMADs()
			p.makePolls()
			return
		}
		p.rx.free = p.rx.free[:len(p.rx.free)-1]
		p.ready = append(p.ready, driver.Buf{B: slot[:n:n], Token: uint64(k)})
		p.stats.RxFrames++
		p.stats.RxBytes += uint64(n)
	}
}

func (p *Port) closeMADs() {
	if p.mads > 0 {
		_ = unix.Close(p.mads)
	}
	p.mads, p.some = 0, false
}
