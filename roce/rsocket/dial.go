package rsocket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/roce/rsocket/core"
)

// Dial connects to an rsocket that listens at addr, "host:port". It fails with a *net.OpError.
func Dial(ctx context.Context, dev *roce.Device, addr string, cfg Config) (*Conn, error) {
	d := Dialer{Device: dev, Config: cfg}
	return d.dial(ctx, netName, addr)
}

// Dialer connects over a device.
type Dialer struct {
	Device *roce.Device
	Config Config
}

// DialContext is like Dial. It fits http.Transport.DialContext. The network is "rsocket" or "tcp",
// which use both IP versions, or "tcp4" or "tcp6".
func (d *Dialer) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := d.dial(ctx, network, addr)
	if err != nil {
		return nil, err // not a nil *Conn in an interface
	}
	return c, nil
}

func (d *Dialer) dial(ctx context.Context, network, addr string) (*Conn, error) {
	to, err := resolve(ctx, network, addr)
	if err != nil {
		return nil, opError("dial", nil, nil, err)
	}
	var errs []error
	for _, a := range to {
		c, err := d.dialAddr(ctx, a)
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	err = errs[0]
	if len(errs) > 1 {
		err = errors.Join(errs...)
	}
	return nil, opError("dial", nil, Addr{to[0]}, err)
}

// resolve returns the addresses that addr names, at least one.
func resolve(ctx context.Context, network, addr string) ([]netip.AddrPort, error) {
	version, ok := map[string]string{netName: "ip", "tcp": "ip", "tcp4": "ip4", "tcp6": "ip6"}[network]
	if !ok {
		return nil, net.UnknownNetworkError(network)
	}
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	port, err := net.DefaultResolver.LookupPort(ctx, strings.Replace(version, "ip", "tcp", 1), service)
	if err != nil {
		return nil, err
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, version, host)
	if err != nil {
		return nil, err
	}
	var to []netip.AddrPort
	for _, ip := range ips {
		to = append(to, netip.AddrPortFrom(ip.Unmap(), uint16(port)))
	}
	if len(to) == 0 {
		return nil, fmt.Errorf("rsocket: %s has no address", host)
	}
	return to, nil
}

// dialAddr connects to one address.
func (d *Dialer) dialAddr(ctx context.Context, to netip.AddrPort) (*Conn, error) {
	cfg, err := d.Config.complete()
	if err != nil {
		return nil, err
	}
	e, err := newEndpoint(d.Device, &cfg)
	if err != nil {
		return nil, err
	}
	s := e.newStream(&cfg)
	own := s.Hello()
	rc, err := d.Device.Dial(ctx, to, e.qp,
		roce.DialOptions{ConnectOptions: cfg.Connect, PrivateData: own.Append(nil)})
	if err != nil {
		return nil, errors.Join(err, e.close())
	}
	peer, err := core.ParseHello(rc.PrivateData())
	if err != nil {
		return nil, errors.Join(err, rc.Abort(), e.close())
	}
	s.Open(peer)
	return newConn(e, rc, s, &cfg), nil
}
