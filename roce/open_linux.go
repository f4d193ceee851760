package roce

import (
	"errors"
	"fmt"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/udp"
	"github.com/gorxe/gorxe/xdp"
)

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

// mayUseUDP reports whether PortAuto selects PortUDP after an error of package xdp. A program that
// asks for a mode of AF_XDP gets the error.
func (c *config) mayUseUDP(err error) bool {
	return c.xdp.Mode == xdp.Auto && (errors.Is(err, xdp.ErrPermission) ||
		errors.Is(err, xdp.ErrUnsupported))
}
