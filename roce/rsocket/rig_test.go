package rsocket

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce"
)

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

// newTestbed returns two devices on a link in memory.
func newTestbed(t testing.TB, c testbed.Config) *testbed.Testbed {
	t.Helper()
	bed, err := testbed.New(c)
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, "the testbed", bed.Close)
	return bed
}

// closeLater calls a Close at the end of the test.
func closeLater(t testing.TB, what string, closeIt func() error) {
	t.Cleanup(func() {
		if err := closeIt(); err != nil {
			t.Errorf("close %s: %v", what, err)
		}
	})
}

// listenOn listens on device 1.
func listenOn(t testing.TB, bed *testbed.Testbed, cfg Config) *Listener {
	t.Helper()
	l, err := Listen(bed.Dev[1], bed.Addr(1, 0).String(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, "the listener", l.Close)
	return l
}

// dial dials the listener from device 0, and returns both sides of the connection.
func dial(t testing.TB, bed *testbed.Testbed, l *Listener, cfg Config) (client, server *Conn) {
	t.Helper()
	client, server, err := tryDial(bed, l, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // with manual progress, each side needs the other
		var wg sync.WaitGroup
		wg.Go(func() { _ = client.Close() }) // the test may have closed it
		wg.Go(func() { _ = server.Close() })
		wg.Wait()
	})
	return client, server
}

func tryDial(bed *testbed.Testbed, l *Listener, cfg Config) (client, server *Conn, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	client, err = Dial(ctx, bed.Dev[0], l.Addr().String(), cfg)
	if err != nil {
		return nil, nil, err
	}
	server, err = l.AcceptConn()
	return client, server, err
}

// newPair returns a connection of two devices on a perfect link.
func newPair(t testing.TB, cfg Config) (client, server *Conn) {
	t.Helper()
	bed := newTestbed(t, testbed.Config{})
	return dial(t, bed, listenOn(t, bed, cfg), cfg)
}

var _ net.Listener = (*Listener)(nil)

// bothModes runs a test with Auto and with Manual progress.
func bothModes(t *testing.T, f func(t *testing.T, p roce.Progress)) {
	for _, p := range []roce.Progress{roce.Auto, roce.Manual} {
		t.Run(p.String(), func(t *testing.T) { f(t, p) })
	}
}

// drive makes devices progress until stop is called, while their programs are in no call.
func drive(devs ...*roce.Device) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			default:
				for _, d := range devs {
					d.Progress()
				}
				time.Sleep(time.Millisecond)
			}
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}
