package roce

import (
	"slices"

	"github.com/gorxe/gorxe/driver"
)

// memberReason is the DeviceInfo.PortReason of members.
const memberReason = "a node service serves the interface"

// WithoutService makes Open open a port of its own, even if a node service serves the interface.
func WithoutService() Option { return func(c *config) { c.noService = true } }

// OpenService creates a Device that joins the node service whose socket is at path, for example
// "/run/gorxe/eth0.sock" of `gorxe up eth0`. The Device has the addresses of the service's
// interface, which may be in another network namespace. It shares them, and UDP port 4791, with the
// Devices of other programs, and needs no privileges but the permission to write to the socket.
//
// When the service ends, the Device fails with ErrServiceEnded. A program that outlives the service
// then closes the Device and calls OpenService until it succeeds. Open would take the port itself,
// and the service could not start again.
//
// Two Devices of one service cannot listen on the same port. WithPort and WithXDP have no effect.
//
// Errors: ErrNoService, ErrServiceRefused, ErrUnsupported, and those of New.
func OpenService(path string, opts ...Option) (*Device, error) {
	c := newConfig(opts)
	port, err := c.joinService(path)
	if err != nil {
		return nil, err
	}
	return openOn(port, memberReason, c, opts)
}

// openOn creates a Device on a port that Open or OpenService has opened.
func openOn(port driver.Port, reason string, c *config, opts []Option) (*Device, error) {
	kind := PortXDP.String()
	if port.Info().SourcePort != 0 {
		kind = PortUDP.String()
	}
	if c.wrapper != nil {
		port = c.wrapper(port)
	}
	return New(port, append(slices.Clone(opts),
		func(c *config) { c.portKind, c.portReason = kind, reason })...)
}
