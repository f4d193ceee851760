package testbed

import (
	"errors"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/udp"
	"github.com/gorxe/gorxe/xdp"
	"github.com/gorxe/gorxe/xdp/veth"
)

// Ports are the two connected ports of a testbed. The caller owns the ports; Close removes only
// what connects them.
type Ports struct {
	Port [2]driver.Port
	Link *loopback.Link // nil unless in memory
	Pair *veth.Pair     // nil unless on a veth pair
}

// OpenPorts opens the two ports that c describes.
func OpenPorts(c Config) (*Ports, error) {
	p, err := openPorts(&c)
	if err == nil && c.Wrap != nil {
		for i := range p.Port {
			p.Port[i] = c.Wrap(i, p.Port[i])
		}
	}
	return p, err
}

func openPorts(c *Config) (*Ports, error) {
	switch {
	case !c.Veth && c.UDP:
		return openLoopback(c)
	case !c.Veth:
		return openMemory(c)
	}
	pair, err := veth.New(veth.Options{MTU: c.MTU, Queues: c.Queues, Rate: c.Rate,
		Offloads: c.Offloads})
	if err != nil {
		return nil, err
	}
	p := &Ports{Pair: pair}
	for i, end := range []*veth.End{&pair.A, &pair.B} {
		var port driver.Port
		if c.UDP {
			port, err = udp.Open(end.Iface, udp.Options{NetNS: end.Fd()})
		} else {
			port, err = xdp.Open(end.Iface, xdp.Options{Mode: c.Mode, NetNS: end.Fd(), Runs: true})
		}
		if err != nil {
			return nil, errors.Join(err, p.closePorts(), pair.Close())
		}
		p.Port[i] = c.inject(port, i)
	}
	return p, nil
}

// openLoopback opens two ports on loopback addresses, which it draws at random, because another
// process may use some.
func openLoopback(c *Config) (*Ports, error) {
	const attempts = 100
	p := new(Ports)
	for i := range p.Port {
		for try := 0; p.Port[i] == nil; try++ {
			a := udp.RandomLoopback()
			port, err := udp.Open(a.String(), udp.Options{})
			if err == nil {
				p.Port[i] = c.inject(port, i)
			} else if !errors.Is(err, driver.ErrBusy) || try == attempts {
				return nil, errors.Join(err, p.closePorts())
			}
		}
	}
	return p, nil
}

func openMemory(c *Config) (*Ports, error) {
	lc := c.Link
	lc.Virtual = lc.Virtual || c.Virtual
	if c.MTU != 0 {
		lc.MTU = c.MTU
	}
	if c.Seed != 0 {
		lc.Seed = c.Seed
	}
	if c.Plan != (loopback.Plan{}) {
		lc.Plan = c.Plan
	}
	link, err := loopback.NewLink(lc)
	if err != nil {
		return nil, err
	}
	p := &Ports{Link: link}
	for i := range p.Port {
		if err := link.SetBandwidth(i, c.Rate); err != nil {
			return nil, errors.Join(err, link.Close())
		}
		p.Port[i] = link.Port(i)
	}
	return p, nil
}

// inject wraps a port of a veth pair if faults are wanted. Each direction has its own seed.
func (c *Config) inject(p driver.Port, side int) driver.Port {
	if c.Plan == (loopback.Plan{}) {
		return p
	}
	return loopback.Inject(p, 2*c.Seed+uint64(side), c.Plan)
}

func (p *Ports) closePorts() error {
	var errs []error
	for _, port := range p.Port {
		if port != nil {
			errs = append(errs, port.Close())
		}
	}
	return errors.Join(errs...)
}

// Close removes the link or the veth pair. Close the ports, or the devices that own them, first.
func (p *Ports) Close() error {
	if p.Pair != nil {
		return p.Pair.Close()
	}
	if p.Link != nil {
		return p.Link.Close()
	}
	return nil
}

// Unavailable reports whether err means that this machine cannot run AF_XDP on a veth pair: missing
// privileges or a kernel without it.
func Unavailable(err error) bool {
	return errors.Is(err, veth.ErrPermission) || errors.Is(err, veth.ErrUnsupported) ||
		errors.Is(err, xdp.ErrPermission) ||
		errors.Is(err, xdp.ErrUnsupported)
}
