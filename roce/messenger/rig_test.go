package messenger_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/roce/messenger"
)

const port = 7471

// background returns a context that ends a test that hangs.
func background(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// newBed returns two devices.
func newBed(t testing.TB, c testbed.Config) *testbed.Testbed {
	t.Helper()
	b, err := testbed.New(c)
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, b.Close)
	return b
}

// closeLater calls a Close at the end of the test.
func closeLater(t testing.TB, closeIt func() error) {
	t.Cleanup(func() {
		if err := closeIt(); err != nil {
			t.Error(err)
		}
	})
}

// accept accepts on device 1 the connection that dial establishes.
func accept(ctx context.Context, t testing.TB, b *testbed.Testbed, c messenger.Config,
	dial func(addr netip.AddrPort) error) (y *messenger.Conn) {
	t.Helper()
	l, err := b.Dev[1].Listen(netip.AddrPort{}, roce.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			y, err = messenger.Accept(ctx, b.Dev[1], r, c)
		}
		accepted <- err
	}()
	if err := errors.Join(dial(l.Addr()), <-accepted); err != nil {
		t.Fatal(err)
	}
	return y
}

// connectIn returns the two sides of a connection: that of device 0, which dials, and that of
// device 1. The caller closes them, in a bubble of synctest before its end.
func connectIn(ctx context.Context, t testing.TB, b *testbed.Testbed, dialer,
	accepter messenger.Config) (x, y *messenger.Conn) {
	t.Helper()
	y = accept(ctx, t, b, accepter, func(addr netip.AddrPort) (err error) {
		x, err = messenger.Dial(ctx, b.Dev[0], addr, dialer)
		return err
	})
	return x, y
}

// connect is connectIn for connections that are closed at the end of the test.
func connect(t testing.TB, b *testbed.Testbed, dialer, accepter messenger.Config) (x,
	y *messenger.Conn) {
	t.Helper()
	x, y = connectIn(background(t), t, b, dialer, accepter)
	closeLater(t, func() error { return errors.Join(x.Close(), y.Close()) })
	return x, y
}

// pair returns the two sides of a connection with the same configuration on a link in memory.
func pair(t testing.TB, c messenger.Config) (x, y *messenger.Conn) {
	t.Helper()
	return connect(t, newBed(t, testbed.Config{}), c, c)
}

// memory returns 1 MiB of memory that the peer of c may access.
func memory(t testing.TB, c *messenger.Conn) *roce.MR {
	t.Helper()
	mr, err := c.PD().AllocMR(1<<20,
		roce.LocalWrite|roce.RemoteWrite|roce.RemoteRead|roce.RemoteAtomic)
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, mr.Close)
	return mr
}

func echo(_ context.Context, req []byte) ([]byte, error) { return req, nil }
