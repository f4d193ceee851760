package session

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/guard"
	"github.com/gorxe/gorxe/internal/limit"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce"
)

// AcceptLoop rejects and counts clients that the Guard does not permit.
func TestAcceptLoopRefuses(t *testing.T) {
	tb, err := testbed.New(testbed.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer tb.Close()
	const port = 4000
	l, err := tb.Dev[1].Listen(netip.AddrPortFrom(netip.Addr{}, port), roce.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	peer := tb.Addr(0, 0).Addr()
	g := guard.New(limit.Access{Deny: []netip.Prefix{netip.PrefixFrom(peer, peer.BitLen())}}, nil)
	ended := make(chan error, 1)
	go func() {
		ended <- AcceptLoop(t.Context(), l, g, func(*roce.Request) func(context.Context) {
			t.Error("AcceptLoop passed on a request that is not permitted")
			return nil
		})
	}()
	e, err := endpoint.New(tb.Dev[0], endpoint.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if _, err := tb.Dev[0].Dial(t.Context(), tb.Addr(1, port), e.QP, roce.DialOptions{}); !errors.Is(err, roce.ErrRefused) {
		t.Errorf("Dial() = %v, want ErrRefused", err)
	}
	for name, n := range g.Counts() {
		if name == "refused_access" && n == 0 {
			t.Errorf("%s = %d, want more", name, n)
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("AcceptLoop() = %v", err)
	}
}
