package pingpong

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
)

// Dial connects to the server that listens on a TCP port at addr.
func Dial(ctx context.Context, addr netip.Addr, port int) (net.Conn, error) {
	d := net.Dialer{Timeout: exchangeTimeout}
	at := net.JoinHostPort(addr.String(), strconv.Itoa(port))
	conn, err := d.DialContext(ctx, "tcp", at)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if op := new(net.OpError); errors.As(err, &op) {
			err = op.Err
		}
		return nil, fmt.Errorf("cannot connect to %s: %w: start the server there first, without a host name", at, err)
	}
	return conn, nil
}

// Listen opens a TCP port for Serve. The end of ctx closes it.
func Listen(ctx context.Context, port int) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", ":"+strconv.Itoa(port))
	if err != nil {
		return nil, fmt.Errorf("%w: choose another port with -p on both sides", err)
	}
	context.AfterFunc(ctx, func() { l.Close() })
	return l, nil
}
