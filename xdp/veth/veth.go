package veth

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/gorxe/gorxe/xdp/internal/osnet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Addresses and names of every pair. Each pair is alone in its two
// namespaces, so they never clash.
const (
	nameA, nameB = "gorxe-a", "gorxe-b"

	defaultMTU = 1500
	maxQueues  = 64
	maxMTU     = 65535
	minMTU     = 68 // what IPv4 and the kernel's veth ask for at least

	settlePatience = time.Second
	settlePause    = time.Millisecond
)

// ErrOptions says that a field of Options is out of range.
var ErrOptions = errors.New("bad veth options")

// ErrPermission says that namespaces and interfaces could not be made for lack
// of privileges.
var ErrPermission = errors.New("making network namespaces needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN)")

// Options of a pair. The zero value gives MTU 1500, one queue, IPv4 and IPv6.
type Options struct {
	MTU    int  // IP MTU of both ends, bytes; 0 = 1500
	Queues int  // receive and transmit queues of each end; 0 = 1
	NoIPv6 bool // IPv4 addresses only, IPv6 disabled in both namespaces

	// Offloads leaves checksum and segmentation offload on, as a fresh veth
	// has them: bulk TCP is then several times faster, but UDP of the kernel
	// reaches the other end with unfinished checksums.
	Offloads bool
}

// Pair is two ends in two namespaces. Close it to remove both.
type Pair struct {
	A, B End
}

// End is one end of a pair: an interface in a network namespace of its own.
type End struct {
	NetNS *os.File // the namespace; open until Pair.Close
	Iface string
	Index int // interface index in NetNS
	IPv4  netip.Prefix
	IPv6  netip.Prefix // zero with Options.NoIPv6
	MAC   [6]byte

	once *sync.Once
}

// Fd returns the namespace's file descriptor, as xdp.Options.NetNS wants it.
func (e *End) Fd() int { return int(e.NetNS.Fd()) }

// Do runs f in the end's namespace, on a thread of its own that is thrown
// away afterwards. Sockets that f makes belong to the namespace for ever;
// goroutines that f starts do not. A Goexit in f (t.FailNow) comes back as an
// error.
func (e *End) Do(f func() error) error { return osnet.In(e.Fd(), f) }

// New makes a pair: 10.77.0.1/24 and fd77::1/64 on A, .2 and ::2 on B,
// both up, loopback too, no waiting for duplicate address detection.
func New(o Options) (*Pair, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	p := &Pair{A: newEnd(nameA, 1), B: newEnd(nameB, 2)}
	if o.NoIPv6 {
		p.A.IPv6, p.B.IPv6 = netip.Prefix{}, netip.Prefix{}
	}
	if err := p.build(&o); err != nil {
		p.Close()
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
			return nil, fmt.Errorf("%w: %w", ErrPermission, err)
		}
		return nil, err
	}
	return p, nil
}

func (o *Options) check() error {
	if o.MTU == 0 {
		o.MTU = defaultMTU
	}
	if o.Queues == 0 {
		o.Queues = 1
	}
	if o.MTU < minMTU || o.MTU > maxMTU {
		return fmt.Errorf("%w: MTU %d is not in %d..%d", ErrOptions, o.MTU, minMTU, maxMTU)
	}
	if o.Queues < 0 || o.Queues > maxQueues {
		return fmt.Errorf("%w: %d queues are not in 1..%d", ErrOptions, o.Queues, maxQueues)
	}
	return nil
}

func newEnd(name string, host byte) End {
	return End{
		Iface: name,
		IPv4:  netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 77, 0, host}), 24),
		IPv6:  netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x77, 15: host}), 64),
		MAC:   [6]byte{0x02, 0x77, 0, 0, 0, host}, // locally administered
		once:  new(sync.Once),
	}
}

func (p *Pair) build(o *Options) (err error) {
	for _, e := range []*End{&p.A, &p.B} {
		if e.NetNS, err = osnet.NewNS(); err != nil {
			return err
		}
	}
	for _, e := range []*End{&p.A, &p.B} {
		if err = e.Do(func() error { return prepare(o) }); err != nil {
			return err
		}
	}
	if err = p.A.Do(func() error { return addVeth(p, o) }); err != nil {
		return err
	}
	for _, e := range []*End{&p.A, &p.B} {
		if err = e.Do(func() error { return e.configure(o) }); err != nil {
			return err
		}
	}
	for _, e := range []*End{&p.A, &p.B} {
		if err = e.Do(func() error { return e.settle(o) }); err != nil {
			return err
		}
	}
	return nil
}

// prepare sets up a fresh namespace before its veth end exists.
func prepare(o *Options) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	// Link-local addresses would be tentative for a second or two otherwise.
	// Where /proc/sys is read-only or IPv6 is not there, the pair still works.
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0)
	if o.NoIPv6 {
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
	}
	return nil
}

func addVeth(p *Pair, o *Options) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = p.A.Iface
	attrs.HardwareAddr = p.A.MAC[:]
	attrs.MTU = o.MTU
	attrs.NumTxQueues, attrs.NumRxQueues = o.Queues, o.Queues
	v := &netlink.Veth{
		LinkAttrs:        attrs,
		PeerName:         p.B.Iface,
		PeerHardwareAddr: p.B.MAC[:],
		PeerNamespace:    netlink.NsFd(p.B.Fd()),
		PeerMTU:          uint32(o.MTU),
		PeerNumTxQueues:  uint32(o.Queues),
		PeerNumRxQueues:  uint32(o.Queues),
	}
	if err := netlink.LinkAdd(v); err != nil {
		return fmt.Errorf("make veth pair: %w", err)
	}
	return nil
}

// configure runs in the end's namespace once its interface is there.
func (e *End) configure(o *Options) error {
	l, err := netlink.LinkByName(e.Iface)
	if err != nil {
		return fmt.Errorf("find %s: %w", e.Iface, err)
	}
	e.Index = l.Attrs().Index
	for _, p := range []netip.Prefix{e.IPv4, e.IPv6} {
		if !p.IsValid() {
			continue
		}
		if err := addAddr(l, p); err != nil {
			return err
		}
	}
	if !o.Offloads {
		if err := osnet.TxChecksumOff(e.Iface); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("set %s up: %w", e.Iface, err)
	}
	return nil
}

// settle waits until the carrier is there and the link-local IPv6 address too, which the kernel makes a
// moment later. A kernel that makes none keeps nobody waiting for long.
func (e *End) settle(o *Options) error {
	for deadline := time.Now().Add(settlePatience); time.Now().Before(deadline); time.Sleep(settlePause) {
		l, err := netlink.LinkByName(e.Iface)
		if err != nil {
			return fmt.Errorf("find %s: %w", e.Iface, err)
		}
		if l.Attrs().RawFlags&unix.IFF_LOWER_UP == 0 {
			continue
		}
		if o.NoIPv6 {
			return nil
		}
		addrs, err := netlink.AddrList(l, netlink.FAMILY_V6)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return fmt.Errorf("list addresses of %s: %w", e.Iface, err)
		}
		for _, a := range addrs {
			if a.IP.IsLinkLocalUnicast() && a.Flags&unix.IFA_F_TENTATIVE == 0 {
				return nil
			}
		}
	}
	return nil
}

func addAddr(l netlink.Link, p netip.Prefix) error {
	a := &netlink.Addr{IPNet: &net.IPNet{
		IP:   p.Addr().AsSlice(),
		Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()),
	}}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	if err := netlink.AddrAdd(l, a); err != nil {
		return fmt.Errorf("add address %v to %s: %w", p, l.Attrs().Name, err)
	}
	return nil
}

// Close lets go of both namespaces. They and the interfaces vanish as soon as no
// socket holds them any more, so close Ports and sockets first. Idempotent.
func (p *Pair) Close() error {
	var err error
	for _, e := range []*End{&p.A, &p.B} {
		e.once.Do(func() { err = errors.Join(err, e.close()) })
	}
	return err
}

func (e *End) close() error {
	if e.NetNS == nil {
		return nil
	}
	// A socket still open would keep the namespace; the interface goes in any
	// case, so that nothing is left half alive. Removing one end removes both:
	// the second time it is not found.
	err := e.Do(func() error {
		l, err := netlink.LinkByName(e.Iface)
		if err != nil {
			return nil
		}
		return netlink.LinkDel(l)
	})
	return errors.Join(err, e.NetNS.Close())
}
