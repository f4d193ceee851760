package veth

import (
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/gorxe/gorxe/internal/osnet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// With Options.Rate, the veth interfaces have this suffix, and macvlan devices on top of them have
// the names of the ends. An AF_XDP socket sends past the queueing discipline of its own interface,
// but a macvlan device passes frames on to that of the interface below.
const lowerSuffix = "-veth"

// Parameters of the token bucket filter.
const (
	frameOverhead = 18       // Ethernet header and VLAN tag, bytes
	burstFrames   = 2        // longest frames that may be sent at once after a pause
	queueLimit    = 64 << 20 // bytes
)

// shape limits the rate of the veth interface of the end and adds the macvlan device. It runs in
// the end's namespace.
func (e *End) shape(o *Options) error {
	name := e.Iface + lowerSuffix
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0)
	if err := osnet.TxChecksumOff(name); err != nil {
		return err
	}
	lower, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	rate := uint64(o.Rate) / 8 // bytes per second
	burst := float64(burstFrames*(o.MTU+frameOverhead)) / float64(rate)
	err = netlink.QdiscAdd(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: lower.Attrs().Index,
			Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate: rate, Limit: queueLimit,
		Buffer: uint32(math.Ceil(burst * 1e6 * netlink.TickInUsec())),
	})
	if err != nil {
		return unsupported(fmt.Errorf("limit the rate of %s: %w", name, err))
	}
	if err := netlink.LinkSetUp(lower); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex = e.Iface, lower.Attrs().Index
	upper := &netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_PASSTHRU}
	if err := netlink.LinkAdd(upper); err != nil {
		return unsupported(fmt.Errorf("add a macvlan device to %s: %w", name, err))
	}
	return nil
}

// unsupported adds ErrUnsupported to an error that means that the kernel lacks a module.
func unsupported(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w: sch_tbf or macvlan devices (CONFIG_NET_SCH_TBF, CONFIG_MACVLAN): %w",
			ErrUnsupported, err)
	}
	return err
}
