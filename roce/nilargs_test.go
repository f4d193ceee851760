package roce

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/gorxe/gorxe/loopback"
)

// Arguments that are nil are errors, and a nil context panics before anything has changed.
func TestNilArguments(t *testing.T) {
	link := newLink(t, loopback.Config{})
	d := newDevice(t, link, 0)
	k := newDevice(t, link, 1)
	l, err := k.Listen(netip.AddrPort{}, ListenOptions{})
	must(t, err)
	ctx := within(t)
	if _, err := d.Dial(ctx, l.Addr(), nil, DialOptions{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("Dial() of a nil QP = %v, want ErrInvalid", err)
	}
	if _, err := d.CreateAHFromWC(ctx, nil, make([]byte, GRHLen)); !errors.Is(err, ErrInvalid) {
		t.Errorf("CreateAHFromWC() of a nil WC = %v, want ErrInvalid", err)
	}
	pd, err := d.AllocPD()
	must(t, err)
	q, err := d.CreateQP(pd, QPConfig{})
	must(t, err)
	dialed := make(chan error, 1)
	go func() {
		_, err := d.Dial(ctx, l.Addr(), q, DialOptions{})
		dialed <- err
	}()
	r, err := l.Accept(ctx)
	must(t, err)
	if _, err := r.Accept(ctx, nil, AcceptOptions{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("Accept() of a nil QP = %v, want ErrInvalid", err)
	}
	must(t, r.Reject(nil)) // it can still be answered
	if err := <-dialed; !errors.Is(err, ErrRefused) {
		t.Errorf("Dial() = %v, want ErrRefused", err)
	}
	before := objects(k)
	var none context.Context
	for name, call := range map[string]func(){
		"Dial":   func() { _, _ = d.Dial(none, l.Addr(), q, DialOptions{}) },
		"Accept": func() { _, _ = l.Accept(none) },
		"Serve":  func() { _ = k.Serve(none, l.Addr(), ServeConfig{}, nil) },
	} {
		func() {
			defer func() {
				if got := recover(); got != "roce: nil Context" {
					t.Errorf("%s with a nil Context: %v", name, got)
				}
			}()
			call()
		}()
	}
	if n := objects(k); n != before {
		t.Errorf("%d objects, before: %d", n, before)
	}
}
