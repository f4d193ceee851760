package indirect

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// end is an Endpoint with its device and memory.
type end struct {
	*Endpoint
	dev   *roce.Device
	mr    *roce.MR
	space *Space
	conn  *Conn
	link  *loopback.Link
	still bool // in virtual time: its NIC works, its program does not
}

const rigMem = 4 << 20

// newEnd creates an Endpoint with memory, unless c has its own Host.
func newEnd(t testing.TB, dev *roce.Device, c Config) *end {
	t.Helper()
	e := &end{dev: dev}
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	if e.mr, err = pd.AllocMR(rigMem, roce.LocalWrite|roce.RemoteWrite|roce.RemoteRead,
		roce.WithIOVA(1<<40)); err != nil {
		t.Fatal(err)
	}
	e.space = NewSpace(e.mr)
	if c.Host == nil {
		c.Host = e.space
	}
	if e.Endpoint, err = New(dev, pd, c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Endpoint.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return e
}

func newDevice(t testing.TB, link *loopback.Link, i int, opts ...roce.Option) *roce.Device {
	t.Helper()
	d, err := roce.New(link.Port(i), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// within returns a context that ends before the test binary's timeout.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// newPair creates two connected endpoints. A goroutine serves b.
func newPair(t testing.TB, plan loopback.Plan, ca, cb Config) (a, b *end) {
	t.Helper()
	link, err := loopback.NewLink(loopback.Config{Seed: 1, Plan: plan})
	if err != nil {
		t.Fatal(err)
	}
	a, b = newEnd(t, newDevice(t, link, 0), ca), newEnd(t, newDevice(t, link, 1), cb)
	a.link, b.link = link, link
	ctx := within(t)
	l, err := b.Listen(netip.MustParseAddrPort("10.77.0.2:7000"))
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan error, 1)
	go func() {
		var err error
		b.conn, err = l.Accept(ctx)
		accepted <- err
	}()
	if a.conn, err = a.Dial(ctx, l.Addr()); err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	serve(t, b)
	return a, b
}

// serve drives an endpoint until the test ends.
func serve(t testing.TB, e *end) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
}

func fill(b []byte, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return append([]byte(nil), b...)
}
