package roce

import (
	"errors"
	"io/fs"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/dualport"
	"github.com/gorxe/gorxe/internal/service"
	"github.com/gorxe/gorxe/udp"
	"github.com/gorxe/gorxe/xdp"
)

// joinService joins the node service whose socket is at path.
func (c *config) joinService(path string) (driver.Port, error) {
	return joinAt(path, service.JoinOptions{Name: c.program})
}

func joinAt(path string, o service.JoinOptions) (driver.Port, error) {
	p, err := service.Join(path, o)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// mayJoin reports whether Open may join a node service: if the program does not ask for AF_XDP.
func (c *config) mayJoin() bool {
	return !c.noService && c.port != PortXDP && c.xdp.Mode == xdp.Auto && c.xdp.ZeroCopy == nil &&
		c.xdp.MultiBuffer == nil
}

// join joins the node service of an interface or address. It returns nil if there is none in this
// network namespace, or if this user may not use it.
func (c *config) join(name string) (driver.Port, error) {
	o := service.JoinOptions{Name: c.program, NetNS: c.xdp.NetNS, SameNet: true}
	if a, err := netip.ParseAddr(name); err == nil {
		o.Addr = a
	}
	for _, path := range service.PathsOf(name, c.xdp.NetNS) {
		port, err := joinAt(path, o)
		switch {
		case err == nil:
			return port, nil
		case errors.Is(err, ErrServiceRefused):
			return nil, err
		case errors.Is(err, fs.ErrPermission), !errors.Is(err, ErrNoService) &&
			!errors.Is(err, service.ErrOtherNet) && !errors.Is(err, driver.ErrNoAddress):
			c.notJoined = err
		}
	}
	return nil, nil
}

// openShared opens the port of a node service's own device, and starts the service.
func (c *config) openShared(name string) (port driver.Port, reason string, err error) {
	o := c.xdp.port()
	o.Shared = true
	network, reason, err := c.openXDP(name, o)
	if err != nil {
		return nil, "", err
	}
	if network != nil {
		port, err = c.openDual(name, network)
		return c.serve(port, "", err)
	}
	p, err := c.openLocal(name)
	return c.serve(p, reason, err)
}

// openDual adds a UDP port for programs on this host to an AF_XDP port.
func (c *config) openDual(name string, network *xdp.Port) (driver.Port, error) {
	local, err := c.openLocal(name)
	if err != nil {
		return nil, errors.Join(err, network.Close())
	}
	return dualport.New(network, local)
}

const (
	// restartPatience is how long openLocal waits for the sockets of an earlier service.
	restartPatience = 2 * time.Second
	restartPause    = 10 * time.Millisecond
)

// openLocal opens the UDP port of a node service. The programs of an earlier service that had
// another user have its addresses until they see that it has ended.
func (c *config) openLocal(name string) (*udp.Port, error) {
	for end := time.Now().Add(restartPatience); ; time.Sleep(restartPause) {
		p, err := c.openUDP(name, true)
		if !errors.Is(err, ErrPortInUse) || time.Now().After(end) {
			return p, err
		}
	}
}

// serve starts the node service on a port. err is that of opening the port.
func (c *config) serve(port driver.Port, reason string, err error) (driver.Port, string, error) {
	if err != nil {
		return nil, "", err
	}
	if err := c.host.Start(port); err != nil {
		return nil, "", errors.Join(err, port.Close())
	}
	return port, reason, nil
}
