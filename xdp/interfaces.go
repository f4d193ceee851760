//go:build linux

package xdp

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/osnet"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Interface describes a network interface and whether RoCE can run on it. Finding this out does not
// change the interface.
type Interface struct {
	Name   string
	Kind   string // type in `ip -d link`, such as "veth" or "vlan"; "device" for hardware
	Driver string // driver as reported by ethtool, or ""
	MAC    bth.MAC
	Up     bool // administratively up, and the link is up
	MTU    int  // IP MTU, bytes
	// PathMTU is the largest path MTU that fits MTU, or 0.
	PathMTU bth.MTU
	Queues  int // number of receive queues
	XDP     Features
	// Auto is the mode that Open selects in mode Auto.
	Auto Mode
	// Runs says that a Port in mode Auto receives runs of packets uncut and splits them. It is
	// false if the caller may not open AF_XDP sockets.
	Runs bool
	// Program is the ID of the attached XDP program, or 0.
	Program uint32
	// StripsVLAN reports that the driver removes VLAN tags before XDP, so that tagged RoCE frames
	// arrive untagged. `ethtool -K IFACE rxvlan off` turns this off.
	StripsVLAN bool
	Addrs      []netip.Prefix // same order as Port.Addrs
	// Err says why Open would fail and what to do, or is nil.
	Err error
}

// Features are the XDP features of a driver.
type Features struct {
	Generic     bool // XDP on socket buffers: any Ethernet interface
	Native      bool // XDP in the driver, with redirection to sockets
	ZeroCopy    bool // AF_XDP without copying
	MultiBuffer bool // frames of several buffers in native mode
	// Reported is true if the kernel reported the features (6.3 and later). Otherwise they come
	// from a list of known drivers, and MultiBuffer is unknown.
	Reported bool
}

// Interfaces describes all interfaces of a network namespace, sorted by name. ns is the file
// descriptor of the namespace; 0 or a negative value selects the namespace of the calling thread.
func Interfaces(ns int) ([]Interface, error) {
	var list []Interface
	err := osnet.In(ns, func() error {
		p, err := newProber()
		if err != nil {
			return err
		}
		defer p.close()
		links, err := p.net.handle.LinkList()
		if err != nil {
			return fmt.Errorf("list interfaces: %w", err)
		}
		for _, l := range links {
			list = append(list, p.describe(l))
		}
		return nil
	})
	slices.SortFunc(list, func(a, b Interface) int { return cmp.Compare(a.Name, b.Name) })
	return list, err
}

// Probe describes one interface of a network namespace. For ns see Interfaces.
func Probe(iface string, ns int) (d Interface, err error) {
	err = osnet.In(ns, func() error {
		p, err := newProber()
		if err != nil {
			return err
		}
		defer p.close()
		o := opener{Port: Port{net: p.net}}
		if err := o.findLink(iface); err != nil {
			return fmt.Errorf("%s: %w", iface, err)
		}
		d = p.describe(o.link)
		return nil
	})
	return d, err
}

// CheckPermission returns ErrPermission if the calling thread lacks a capability that Open needs.
func CheckPermission() error {
	// Programs may raise those that are only permitted.
	enough, err := capable(func(d unix.CapUserData) uint32 { return d.Effective | d.Permitted })
	if err == nil && !enough {
		err = errors.New("it requires root, or CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF")
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrPermission, err)
	}
	return nil
}

// capable reports whether a set of the calling thread has the capabilities that Open needs.
func capable(set func(unix.CapUserData) uint32) (bool, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false, fmt.Errorf("read the capabilities: %w", err)
	}
	has := func(c int) bool { return set(data[c/32])>>(c%32)&1 != 0 }
	return has(unix.CAP_NET_ADMIN) && has(unix.CAP_NET_RAW) &&
		(has(unix.CAP_BPF) || has(unix.CAP_SYS_ADMIN)), nil
}

type prober struct {
	net    *network
	family *netlink.GenlFamily // "netdev", or nil if the kernel does not have it
	// multiBuffer is kernelHasMultiBuffer(), which needs CAP_NET_RAW.
	multiBuffer bool
}

func newProber() (*prober, error) {
	n, err := newNetwork()
	if err != nil {
		return nil, err
	}
	p := &prober{net: n, multiBuffer: kernelHasMultiBuffer()}
	if f, err := netlink.GenlFamilyGet(netdevFamily); err == nil {
		p.family = f
	}
	return p, nil
}

func (p *prober) close() { p.net.close() }

func (p *prober) describe(l netlink.Link) Interface {
	a := l.Attrs()
	d := Interface{
		Name: a.Name, Kind: l.Type(), Driver: osnet.Driver(a.Name), Up: osnet.Running(a),
		MTU: a.MTU, PathMTU: bth.MTUFor(a.MTU), Queues: min(rxQueues(l), maxQueues),
		StripsVLAN: osnet.RxVLANStripped(a.Name),
	}
	copy(d.MAC[:], a.HardwareAddr)
	if a.Xdp != nil && a.Xdp.Attached {
		d.Program = a.Xdp.ProgId
	}
	d.XDP = p.features(a, d.Driver)
	d.Auto = Generic
	if d.XDP.Native {
		d.Auto = autoMode(l.Type(), d.Driver, a.MTU)
	}
	d.Runs = d.XDP.Generic && d.Auto == Generic && p.multiBuffer
	d.Err = checkAttrs(a)
	addrs, err := p.net.readAddrs(l)
	d.Addrs = addrs.Usable
	switch {
	case d.Err != nil:
	case err != nil:
		d.Err = err
	case len(addrs.Usable) == 0 && !addrs.Tentative:
		d.Err = noAddress(a.Name)
	}
	return d
}

// Feature bits of enum netdev_xdp_act in linux/netdev.h.
const (
	actBasic    = 1 << 0
	actRedirect = 1 << 1
	actZeroCopy = 1 << 3
	actRxSG     = 1 << 5
)

func (p *prober) features(a *netlink.LinkAttrs, driver string) Features {
	if a.EncapType != "ether" {
		return Features{Reported: true}
	}
	if f, ok := p.xdpFeatures(a.Index); ok {
		native := f&(actBasic|actRedirect) == actBasic|actRedirect
		return Features{Generic: true, Native: native, ZeroCopy: native && f&actZeroCopy != 0,
			MultiBuffer: native && f&actRxSG != 0, Reported: true}
	}
	zero, known := nativeDrivers[driver]
	return Features{Generic: true, Native: known, ZeroCopy: zero}
}

// nativeDrivers lists the drivers that have XDP with redirection, for kernels that do not report
// features. The value is true if the driver supports zero-copy.
var nativeDrivers = map[string]bool{
	"bnxt_en": false, "ena": false, "gve": false, "hv_netvsc": false, "i40e": true, "ice": true,
	"igb": false,
	"igc": true, "ixgbe": true, "ixgbevf": false, "mlx4_en": false, "mlx5_core": true,
	"mvneta": false, "mvpp2": false,
	"nfp": false, "qede": false, "sfc": false, "stmmac": true, "tun": false, "veth": false,
	"virtio_net": false,
}

// Constants of linux/netdev.h.
const (
	netdevFamily      = "netdev"
	netdevCmdDevGet   = 1
	netdevAttrIfindex = 1
	netdevAttrXDP     = 3
)

// xdpFeatures asks the kernel for the XDP features of an interface. ok is false if the kernel does
// not report them (before 6.3).
func (p *prober) xdpFeatures(index int) (bits uint64, ok bool) {
	if p.family == nil {
		return 0, false
	}
	attr := nl.NewRtAttr(netdevAttrIfindex, nl.Uint32Attr(uint32(index)))
	attrs, err := genlGet(int(p.family.ID), netdevCmdDevGet, uint8(p.family.Version), attr)
	if err != nil || len(attrs[netdevAttrXDP]) < 8 {
		return 0, false
	}
	return binary.NativeEndian.Uint64(attrs[netdevAttrXDP]), true
}
