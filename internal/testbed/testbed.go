package testbed

import (
	"errors"
	"net/netip"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/xdp"
)

// Config describes a testbed. The zero Config is two devices with Auto progress on a perfect link
// in memory.
type Config struct {
	// Veth selects AF_XDP on a veth pair in two namespaces instead of memory. It needs root.
	Veth   bool
	Mode   xdp.Mode // of the AF_XDP ports
	Queues int      // of each side of the veth pair; 0 means 1

	// UDP selects UDP sockets: on two random loopback addresses, which needs no privileges, or with
	// Veth on the veth pair.
	UDP bool
	// Offloads leaves checksum and segmentation offload of the veth pair on: see veth.Options.
	Offloads bool

	// MTU is the largest IP packet in bytes; 0 means the default of veth or loopback.
	MTU int
	// Rate limits what each side sends, in bits per second of whole frames; 0 means unlimited.
	Rate int64
	// Plan describes the faults of both directions, drawn from Seed.
	Plan loopback.Plan
	Seed uint64

	// Virtual gives the link a clock that only Step, Run and Testbed.Sim move. The devices use it.
	Virtual bool
	// Link has further settings of the link in memory.
	Link loopback.Config

	// Wrap, if not nil, returns what the device of a side uses instead of its port, for example to
	// observe the port.
	Wrap func(side int, p driver.Port) driver.Port

	// Options are those of both devices; Device has those of each.
	Options []roce.Option
	Device  [2][]roce.Option
}

// Testbed is two devices that reach each other.
type Testbed struct {
	*Ports
	Dev [2]*roce.Device
	Sim *loopback.Sim // of Virtual: runs programs that block; nil in real time
}

// New opens the ports and creates the devices. After an error nothing is left.
func New(c Config) (*Testbed, error) {
	ports, err := OpenPorts(c)
	if err != nil {
		return nil, err
	}
	t := &Testbed{Ports: ports}
	if c.Virtual || c.Link.Virtual {
		t.Sim = loopback.NewSim(ports.Link)
	}
	for i := range t.Dev {
		if t.Dev[i], err = roce.New(ports.Port[i], t.options(&c, i)...); err != nil {
			// New closed this port. The other one belongs to no device yet, or to Dev[0].
			ports.Port[i] = nil
			return nil, errors.Join(err, t.Close())
		}
		if t.Sim != nil {
			t.Sim.Add(t.Dev[i])
		}
	}
	return t, nil
}

func (t *Testbed) options(c *Config, i int) []roce.Option {
	var o []roce.Option
	if t.Sim != nil {
		o = append(o, roce.WithExpert(roce.Expert{Clock: t.Link.Now, Wait: t.Sim.Wait}))
	}
	o = append(o, c.Options...)
	return append(o, c.Device[i]...)
}

// Addr returns the IPv4 address of device i with a port number.
func (t *Testbed) Addr(i int, port uint16) netip.AddrPort {
	for _, g := range t.Dev[i].GIDs() {
		if g.Kind == roce.GIDIPv4 {
			return netip.AddrPortFrom(g.Addr, port)
		}
	}
	return netip.AddrPort{}
}

// Close closes the devices, then removes what connects them. Devices that are closed already are
// skipped.
func (t *Testbed) Close() error {
	var errs []error
	for i, d := range t.Dev {
		switch {
		case d != nil:
			errs = append(errs, d.Close())
		case t.Port[i] != nil:
			errs = append(errs, t.Port[i].Close())
		}
	}
	return errors.Join(append(errs, t.Ports.Close())...)
}
