//go:build linux

package xdp

import (
	"encoding/binary"
	"net"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/xdp/veth"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Constants of linux/virtio_net.h, and the length of the header that precedes frames on a tap with
// IFF_VNET_HDR.
const (
	vnetLen           = 10
	vnetNeedsChecksum = 1
	vnetUDPSegments   = 5
)

// Runs that a virtual machine sends reach the host over a tap, and arrive uncut.
func TestRunsOverTap(t *testing.T) {
	ns, tap := newTap(t, 1500, unix.IFF_VNET_HDR)
	end := &veth.End{NetNS: ns, Iface: "tap0"}
	onLink(t, end, func(l netlink.Link) error {
		a := &netlink.Addr{IPNet: &net.IPNet{IP: hostB4.AsSlice(), Mask: net.CIDRMask(24, 32)}}
		if err := netlink.AddrAdd(l, a); err != nil {
			return err
		}
		return netlink.LinkSetHardwareAddr(l, macB[:])
	})
	b := openEnd(t, end, Options{Mode: Generic})
	for _, c := range []struct{ count, size int }{{40, 1024}, {64, 64}, {1, 256}} {
		data, want, size := roce{}.run(several(c.count, bth.RCWriteOnly), 1, c.size)
		head := make([]byte, vnetLen)
		head[0] = vnetNeedsChecksum
		if c.count > 1 {
			head[1] = vnetUDPSegments
		}
		binary.NativeEndian.PutUint16(head[2:], etherLen+ipv4Len+udpLen)
		binary.NativeEndian.PutUint16(head[4:], uint16(size))
		binary.NativeEndian.PutUint16(head[6:], etherLen+ipv4Len) // start of the checksum
		binary.NativeEndian.PutUint16(head[8:], 6)                // its offset
		if _, err := unix.Write(tap, append(head, superFrame(roce{}, data, want[0])...)); err != nil {
			t.Fatalf("write a run of %d packets: %v", c.count, err)
		}
		expect(t, b, want)
	}
	if b.split.lengths == [recentLengths]int{} {
		t.Error("no run arrived uncut")
	}
}
