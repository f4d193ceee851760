package roce

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/gorxe/gorxe/driver"
)

// PortKind is how Open sends and receives packets: WithPort.
type PortKind uint8

const (
	// PortAuto selects PortXDP if the process may use it, and PortUDP otherwise.
	PortAuto PortKind = iota
	// PortXDP uses AF_XDP sockets. It needs privileges and an Ethernet interface, and is faster.
	PortXDP
	// PortUDP uses UDP sockets. It needs no privileges and works on all interfaces with an IP
	// address. It uses UDP port 4791 of the addresses, which no other socket may use.
	PortUDP
)

var portNames = [...]string{PortAuto: "auto", PortXDP: "xdp", PortUDP: "udp"}

// String returns "auto", "xdp" or "udp".
func (k PortKind) String() string {
	if int(k) < len(portNames) {
		return portNames[k]
	}
	return fmt.Sprintf("port kind %d", uint8(k))
}

// ParsePortKind parses the result of PortKind.String. It ignores case.
func ParsePortKind(s string) (PortKind, error) {
	for k, name := range portNames {
		if strings.EqualFold(s, name) {
			return PortKind(k), nil
		}
	}
	return PortAuto, fmt.Errorf("%w: unknown kind of port %q: choose auto, xdp or udp", ErrInvalid,
		s)
}

// WithPort selects the kind of port that Open uses. DeviceInfo.Port reports the result, and
// DeviceInfo.PortReason why PortAuto has chosen PortUDP. New ignores it.
func WithPort(k PortKind) Option { return func(c *config) { c.port = k } }

// WithWrapper makes Open use the result of f instead of the port that it has opened, for example to
// inject faults or to record packets (package loopback). New ignores it.
func WithWrapper(f func(Port) Port) Option { return func(c *config) { c.wrapper = f } }

// isAddr reports whether the name of a device is an address.
func isAddr(name string) bool {
	_, err := netip.ParseAddr(name)
	return err == nil
}

// inUseError is the ErrPortInUse of an address whose UDP port another program uses.
type inUseError struct{ error }

func (e *inUseError) Unwrap() error        { return e.error }
func (e *inUseError) Is(target error) bool { return target == ErrPortInUse }

// bytesPerPacket is how much of a receive buffer a packet occupies, with the kernel's overhead, at
// a path MTU: the kernel allocates powers of two.
func bytesPerPacket(mtu MTU) int {
	const overhead = 512 // headers, and the kernel's struct sk_buff
	n := overhead
	for n < int(mtu)+overhead {
		n *= 2
	}
	return n + overhead
}

// minWindow is the smallest window that a small receive buffer causes, packets.
const minWindow = 16

// windowFor returns the limit of the window of QPs on a port, in packets; 0: the default. It
// assumes that the peer's receive buffer is like ours.
func windowFor(info *driver.Info, mtu MTU) int {
	if info.ReceiveBuffer == 0 {
		return 0
	}
	return max(info.ReceiveBuffer/bytesPerPacket(mtu), minWindow)
}
