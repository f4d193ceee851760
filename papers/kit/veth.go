package kit

import (
	"errors"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/xdp"
	"github.com/gorxe/gorxe/xdp/veth"
)

// NoVeth tells whether err means that a veth pair with AF_XDP cannot be had here: no root, or a kernel without it.
func NoVeth(err error) bool {
	return errors.Is(err, veth.ErrPermission) || errors.Is(err, xdp.ErrPermission) || errors.Is(err, xdp.ErrUnsupported)
}

// Probe finds out whether AF_XDP works at an end of a pair, in the mode that the user named.
func Probe(end *veth.End, mode string) (xdp.Mode, error) {
	m, err := xdp.ParseMode(mode)
	if err != nil {
		return m, err
	}
	p, err := xdp.Open(end.Iface, xdp.Options{Mode: m, NetNS: end.Fd()})
	if err != nil {
		return m, err
	}
	return m, p.Close()
}

// OpenLink opens both ends of a link: AF_XDP on a veth pair of its own, with that MTU in bytes (0: veth's default), or nothing but memory. The
// ports are the caller's; remove takes the pair away, after them.
func OpenLink(onVeth bool, mtu int) (ports [2]driver.Port, remove func() error, err error) {
	if !onVeth {
		link, err := loopback.NewLink(loopback.Config{})
		if err != nil {
			return ports, nil, err
		}
		return [2]driver.Port{link.Port(0), link.Port(1)}, func() error { return nil }, nil
	}
	pair, err := veth.New(veth.Options{MTU: mtu})
	if err != nil {
		return ports, nil, err
	}
	for i, end := range []*veth.End{&pair.A, &pair.B} {
		p, err := xdp.Open(end.Iface, xdp.Options{NetNS: end.Fd()})
		if err != nil {
			if i == 1 {
				err = errors.Join(err, ports[0].Close())
			}
			return ports, nil, errors.Join(err, pair.Close())
		}
		ports[i] = p
	}
	return ports, pair.Close, nil
}
