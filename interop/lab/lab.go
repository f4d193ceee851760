package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/gorxe/gorxe/interop/guest"
	"github.com/gorxe/gorxe/interop/guest/image"
)

// MaxMTU is the largest device MTU of a lab. Path MTU 4096 needs 4176.
const MaxMTU = 4200

// setUpTime bounds the guest's configuration, which takes a second on an idle host.
const setUpTime = time.Minute

// Options describe a lab.
type Options struct {
	Image  *image.Image
	Guests int // 0 = 1
	MTU    int // device MTU everywhere; 0 = MaxMTU
	Memory int // of a guest in MiB; 0 = the default of package guest
}

// Lab is an Ethernet with gorxe's interface and guests. It is not safe for concurrent use, but its
// guests are.
type Lab struct {
	Host     *NS // gorxe's side
	Recorder *Recorder
	Guests   []*Guest

	opts   Options
	bridge *NS
	once   sync.Once
}

// Guest is a machine on the lab's Ethernet.
type Guest struct {
	*guest.VM
	IPv4, IPv6 netip.Addr
	MAC        net.HardwareAddr

	lab *Lab
	id  byte
}

// New creates the network and boots the guests. After an error nothing is left.
func New(ctx context.Context, o Options) (*Lab, error) {
	if o.Guests == 0 {
		o.Guests = 1
	}
	if o.MTU == 0 {
		o.MTU = MaxMTU
	}
	l := &Lab{opts: o}
	if err := l.build(ctx); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

func (l *Lab) build(ctx context.Context) (err error) {
	if l.bridge, err = NewNS(); err != nil {
		return err
	}
	if l.Host, err = NewNS(); err != nil {
		return err
	}
	if err = l.Host.Do(func() error {
		sysctl("ipv6/conf/default/accept_dad", "0")
		sysctl("ipv6/conf/default/router_solicitations", "0")
		return nil
	}); err != nil {
		return err
	}
	err = l.bridge.Do(func() error {
		return errors.Join(makeBridge(l.opts.MTU), makeCable(l.Host, l.opts.MTU), l.record())
	})
	if err != nil {
		return err
	}
	if err = l.Host.Do(configureHost); err != nil {
		return err
	}
	errs := make(chan error)
	for i := range l.opts.Guests {
		g := &Guest{lab: l, id: byte(i + 1), MAC: mac(byte(i + 1))}
		v4, v6 := addresses(g.id)
		g.IPv4, g.IPv6 = v4.Addr(), v6.Addr()
		l.Guests = append(l.Guests, g)
		go func() { errs <- g.boot(ctx) }()
	}
	for range l.Guests {
		err = errors.Join(err, <-errs)
	}
	return err
}

func (l *Lab) record() error {
	link, err := netlink.LinkByName(hostPort)
	if err != nil {
		return err
	}
	l.Recorder, err = newRecorder(link.Attrs().Index)
	return err
}

// boot starts the guest and creates its rxe device.
func (g *Guest) boot(ctx context.Context) error {
	var tap *os.File
	err := g.lab.bridge.Do(func() (err error) {
		tap, err = makeTap(fmt.Sprintf("tap%d", g.id), g.lab.opts.MTU)
		return err
	})
	if err != nil {
		return err
	}
	g.VM, err = guest.Boot(ctx, guest.Config{
		Image: g.lab.opts.Image, Name: fmt.Sprintf("rxe%d", g.id), Tap: tap, MAC: g.MAC,
		MTU: g.lab.opts.MTU, Memory: g.lab.opts.Memory, Start: g.lab.bridge.Start,
	})
	if err != nil {
		return err
	}
	v4, v6 := addresses(g.id)
	script := fmt.Sprintf(`set -e
hostname rxe%d
ip link set lo up
for f in accept_dad router_solicitations; do echo 0 > /proc/sys/net/ipv6/conf/eth0/$f; done
ip link set eth0 mtu %d up
ip addr add %v dev eth0
ip addr add %v dev eth0 nodad
rdma link add rxe0 type rxe netdev eth0`, g.id, g.lab.opts.MTU, v4, v6)
	r, err := g.Exec(script, setUpTime)
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		return fmt.Errorf("lab: configure guest %d: %w", g.id, err)
	}
	return nil
}

// Reboot cuts the guest's power and boots it again with the same addresses.
func (g *Guest) Reboot(ctx context.Context) error {
	g.PowerOff()
	return g.boot(ctx)
}

// PowerOff cuts the guest's power.
func (g *Guest) PowerOff() {
	if g.VM != nil {
		g.VM.Close()
	}
}

// Iface is the name of gorxe's interface in the namespace Host.
func (l *Lab) Iface() string { return hostIface }

// MTU is the device MTU on both sides.
func (l *Lab) MTU() int { return l.opts.MTU }

// HostAddr is gorxe's address.
func (l *Lab) HostAddr(v6 bool) netip.Addr {
	a4, a6 := addresses(hostID)
	if v6 {
		return a6.Addr()
	}
	return a4.Addr()
}

// Addr is the guest's address.
func (g *Guest) Addr(v6 bool) netip.Addr {
	if v6 {
		return g.IPv6
	}
	return g.IPv4
}

// Cable plugs or unplugs gorxe's network cable: the other side goes down, so gorxe's interface
// loses its carrier.
func (l *Lab) Cable(up bool) error {
	return l.bridge.Do(func() error { return setLink(hostPort, up) })
}

// Command prepares a program in gorxe's namespace; Host.Start starts it.
func (l *Lab) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, name, args...)
}

// SavePCAP writes the recent frames on gorxe's cable to a file.
func (l *Lab) SavePCAP(w io.Writer) (frames int, err error) { return l.Recorder.Dump(w) }

// Close ends the guests and removes the network. Closing twice has no effect.
func (l *Lab) Close() {
	l.once.Do(func() {
		for _, g := range l.Guests {
			g.PowerOff()
		}
		if l.Recorder != nil {
			l.Recorder.close()
		}
		for _, n := range []*NS{l.Host, l.bridge} {
			if n != nil {
				n.Close()
			}
		}
	})
}
