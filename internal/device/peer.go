package device

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/service"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/udp"
	"github.com/gorxe/gorxe/xdp"
)

// lookupTimeout limits a name lookup.
const lookupTimeout = 10 * time.Second

// Peer is a host that the user has named.
type Peer struct {
	Host  string     // as the user has written it
	Addr  netip.Addr // with a zone if it is link-local
	Iface string     // interface of the route to the host
}

// FindPeer resolves host. If no interface was chosen, it sets f.Iface to the interface of the route
// to the host.
func (f *Flags) FindPeer(ctx context.Context, host string) (*Peer, error) {
	p, err := f.findPeer(ctx, host, f.Iface)
	if err == nil {
		f.Iface = p.Iface
	}
	return p, err
}

func (f *Flags) findPeer(ctx context.Context, host, iface string) (*Peer, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	if name, port, err := net.SplitHostPort(host); err == nil && port != "" {
		return nil, cli.Usagef("%s has a port: name the host alone, %s, and choose the port by a flag",
			host, name)
	}
	host = strings.Trim(host, "[]")
	addrs, err := resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	var failed error
	for _, a := range addrs {
		p := &Peer{Host: host, Addr: withName(a.Unmap()), Iface: iface}
		if iface == "" {
			if p.Iface, err = f.routeTo(p.Addr); err != nil {
				failed = errors.Join(failed, err)
				continue
			}
		} else if p.Addr.IsLinkLocalUnicast() && p.Addr.Is6() && p.Addr.Zone() == "" {
			if filepath.IsAbs(iface) || isAddr(iface) { // not the name of an interface
				failed = errors.Join(failed, noZone(p.Addr))
				continue
			}
			p.Addr = p.Addr.WithZone(iface)
		}
		return p, nil
	}
	return nil, failed
}

// withName returns an address whose zone, if it is the number of an interface, is its name.
func withName(a netip.Addr) netip.Addr {
	index, err := strconv.Atoi(a.Zone())
	if err != nil {
		return a
	}
	if _, err := net.InterfaceByName(a.Zone()); err == nil { // a name of digits
		return a
	}
	if i, err := net.InterfaceByIndex(index); err == nil {
		return a.WithZone(i.Name)
	}
	return a
}

// resolve returns the addresses of a host, at least one.
func resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil // the resolver would remove the zone
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err == nil && len(addrs) > 0 {
		return addrs, nil
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		err = errors.New(dns.Err)
	}
	return nil, fmt.Errorf("cannot find host %q: %w: check the name, or use its IP address", host,
		err)
}

// routeTo returns the interface of the route to a. If a belongs to this host, it returns a if a
// node service has this address, and otherwise a random loopback address, which the device can use
// besides that of the peer.
func (f *Flags) routeTo(a netip.Addr) (string, error) {
	if a.IsLoopback() {
		return f.ownAddress(a)
	}
	if a.Is6() && a.IsLinkLocalUnicast() {
		if a.Zone() == "" {
			return "", noZone(a)
		}
		return a.Zone(), nil
	}
	routes, err := netlink.RouteGet(a.AsSlice())
	if err != nil || len(routes) == 0 {
		return "", fmt.Errorf("no route to %v: check the address and 'ip route get %v'", a, a)
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return "", fmt.Errorf("cannot read interface %d of the route to %v: %w",
			routes[0].LinkIndex, a, err)
	}
	if link.Attrs().Flags&net.FlagLoopback != 0 {
		return f.ownAddress(a)
	}
	return link.Attrs().Name, nil
}

func isAddr(name string) bool {
	_, err := netip.ParseAddr(name)
	return err == nil
}

func noZone(a netip.Addr) error {
	return cli.Usagef("%v is a link-local address: add the interface, as in %v%%eth0", a, a)
}

// ownAddress returns the device for a peer on this host.
func (f *Flags) ownAddress(a netip.Addr) (string, error) {
	switch {
	case !f.WantsXDP() && service.Serves(a):
		return a.String(), nil
	case f.kind() == roce.PortXDP:
		return "", fmt.Errorf("%v is this host's own address, and AF_XDP packets to it never leave the "+
			"host: name another host, or use --datapath udp", a)
	case a.Is6():
		return "", fmt.Errorf("%v is this host's own address: choose another address of the host for "+
			"the device with -d, or use IPv4 addresses, such as 127.0.0.1", a)
	}
	return udp.RandomLoopback().String(), nil
}

// SetDefaultIface sets f.Iface to the only interface that gorxe can use, unless one was chosen.
func (f *Flags) SetDefaultIface() error {
	if f.Iface != "" {
		return nil
	}
	list, err := xdp.Interfaces(0)
	if err != nil {
		return err
	}
	var names []string
	for i := range list {
		if list[i].Err == nil {
			names = append(names, list[i].Name)
		}
	}
	switch len(names) {
	case 0:
		return errors.New("no interface is usable: 'gorxe devices' shows the reasons")
	case 1:
		f.Iface = names[0]
		return nil
	}
	return cli.Usagef("several interfaces are usable: choose one with -d: %s",
		strings.Join(names, ", "))
}
