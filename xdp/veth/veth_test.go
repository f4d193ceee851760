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
	for i := range 4 {
		p, err := New(Options{Rate: int64(i%2) * 1e9})
		if errors.Is(err, ErrUnsupported) {
			continue
		}
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
	for _, o := range []Options{{MTU: 10}, {MTU: 70000}, {Queues: -1}, {Queues: 1000},
		{Rate: 1000}, {Rate: -1}, {Rate: 1e9, Queues: 2}, {Rate: 1e9, Offloads: true}} {
		if _, err := New(o); !errors.Is(err, ErrOptions) {
			t.Errorf("New(%+v) = %v", o, err)
		}
	}
}

// With Rate, frames leave at this rate.
func TestRate(t *testing.T) {
	needRoot(t)
	const rate, size, count = 80e6, 1042, 50 // 104.2 us per frame
	p, err := New(Options{Rate: rate})
	if errors.Is(err, ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var in net.PacketConn
	if err := p.B.Do(func() (err error) {
		in, err = net.ListenPacket("udp4", "10.77.0.2:9")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var out net.Conn
	if err := p.A.Do(func() (err error) {
		out, err = net.Dial("udp4", "10.77.0.2:9")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	buf := make([]byte, size)
	start, want := time.Now(), time.Duration(count*size*8/rate*1e9)
	for range count {
		if _, err := out.Write(buf[:size-42]); err != nil {
			t.Fatal(err)
		}
	}
	_ = in.SetReadDeadline(start.Add(5 * time.Second))
	for range count {
		if _, _, err := in.ReadFrom(buf); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(start); took < want*8/10 {
		t.Errorf("%d frames of %d bytes took %v at %g bit/s, want at least %v", count, size, took,
			float64(rate), want)
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
