package roce

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/xdp"
	"github.com/gorxe/gorxe/xdp/veth"
)

// TestPortFails: when the port stops working, every call that waits returns the error of
// Device.Err, and later calls return it at once.
func TestPortFails(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		leakCheck(t)
		c := rigConfig{opts: []Option{WithProgress(p)}}
		link := newLink(t, c.link)
		a, b := newEnd(t, newDevice(t, link, 0), c), newEnd(t, newDevice(t, link, 1, c.opts...), c)
		connect(t, a.qp, b.qp)
		failWhileWaiting(t, a, b, loopback.ErrClosed, func() { must(t, link.Port(1).Close()) })
	})
}

// TestInterfaceRemoved is TestPortFails for an interface that is deleted.
func TestInterfaceRemoved(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		pair := newVeth(t, veth.Options{})
		leakCheck(t)
		a := openEnd(t, &pair.A, XDPOptions{}, rigConfig{})
		b := openEnd(t, &pair.B, XDPOptions{}, rigConfig{opts: []Option{WithProgress(p)}})
		connect(t, a.qp, b.qp)
		failWhileWaiting(t, a, b, xdp.ErrGone, func() {
			must(t, pair.B.Do(func() error {
				l, err := netlink.LinkByName(pair.B.Iface)
				if err != nil {
					return err
				}
				return netlink.LinkDel(l)
			}))
		})
	})
}

// failWhileWaiting calls remove, which ends the port of b, while calls on b wait.
func failWhileWaiting(t *testing.T, a, b *end, cause error, remove func()) {
	ctx := context.Background()
	listener, err := a.Listen(netip.AddrPort{}, ListenOptions{})
	must(t, err)
	peer := netip.AddrPortFrom(a.GIDs()[0].Addr, listener.Addr().Port())
	own, err := b.Listen(netip.AddrPort{}, ListenOptions{})
	must(t, err)
	idle, err := b.CreateCQ(1)
	must(t, err)
	calls := map[string]func() error{
		"CQ.Wait": func() error {
			_, err := b.cq.Wait(ctx, make([]WC, 1))
			return err
		},
		"CQ.Wait of another CQ": func() error {
			_, err := idle.Wait(ctx, make([]WC, 1))
			return err
		},
		"CQ.WaitSolicited": func() error {
			_, err := b.cq.WaitSolicited(ctx, make([]WC, 1))
			return err
		},
		"Accept":         func() error { _, err := own.Accept(ctx); return err },
		"Accept, second": func() error { _, err := own.Accept(ctx); return err },
		"Dial": func() error {
			_, err := b.Dial(ctx, peer, newQP(t, b), DialOptions{})
			return err
		},
		"Done": func() error { <-b.Done(); return b.Err() },
	}
	if err := b.Err(); err != nil {
		t.Fatalf("Err() = %v, want nil", err)
	}
	results := make(chan string)
	errs := map[string]error{}
	for name, call := range calls {
		go func() {
			err := call()
			if !errors.Is(err, ErrGone) || !errors.Is(err, cause) {
				results <- name + ": " + errorText(err)
				return
			}
			results <- ""
		}()
	}
	eventually(t, "callers of Wait", func() bool {
		return b.cq.waiters.Load() == 2 && idle.waiters.Load() == 1
	})
	time.Sleep(5 * time.Millisecond) // most of the other calls wait now; the test holds either way
	remove()
	for range calls {
		select {
		case r := <-results:
			if r != "" {
				t.Errorf("%s; want %v and %v", r, ErrGone, cause)
			}
		case <-time.After(deadline):
			t.Fatal("a call does not return after the port has failed")
		}
	}
	_, errs["AllocPD"] = b.AllocPD()
	_, errs["CreateCQ"] = b.CreateCQ(1)
	_, errs["CreateQP"] = b.CreateQP(b.pd, QPConfig{SendCQ: b.cq})
	_, errs["Listen"] = b.Listen(netip.AddrPort{}, ListenOptions{})
	_, errs["Dial"] = b.Dial(ctx, peer, b.qp, DialOptions{})
	_, errs["Wait"] = b.cq.Wait(ctx, make([]WC, 1))
	errs["CQ.Err"] = b.cq.Err()
	for name, err := range errs {
		if !errors.Is(err, ErrGone) {
			t.Errorf("%s afterwards: %v, want %v", name, err, ErrGone)
		}
	}
	for e := range b.Events() {
		if e.Kind == EventDeviceFatal {
			break
		}
	}
	must(t, b.Close())
	if err := b.Err(); !errors.Is(err, ErrGone) {
		t.Errorf("Err() after Close = %v, want %v", err, ErrGone)
	}
}

func errorText(err error) string {
	if err == nil {
		return "no error"
	}
	return err.Error()
}

// TestConnPortFails: the connections of a device end with it.
func TestConnPortFails(t *testing.T) {
	link := newLink(t, loopback.Config{})
	a, b := newEnd(t, newDevice(t, link, 0), rigConfig{}), newEnd(t, newDevice(t, link, 1), rigConfig{})
	ca, cb := dialAccept(t, a, b)
	must(t, cb.QP().PostRecv(RecvWR{}))
	must(t, link.Port(1).Close())
	<-cb.Done()
	if err := cb.Err(); !errors.Is(err, ErrGone) {
		t.Errorf("Conn.Err() = %v, want %v", err, ErrGone)
	}
	if wc := poll(t, 1, b.cq)[0]; wc.Status != WRFlushErr {
		t.Errorf("receive: %v, want %v", wc.Status, WRFlushErr)
	}
	must(t, cb.Close())
	must(t, ca.Close())
}

// dialAccept connects new QPs of a and b with the connection manager.
func dialAccept(t *testing.T, a, b *end) (ca, cb *Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	l, err := b.Listen(netip.AddrPort{}, ListenOptions{})
	must(t, err)
	accepted := make(chan error)
	qa, qb := newQP(t, a), newQP(t, b)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			cb, err = r.Accept(ctx, qb, AcceptOptions{})
		}
		accepted <- err
	}()
	ca, err = a.Dial(ctx, netip.AddrPortFrom(b.GIDs()[0].Addr, l.Addr().Port()), qa, DialOptions{})
	must(t, errors.Join(err, <-accepted))
	must(t, l.Close())
	return ca, cb
}

// TestDone: Close closes the channel of Done, and Err returns ErrClosed.
func TestDone(t *testing.T) {
	d := newDevice(t, newLink(t, loopback.Config{}), 0)
	select {
	case <-d.Done():
		t.Error("Done is closed before Close")
	default:
	}
	must(t, d.Close())
	<-d.Done()
	if err := d.Err(); !errors.Is(err, ErrClosed) {
		t.Errorf("Err() = %v, want %v", err, ErrClosed)
	}
}

// TestNewOnClosedPort: New returns an error if the port is closed.
func TestNewOnClosedPort(t *testing.T) {
	link := newLink(t, loopback.Config{})
	must(t, link.Port(0).Close())
	if _, err := New(link.Port(0)); !errors.Is(err, ErrClosed) || !errors.Is(err,
		loopback.ErrClosed) {
		t.Errorf("New on a closed port: %v, want %v", err, ErrClosed)
	}
	if _, err := New(nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("New without a port: %v, want %v", err, ErrInvalid)
	}
	pair := newVeth(t, veth.Options{})
	port, err := xdp.Open(pair.A.Iface, xdp.Options{NetNS: pair.A.Fd()})
	must(t, err)
	must(t, port.Close())
	if _, err := New(port); !errors.Is(err, ErrClosed) {
		t.Errorf("New on a closed AF_XDP port: %v, want %v", err, ErrClosed)
	}
}

// wrapped is a port that wraps another one.
type wrapped struct{ driver.Port }

func (w wrapped) Unwrap() driver.Port { return w.Port }

// TestTwoDevicesOnOnePort: the second one is refused, and the first one still works.
func TestTwoDevicesOnOnePort(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		link, c := newLink(t, loopback.Config{}), rigConfig{opts: []Option{WithProgress(p)}}
		a := newEnd(t, newDevice(t, link, 0, c.opts...), c)
		b := newEnd(t, newDevice(t, link, 1, c.opts...), c)
		connect(t, a.qp, b.qp)
		port := link.Port(0)
		for _, again := range []driver.Port{port, wrapped{port}, &wrapped{port}} {
			if _, err := New(again); !errors.Is(err, ErrPortInUse) {
				t.Fatalf("a second device on %T: %v, want %v", again, err, ErrPortInUse)
			}
		}
		conversation(t, a, b)
		must(t, a.Close())
		if _, err := New(port); !errors.Is(err, ErrClosed) {
			t.Errorf("New on the port of a closed device: %v, want %v", err, ErrClosed)
		}
	})
}
