package veth

import (
	"errors"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skipped: creating network namespaces requires root")
	}
}

func newPair(t *testing.T, o Options) *Pair {
	t.Helper()
	needRoot(t)
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// Kernel sockets can communicate over the pair at once: no address is tentative.
func TestPairCarriesTraffic(t *testing.T) {
	p := newPair(t, Options{MTU: 4200, Queues: 2})
	for _, c := range []struct{ network, addr string }{
		{"tcp4", p.B.IPv4.Addr().String()},
		{"tcp6", p.B.IPv6.Addr().String()},
	} {
		var ln net.Listener
		if err := p.B.Do(func() (err error) {
			ln, err = net.Listen(c.network, net.JoinHostPort(c.addr, "0"))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		if err := p.A.Do(func() error {
			// The dialer starts no goroutine for an address literal.
			conn, err := net.DialTimeout(c.network, ln.Addr().String(), 5*time.Second)
			if err != nil {
				return err
			}
			return conn.Close()
		}); err != nil {
			t.Fatalf("%s: %v", c.network, err)
		}
	}
}

func TestPairHasRequestedProperties(t *testing.T) {
	p := newPair(t, Options{MTU: 9000, Queues: 3})
	for _, e := range []*End{&p.A, &p.B} {
		err := e.Do(func() error {
			l, err := netlink.LinkByName(e.Iface)
			if err != nil {
				return err
			}
			a := l.Attrs()
			if a.MTU != 9000 || a.NumRxQueues != 3 || a.NumTxQueues != 3 || a.Index != e.Index ||
				string(a.HardwareAddr) != string(e.MAC[:]) {
				t.Errorf("%s: MTU %d, %d/%d queues, index %d, MAC %v", e.Iface, a.MTU,
					a.NumRxQueues, a.NumTxQueues, a.Index, a.HardwareAddr)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Close removes the interfaces and closes the namespaces' descriptors.
func TestCloseLeavesNothing(t *testing.T) {
	needRoot(t)
	count := func() int {
		d, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(d)
	}
	if p, err := New(Options{}); err == nil { // initialize what is created only once
		p.Close()
	}
	before := count()
	for range 3 {
		p, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Fatalf("second Close: %v", err)
		}
	}
	if after := count(); after > before {
		t.Errorf("%d open descriptors before, %d after", before, after)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, o := range []Options{{MTU: 10}, {MTU: 70000}, {Queues: -1}, {Queues: 1000}} {
		if _, err := New(o); !errors.Is(err, ErrOptions) {
			t.Errorf("New(%+v) = %v", o, err)
		}
	}
}

// t.FailNow inside Do does not block the test.
func TestDoSurvivesGoexit(t *testing.T) {
	p := newPair(t, Options{NoIPv6: true})
	done := make(chan error, 1)
	go func() {
		done <- p.A.Do(func() error { runtime.Goexit(); return nil })
	}()
	select {
	case err := <-done:
		if err == nil {
			t.Error("Do() = nil after Goexit")
		}
	case <-time.After(5 * time.Second):
		t.Fatal("Do did not return")
	}
}
