package programs

import (
	"fmt"
	"os"
	"slices"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/udp"
	"github.com/gorxe/gorxe/xdp/veth"
)

// link is where a server (0) and a client (1) run.
type link struct {
	port string       // --datapath
	dev  [2]string    // --dev
	host string       // address of the server
	ends [2]*veth.End // of the programs; nil: those of this host
}

// do runs f in the network namespace of a side.
func (l *link) do(side int, f func() error) error {
	if end := l.ends[side]; end != nil {
		return end.Do(f)
	}
	return f()
}

// link returns the link of a test.
func (b *bench) link(t test) *link {
	if t.xdp {
		return &b.veth
	}
	return &b.local
}

// open creates the links that the figures need. closeAll removes them.
func (b *bench) open() (closeAll func() error, err error) {
	b.local.port = roce.PortUDP.String()
	for i := range b.local.dev {
		b.local.dev[i] = udp.RandomLoopback().String()
	}
	b.local.host = b.local.dev[0]
	if !slices.ContainsFunc(b.figures, func(f figure) bool { return f.xdp }) {
		return func() error { return nil }, nil
	}
	// Without IPv6, the IPv4 address has GID index 0, as on the loopback interface.
	pair, err := veth.New(veth.Options{NoIPv6: true, Offloads: true})
	if err != nil {
		return nil, fmt.Errorf("create a veth pair: %w", err)
	}
	b.veth = link{port: roce.PortXDP.String(), dev: [2]string{pair.A.Iface, pair.B.Iface},
		host: pair.A.IPv4.Addr().String(), ends: [2]*veth.End{&pair.A, &pair.B}}
	return pair.Close, nil
}

// privileged reports whether figures with AF_XDP can be measured.
func privileged() bool { return os.Geteuid() == 0 }
