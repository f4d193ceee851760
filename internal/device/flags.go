// Package device gets a subcommand from what the user said (an interface, a peer,
// or nothing) to an open device and the right one of its GIDs.
package device

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"github.com/vishvananda/netlink"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/xdp"
)

// Flags are the choices about the device that subcommands have in common.
type Flags struct {
	Iface    string
	Mode     cli.Choice
	Queues   cli.Int
	GIDIndex int // -1: choose
	Window   cli.Int
}

// The bounds of the flags.
const (
	maxQueues   = 256
	maxGIDIndex = 255
)

// Register adds the flags for the XDP mode and the queues.
func (f *Flags) Register(fs *pflag.FlagSet) {
	f.Mode = cli.Choice{Value: xdp.Auto.String(), Words: []string{xdp.Auto.String(), xdp.Native.String(), xdp.Generic.String()}}
	f.Queues = cli.Int{N: 0, Min: 0, Max: maxQueues}
	fs.Var(&f.Mode, "mode", "XDP mode: auto (generic on veth, and on virtio_net for path MTU 4096; native elsewhere), native or generic")
	fs.Var(&f.Queues, "queues", "serve only so many of the interface's receive queues, 0 = all")
}

// RegisterWindow adds the flag for the prefetch window, for those who serve many QPs.
func (f *Flags) RegisterWindow(fs *pflag.FlagSet) {
	f.Window = cli.Int{N: roce.DefaultPrefetch, Max: roce.MaxPrefetch}
	fs.Var(&f.Window, "window", "prefetch window: how many QPs ahead of their turn what they need is fetched into the caches, 0 = off")
}

// RegisterGID adds the flag for the GID index, with a shorthand if it is not empty.
func (f *Flags) RegisterGID(fs *pflag.FlagSet, shorthand string) {
	f.GIDIndex = -1
	fs.VarP((*gidIndex)(&f.GIDIndex), "gid-index", shorthand, "index of the GID to use, as 'gorxe devices' lists them (default: the one with the address that TCP uses)")
}

// gidIndex is a flag value that is absent until set.
type gidIndex int

func (g *gidIndex) Set(text string) error {
	v := cli.Int{Min: 0, Max: maxGIDIndex}
	if err := v.Set(text); err != nil {
		return err
	}
	*g = gidIndex(v.N)
	return nil
}

func (g *gidIndex) String() string {
	if *g < 0 {
		return ""
	}
	return fmt.Sprint(int(*g))
}

func (g *gidIndex) Type() string { return "int" }

// XDP is what the flags say to package xdp.
func (f *Flags) XDP() xdp.Options {
	mode, err := xdp.ParseMode(f.Mode.Value)
	if err != nil {
		mode = xdp.Auto // not set: the flag's words are xdp's own
	}
	return xdp.Options{Mode: mode, Queues: f.Queues.N}
}

// Open opens the interface and checks that the GID index, if one was chosen, is there.
func (f *Flags) Open(progress roce.Progress) (*roce.Device, error) {
	opts := []roce.Option{roce.WithXDP(f.XDP()), roce.WithProgress(progress)}
	if f.Window.Max > 0 { // there is the flag
		opts = append(opts, roce.WithExpert(roce.Expert{Prefetch: new(f.Window.N)}))
	}
	dev, err := roce.Open(f.Iface, opts...)
	if err != nil {
		return nil, err
	}
	if f.GIDIndex >= 0 {
		if err := hasGID(dev, f.GIDIndex); err != nil {
			return nil, errors.Join(err, dev.Close())
		}
	}
	return dev, nil
}

// lookEvery is how often a link that is down is looked at, whether it is still there.
const lookEvery = time.Second

// WhileThere returns a context that ends when dev's interface is removed; its cause is an xdp.ErrGone then.
func WhileThere(ctx context.Context, dev *roce.Device) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		look := time.NewTicker(lookEvery)
		defer look.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-look.C:
			}
			info := dev.Info()
			if info.Up {
				continue
			}
			// A link that is down may be one that is gone, which no event tells.
			if _, err := xdp.Probe(info.Name, 0); errors.Is(err, xdp.ErrNoInterface) {
				cancel(fmt.Errorf("%s: %w", info.Name, xdp.ErrGone))
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}

func hasGID(dev *roce.Device, index int) error {
	gids := dev.GIDs()
	var have []string
	for _, g := range gids {
		if g.Index == index {
			return nil
		}
		have = append(have, fmt.Sprintf("%d (%v)", g.Index, g.GID))
	}
	return cli.Usagef("GID index %d is not on %s: it has %s", index, dev.Info().Name, strings.Join(have, ", "))
}

// GIDFor chooses the GID to talk from: the chosen index, else the one with the
// address local that TCP uses to the same peer, else the first of its family.
func (f *Flags) GIDFor(dev *roce.Device, local netip.Addr) (*int, error) {
	if f.GIDIndex >= 0 {
		i := f.GIDIndex
		return &i, nil
	}
	local = local.Unmap().WithZone("")
	family := -1
	for _, g := range dev.GIDs() {
		if g.Addr.WithZone("") == local {
			i := g.Index
			return &i, nil
		}
		if family < 0 && g.Addr.Is4() == local.Is4() && !g.Addr.IsLinkLocalUnicast() {
			family = g.Index
		}
	}
	if family < 0 {
		version := "IPv6"
		if local.Is4() {
			version = "IPv4"
		}
		return nil, fmt.Errorf("%s has no %s address to talk from: give it one (ip addr add), or choose a GID with an index", dev.Info().Name, version)
	}
	return &family, nil
}

// Peer is a host that the user named.
type Peer struct {
	Host  string     // as named
	Addr  netip.Addr // with a zone if it is link-local
	Iface string     // the interface that the route to it takes
}

// lookupTimeout bounds a name look-up.
const lookupTimeout = 10 * time.Second

// FindPeer resolves host and, if iface is empty, finds the interface by the route to it.
func FindPeer(ctx context.Context, host, iface string) (*Peer, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	host = strings.Trim(host, "[]")
	addrs, err := resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	var first error
	for _, a := range addrs {
		p := &Peer{Host: host, Addr: a.Unmap(), Iface: iface}
		if iface == "" {
			if p.Iface, err = routeTo(p.Addr); err != nil {
				first = errors.Join(first, err)
				continue
			}
		} else if p.Addr.IsLinkLocalUnicast() && p.Addr.Is6() && p.Addr.Zone() == "" {
			p.Addr = p.Addr.WithZone(iface)
		}
		return p, nil
	}
	return nil, first
}

// resolve finds the addresses of a host, at least one.
func resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil // with its zone, which the resolver would drop
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err == nil && len(addrs) > 0 {
		return addrs, nil
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		err = errors.New(dns.Err)
	}
	return nil, fmt.Errorf("cannot find host %q: %w: give its name or IP address", host, err)
}

// routeTo finds the interface that packets to a leave by.
func routeTo(a netip.Addr) (string, error) {
	if a.IsLoopback() {
		return "", ownAddress(a)
	}
	if a.Is6() && a.IsLinkLocalUnicast() {
		if a.Zone() == "" {
			return "", cli.Usagef("%v is a link-local address: say on which interface, as in %v%%eth0", a, a)
		}
		return a.Zone(), nil
	}
	routes, err := netlink.RouteGet(a.AsSlice())
	if err != nil || len(routes) == 0 {
		return "", fmt.Errorf("no route to %v: check the address, and 'ip route get %v'", a, a)
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return "", fmt.Errorf("the route to %v leads over interface %d, which cannot be read: %w", a, routes[0].LinkIndex, err)
	}
	if link.Attrs().Flags&net.FlagLoopback != 0 {
		return "", ownAddress(a)
	}
	return link.Attrs().Name, nil
}

func ownAddress(a netip.Addr) error {
	return fmt.Errorf("%v is this host's own address, and RDMA frames to it never reach the wire: name another host, or use 'gorxe demo' to try gorxe on one", a)
}

// Only finds the one interface here that gorxe can use.
func Only() (string, error) {
	list, err := xdp.Interfaces(0)
	if err != nil {
		return "", err
	}
	var names []string
	for i := range list {
		if list[i].Err == nil {
			names = append(names, list[i].Name)
		}
	}
	switch len(names) {
	case 0:
		return "", errors.New("no interface here is usable as it is: 'gorxe devices' says why not")
	case 1:
		return names[0], nil
	}
	return "", cli.Usagef("which interface? choose one with -d: %s", strings.Join(names, ", "))
}
