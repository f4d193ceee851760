package xdp

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/xdp/internal/osnet"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
)

// Device is an interface as a place to run RoCE on. Nothing is attached to find it out.
type Device struct {
	Name   string
	Kind   string // what `ip link` calls the type: "veth", "tuntap", "vlan", ...; "device" for hardware
	Driver string // as ethtool calls it; "" if it does not tell
	MAC    bth.MAC
	Up     bool // set up, and the link is there
	MTU    int  // IP MTU, bytes
	// PathMTU is the largest path MTU that the MTU allows, 0 if none.
	PathMTU bth.MTU
	Queues  int // receive queues
	XDP     Offer
	// Auto is the mode that Open chooses in mode Auto.
	Auto Mode
	// Program is the ID of an XDP program that is attached, 0 if none is.
	Program uint32
	// StripsVLAN: the driver takes VLAN tags off before XDP sees frames, so that tagged RoCE
	// arrives untagged (`ethtool -K IFACE rxvlan off` ends that).
	StripsVLAN bool
	Addrs      []netip.Prefix // as Port.Addrs
	// Err says why Open would refuse, and what to do; nil if it would try.
	Err error
}

// Offer is what a driver's XDP can do.
type Offer struct {
	Generic     bool // XDP on skbs: every Ethernet interface
	Native      bool // XDP in the driver, with redirection to sockets
	ZeroCopy    bool // AF_XDP without copying
	MultiBuffer bool // frames of several buffers in native mode
	// Told: the kernel itself said so (6.3 and later). Otherwise it is from a list of drivers known to
	// have them, and MultiBuffer is not known.
	Told bool
}

// Interfaces describes every interface of a network namespace (a file descriptor; 0 or negative: the
// calling thread's), sorted by name.
func Interfaces(ns int) ([]Device, error) {
	var list []Device
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
	slices.SortFunc(list, func(a, b Device) int { return cmp.Compare(a.Name, b.Name) })
	return list, err
}

// Probe describes one interface of a network namespace.
func Probe(iface string, ns int) (d Device, err error) {
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

type prober struct {
	net    *network
	family *netlink.GenlFamily // "netdev"; nil if the kernel has none
}

func newProber() (*prober, error) {
	n, err := newNetwork()
	if err != nil {
		return nil, err
	}
	p := &prober{net: n}
	if f, err := netlink.GenlFamilyGet(netdevFamily); err == nil {
		p.family = f
	}
	return p, nil
}

func (p *prober) close() { p.net.close() }

func (p *prober) describe(l netlink.Link) Device {
	a := l.Attrs()
	d := Device{
		Name: a.Name, Kind: l.Type(), Driver: osnet.Driver(a.Name), Up: running(a),
		MTU: a.MTU, PathMTU: bth.MTUFor(a.MTU), Queues: min(rxQueues(l), maxQueues),
		StripsVLAN: osnet.RxVLANStripped(a.Name),
	}
	copy(d.MAC[:], a.HardwareAddr)
	if a.Xdp != nil && a.Xdp.Attached {
		d.Program = a.Xdp.ProgId
	}
	d.XDP = p.offer(a, d.Driver)
	d.Auto = Generic
	if d.XDP.Native {
		d.Auto = autoMode(l.Type(), d.Driver, a.MTU)
	}
	d.Err = refuse(a)
	addrs, err := p.net.readAddrs(l)
	d.Addrs = addrs.usable
	switch {
	case d.Err != nil:
	case err != nil:
		d.Err = err
	case len(addrs.usable) == 0 && !addrs.tentative:
		d.Err = noAddress(a.Name)
	}
	return d
}

// Feature bits of the kernel's netdev netlink family (enum netdev_xdp_act).
const (
	actBasic    = 1 << 0
	actRedirect = 1 << 1
	actZeroCopy = 1 << 3
	actRxSG     = 1 << 5
)

func (p *prober) offer(a *netlink.LinkAttrs, driver string) Offer {
	if a.EncapType != "ether" {
		return Offer{Told: true}
	}
	if f, ok := p.xdpFeatures(a.Index); ok {
		native := f&(actBasic|actRedirect) == actBasic|actRedirect
		return Offer{Generic: true, Native: native, ZeroCopy: native && f&actZeroCopy != 0, MultiBuffer: native && f&actRxSG != 0, Told: true}
	}
	zero, known := nativeDrivers[driver]
	return Offer{Generic: true, Native: known, ZeroCopy: zero}
}

// nativeDrivers have XDP with redirection in kernels that cannot be asked; the value says whether they have zero-copy.
var nativeDrivers = map[string]bool{
	"bnxt_en": false, "ena": false, "gve": false, "hv_netvsc": false, "i40e": true, "ice": true, "igb": false,
	"igc": true, "ixgbe": true, "ixgbevf": false, "mlx4_en": false, "mlx5_core": true, "mvneta": false, "mvpp2": false,
	"nfp": false, "qede": false, "sfc": false, "stmmac": true, "tun": false, "veth": false, "virtio_net": false,
}

// Of linux/netdev.h.
const (
	netdevFamily      = "netdev"
	netdevCmdDevGet   = 1
	netdevAttrIfindex = 1
	netdevAttrXDP     = 3
)

// xdpFeatures asks the kernel for the XDP features of an interface; !ok if it cannot tell (before 6.3).
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
