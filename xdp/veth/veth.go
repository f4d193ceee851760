package veth

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/gorxe/gorxe/internal/osnet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Names and limits. Every pair has its own namespaces, so the names never collide.
const (
	nameA, nameB = "gorxe-a", "gorxe-b"

	defaultMTU = 1500
	maxQueues  = 64
	maxMTU     = 65535
	minMTU     = 68 // minimum of IPv4 and of the kernel's veth

	settlePatience = time.Second
	settlePause    = time.Millisecond
)

// ErrOptions means that a field of Options is out of range.
var ErrOptions = errors.New("invalid veth options")

// ErrPermission means that the process may not create namespaces and interfaces.
var ErrPermission = errors.New("creating network namespaces requires root (CAP_SYS_ADMIN and CAP_NET_ADMIN)")

// ErrUnsupported means that the kernel lacks what Options.Rate or End.Refuse needs.
var ErrUnsupported = errors.New("the kernel lacks a feature")

// Options configure a pair. The zero value gives MTU 1500, one queue, IPv4 and IPv6.
type Options struct {
	MTU    int  // IP MTU of both interfaces, bytes; 0 = 1500
	Queues int  // receive and transmit queues of each interface; 0 = 1
	NoIPv6 bool // no IPv6 addresses; IPv6 is disabled in both namespaces

	// Offloads leaves checksum and segmentation offload on, which is the kernel's default. TCP is
	// then several times faster, but UDP packets from kernel sockets arrive with incomplete
	// checksums.
	Offloads bool

	// Rate limits what each side sends, in bits per second of whole frames; 0 = unlimited. The
	// interfaces are then macvlan devices, which AF_XDP supports in generic mode only, and frames
	// wait below them. It requires the kernel's sch_tbf and macvlan. Each side then has one queue.
	Rate int64
}

// minRate is the smallest Options.Rate: a burst must not take longer than the kernel can express.
const minRate = 1_000_000

// Pair is two namespaces joined by a veth pair. Close removes them.
type Pair struct {
	A, B End
}

// End is one interface of the pair in its own network namespace.
type End struct {
	NetNS *os.File // the namespace; open until Pair.Close
	Iface string
	Index int // interface index in NetNS
	IPv4  netip.Prefix
	IPv6  netip.Prefix // zero with Options.NoIPv6
	MAC   [6]byte

	once *sync.Once
}

// Fd returns the file descriptor of the namespace, for xdp.Options.NetNS.
func (e *End) Fd() int { return int(e.NetNS.Fd()) }

// Do runs f in the namespace on a separate thread that is not reused. Sockets that f creates stay
// in the namespace; goroutines that f starts do not run in it. If f calls Goexit (t.FailNow), Do
// returns an error.
func (e *End) Do(f func() error) error { return osnet.In(e.Fd(), f) }

// New creates a pair with addresses 10.77.0.1/24 and fd77::1/64 on A, and .2 and ::2 on B. Both
// interfaces and the loopback interfaces are up, and no address is tentative.
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
		return fmt.Errorf("%w: MTU is %d, want %d to %d", ErrOptions, o.MTU, minMTU, maxMTU)
	}
	if o.Rate != 0 && (o.Rate < minRate || o.Queues > 1 || o.Offloads) {
		return fmt.Errorf("%w: Rate is %d bits per second, want at least %d, one queue, no Offloads",
			ErrOptions, o.Rate, minRate)
	}
	if o.Queues < 0 || o.Queues > maxQueues {
		return fmt.Errorf("%w: %d queues, want 1 to %d", ErrOptions, o.Queues, maxQueues)
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
		if o.Rate != 0 {
			if err = e.Do(func() error { return e.shape(o) }); err != nil {
				return err
			}
		}
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

// prepare configures a new namespace before its veth interface exists.
func prepare(o *Options) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	// Without this, link-local addresses would be tentative for a second or two. If /proc/sys is
	// read-only or there is no IPv6, the pair still works.
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0)
	if o.NoIPv6 {
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
	}
	return nil
}

func addVeth(p *Pair, o *Options) error {
	suffix := ""
	if o.Rate != 0 {
		suffix = lowerSuffix
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = p.A.Iface + suffix
	attrs.HardwareAddr = p.A.MAC[:]
	attrs.MTU = o.MTU
	attrs.NumTxQueues, attrs.NumRxQueues = o.Queues, o.Queues
	v := &netlink.Veth{
		LinkAttrs:        attrs,
		PeerName:         p.B.Iface + suffix,
		PeerHardwareAddr: p.B.MAC[:],
		PeerNamespace:    netlink.NsFd(p.B.Fd()),
		PeerMTU:          uint32(o.MTU),
		PeerNumTxQueues:  uint32(o.Queues),
		PeerNumRxQueues:  uint32(o.Queues),
	}
	if err := netlink.LinkAdd(v); err != nil {
		return fmt.Errorf("create veth pair: %w", err)
	}
	return nil
}

// configure sets up the interface. It runs in the interface's namespace.
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
	if !o.Offloads && o.Rate == 0 { // a macvlan device has the offloads of the interface below
		if err := osnet.TxChecksumOff(e.Iface); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("set %s up: %w", e.Iface, err)
	}
	return nil
}

// settle waits for the carrier and the link-local IPv6 address, which the kernel adds a moment
// later. It gives up after settlePatience, because some kernels add none.
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

// Close closes both namespaces and removes the interfaces. Close Ports and sockets in them first.
// It is idempotent.
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
	// An open socket would keep the namespace, so remove the interface explicitly. Removing one
	// interface also removes the other one, which is then not found.
	err := e.Do(func() error {
		var err error
		for _, name := range []string{e.Iface, e.Iface + lowerSuffix} {
			if l, e := netlink.LinkByName(name); e == nil {
				err = errors.Join(err, netlink.LinkDel(l))
			}
		}
		return err
	})
	return errors.Join(err, e.NetNS.Close())
}
