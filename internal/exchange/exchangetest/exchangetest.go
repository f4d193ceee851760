// Package exchangetest runs servers of package exchange in tests.
package exchangetest

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/roce"
)

// Start runs s on a free TCP port until the test ends and returns its address. The clients connect
// from a loopback address, so Start lets them use any GID unless the test has set s.CheckGID.
func Start(t testing.TB, s *exchange.Server) (addr string) {
	t.Helper()
	if s.CheckGID == nil {
		s.CheckGID = AnyGID
	}
	ln, err := exchange.Listen(t.Context(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	Background(t, func(ctx context.Context) error { return s.Serve(ctx, ln) })
	return fmt.Sprintf("127.0.0.1:%d", ln.Addr().(*net.TCPAddr).Port)
}

// AnyGID is a rule for exchange.Server.CheckGID that permits every GID.
func AnyGID(context.Context, netip.Addr, roce.GID) error { return nil }

// Background runs f in a goroutine. When the test ends, it cancels f's context and waits for f,
// which must return nil.
func Background(t testing.TB, f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the server returned %v", err)
		}
	})
}
