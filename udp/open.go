package udp

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/osnet"
	"github.com/gorxe/gorxe/internal/udpmsg"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Options configure Open. The zero value suits most users.
type Options struct {
	// Addrs are the addresses of the interface to use; empty means all of them. On the loopback
	// interface, they may be any of 127.0.0.0/8.
	Addrs []netip.Addr

	// NetNS is a file descriptor of the interface's network namespace; 0 or a negative value means
	// the namespace of the process.
	NetNS int

	// Shared lets further sockets be bound to the addresses of the Port (SO_REUSEPORT), which
	// Port.Share needs.
	Shared bool
}

// Open opens a Port on a network interface, or on an IP address of this host.
//
// The error wraps driver.ErrNoInterface, ErrNoAddress, ErrLinkDown, ErrBusy, ErrMTUTooSmall or
// ErrUnsupported and says what to do.
func Open(name string, o Options) (p *Port, err error) {
	err = osnet.In(o.NetNS, func() error {
		p, err = open(name, o)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	return p, nil
}

func open(name string, o Options) (_ *Port, err error) {
	n, err := openNetwork()
	if err != nil {
		return nil, err
	}
	n.shared = o.Shared
	p := &Port{net: n}
	defer func() {
		if err != nil {
			p.undo()
		}
	}()
	for _, a := range o.Addrs {
		n.only = append(n.only, a.Unmap().WithZone(""))
	}
	link, err := n.find(name)
	if err != nil {
		return nil, err
	}
	n.index = link.Attrs().Index
	if o.NetNS > 0 {
		if n.ns, err = unix.FcntlInt(uintptr(o.NetNS), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			return nil, fmt.Errorf("network namespace: %w", err)
		}
	}
	if err := checkLink(link.Attrs()); err != nil {
		return nil, err
	}
	list, err := n.awaitAddrs(link)
	if err != nil {
		return nil, err
	}
	addrs, note := limit(list)
	for _, a := range addrs {
		if find(p.socks, a.Addr()) != nil { // an address with several prefixes
			continue
		}
		s, err := openSocket(a.Addr(), n.index, n.shared)
		if err != nil {
			return nil, err
		}
		p.socks = append(p.socks, s)
	}
	if err := p.sleeper.Open(); err != nil {
		return nil, err
	}
	n.base = driver.Info{Datapath: "udp", Queues: 1, SourcePort: bth.Port,
		ReceiveBuffer: p.socks[0].buffer, Runs: p.socks[0].runs,
		MAC: n.macOf(link.Attrs(), addrs[0].Addr())}
	s := &state{addrs: addrs}
	n.describe(&s.info, link.Attrs())
	s.info.Note = note
	n.state.Store(s)
	p.start()
	return p, nil
}

// start makes the buffers and follows changes.
func (p *Port) start() {
	p.rx, p.tx = newPool(rxBuffers), newPool(txBuffers)
	p.tx.touch(batch)
	p.in, p.out = udpmsg.NewBatch(), udpmsg.NewSender()
	p.out.Index, p.out.Refused, p.out.Note = p.net.index, p.refusedBy, p.net.setNote
	p.ready = make([]driver.Buf, 0, rxBuffers)
	for i := range p.long {
		p.long[i] = make([]byte, 1<<16)
	}
	if !p.socks[0].runs {
		p.net.setNote(noRuns)
	}
	p.makePolls()
	p.watch()
}

// noRuns is the note on kernels before 5.0.
const noRuns = "the kernel has no segmentation offload for UDP sockets: packets are sent one by one"

// undo releases everything after an error.
func (p *Port) undo() {
	for _, s := range p.socks {
		s.close()
	}
	p.sleeper.Close()
	p.net.close()
}

// find returns the interface with a name, or that with an address. In the latter case the Port uses
// only this address.
func (n *network) find(name string) (netlink.Link, error) {
	a, err := netip.ParseAddr(name)
	if err != nil {
		l, err := n.handle.LinkByName(name)
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			return nil, fmt.Errorf("%w: list the interfaces with `ip link`", driver.ErrNoInterface)
		}
		return l, err
	}
	links, err := n.handle.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	n.only = []netip.Addr{a.Unmap().WithZone("")}
	for _, l := range links {
		if a.Zone() != "" && a.Zone() != l.Attrs().Name {
			continue
		}
		found, err := n.readAddrs(l)
		if err == nil && (len(found.Usable) > 0 || found.Tentative) {
			return l, nil
		}
	}
	return nil, fmt.Errorf("%w %v: list the addresses of this host with `ip addr`",
		driver.ErrNoAddress, a)
}

// checkLink returns an error if the interface cannot be opened.
func checkLink(a *netlink.LinkAttrs) error {
	switch {
	case a.RawFlags&unix.IFF_UP == 0:
		return fmt.Errorf("%w: set it up with `ip link set dev %s up`", driver.ErrLinkDown, a.Name)
	case bth.MTUFor(a.MTU) == 0:
		return fmt.Errorf("%w: MTU is %d, minimum is %d (path MTU 256 and %d bytes of headers): "+
			"raise it with `ip link set dev %s mtu 1500`",
			driver.ErrMTUTooSmall, a.MTU, 256+bth.Headroom, bth.Headroom, a.Name)
	}
	return nil
}

// awaitAddrs returns the addresses that the Port can use, at least one. It waits for duplicate
// address detection if there is no other address.
func (n *network) awaitAddrs(l netlink.Link) ([]netip.Prefix, error) {
	list, err := osnet.AwaitAddrs(func() (osnet.Addresses, error) { return n.readAddrs(l) })
	if err == nil && len(list) == 0 {
		err = noAddress(l.Attrs().Name, n.only)
	}
	return list, err
}

func noAddress(name string, only []netip.Addr) error {
	if len(only) > 0 {
		return fmt.Errorf("%w %v: list its addresses with `ip addr show dev %s`",
			driver.ErrNoAddress, only[0], name)
	}
	return fmt.Errorf("%w and therefore no GID: add one with `ip addr add ADDRESS/PREFIX dev %s`",
		driver.ErrNoAddress, name)
}

// RandomLoopback returns a random address in 127.64.0.0/10, for a Port whose peers are on this
// host.
func RandomLoopback() netip.Addr {
	r := rand.Uint32()
	return netip.AddrFrom4([4]byte{127, 64 + byte(r>>16)%64, byte(r >> 8), 1 + byte(r)%254})
}

// Probe returns nil if the current user can open an interface now. It opens and closes sockets.
func Probe(name string) error {
	p, err := Open(name, Options{})
	if err != nil {
		return errors.Unwrap(err)
	}
	return p.Close()
}
