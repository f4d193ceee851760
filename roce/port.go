package roce

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/udp"
	"github.com/gorxe/gorxe/xdp"
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

// openPort opens a port on an interface, or on an address of this host. reason says why it is
// PortUDP although PortAuto was asked for.
func openPort(name string, c *config) (port driver.Port, reason string, err error) {
	if c.port > PortUDP {
		return nil, "", fmt.Errorf("%w: %v: choose PortAuto, PortXDP or PortUDP", ErrInvalid,
			c.port)
	}
	if c.host != nil {
		return c.openShared(name)
	}
	if c.mayJoin() {
		member, err := c.join(name)
		if member != nil || err != nil {
			return member, memberReason, err
		}
	}
	network, reason, err := c.openXDP(name, c.xdp.port())
	if err != nil {
		return nil, "", c.explain(err)
	}
	if network != nil {
		return network, "", nil
	}
	p, err := c.openUDP(name, false)
	if err != nil {
		return nil, "", err
	}
	return p, reason, nil
}

// openXDP opens an AF_XDP port on an interface. Without an error, a nil port means that UDP sockets
// are to be used, and reason says why, unless the program has chosen PortUDP.
func (c *config) openXDP(name string, o xdp.Options) (port *xdp.Port, reason string, err error) {
	switch {
	case c.port == PortUDP:
		return nil, "", nil
	case isAddr(name) && c.port == PortXDP:
		return nil, "", fmt.Errorf("%w: PortXDP uses all addresses of an interface: "+
			"name the interface of %s, or choose PortUDP", ErrInvalid, name)
	case isAddr(name):
		return nil, "AF_XDP cannot be limited to one address", nil
	}
	port, err = xdp.Open(name, o)
	switch {
	case err == nil:
		return port, "", nil
	case c.port == PortXDP || !c.mayUseUDP(err):
		return nil, "", err
	}
	return nil, err.Error(), nil
}

// isAddr reports whether the name of a device is an address.
func isAddr(name string) bool {
	_, err := netip.ParseAddr(name)
	return err == nil
}

func (c *config) openUDP(name string, shared bool) (*udp.Port, error) {
	p, err := udp.Open(name, udp.Options{NetNS: c.xdp.NetNS, Shared: shared})
	if errors.Is(err, driver.ErrBusy) {
		return nil, &inUseError{c.explain(err)}
	}
	return p, err
}

// explain adds to the error of an interface that is in use why Open has not joined its service.
func (c *config) explain(err error) error {
	if c.notJoined == nil || !errors.Is(err, driver.ErrBusy) {
		return err
	}
	return fmt.Errorf("%w; %w", c.notJoined, err)
}

// inUseError is the ErrPortInUse of an address whose UDP port another program uses.
type inUseError struct{ error }

func (e *inUseError) Unwrap() error        { return e.error }
func (e *inUseError) Is(target error) bool { return target == ErrPortInUse }

// mayUseUDP reports whether PortAuto selects PortUDP after an error of package xdp. A program that
// asks for a mode of AF_XDP gets the error.
func (c *config) mayUseUDP(err error) bool {
	return c.xdp.Mode == xdp.Auto && (errors.Is(err, xdp.ErrPermission) ||
		errors.Is(err, xdp.ErrUnsupported))
}

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
