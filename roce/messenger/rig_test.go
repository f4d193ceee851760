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
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// connect returns the two sides of a connection: that of device 0, which dials, and that of
// device 1.
func connect(t testing.TB, b *testbed.Testbed, dial, accept messenger.Config) (x,
	y *messenger.Conn) {
	t.Helper()
	ctx := background(t)
	l, err := b.Dev[1].Listen(netip.AddrPort{}, roce.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			y, err = messenger.Accept(ctx, b.Dev[1], r, accept)
		}
		accepted <- err
	}()
	x, dialErr := messenger.Dial(ctx, b.Dev[0], l.Addr(), dial)
	if err := errors.Join(dialErr, <-accepted); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(x.Close(), y.Close()); err != nil {
			t.Error(err)
		}
	})
	return x, y
}

// pair returns the two sides of a connection with the same configuration on a link in memory.
func pair(t testing.TB, c messenger.Config) (x, y *messenger.Conn) {
	t.Helper()
	return connect(t, newBed(t, testbed.Config{}), c, c)
}

// memory returns 4 KiB of memory that the peer of c may access.
func memory(t testing.TB, c *messenger.Conn) *roce.MR {
	t.Helper()
	mr, err := c.PD().AllocMR(1<<20,
		roce.LocalWrite|roce.RemoteWrite|roce.RemoteRead|roce.RemoteAtomic)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mr.Close(); err != nil {
			t.Error(err)
		}
	})
	return mr
}

func echo(_ context.Context, req []byte) ([]byte, error) { return req, nil }
