package kit

import (
	"errors"

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
