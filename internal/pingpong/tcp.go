package pingpong

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/gorxe/gorxe/internal/guard"
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

// Serve accepts connections one at a time until session returns without an error that wraps
// ErrExchange, and returns that result. Connections of other programs, and of peers that g does not
// permit, are passed to rejected with the error and do not end the wait. session must close its
// connection.
func Serve(
	ctx context.Context, l net.Listener, g *guard.Guard, session func(net.Conn) error,
	rejected guard.Log,
) error {
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				conn.Close()
			}
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		peer := remoteAddr(conn)
		if !g.Permits(peer.Addr()) {
			conn.Close()
			rejected(peer, guard.ErrRefused)
			continue
		}
		err = session(conn)
		if !errors.As(err, new(notAClient)) {
			return err
		}
		rejected(peer, err)
	}
}
