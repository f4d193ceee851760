package cm

import (
	"net/netip"
	"testing"

	"github.com/gorxe/gorxe/internal/limit"
)

// During a flood of requests that exceeds the rate, the messages of established connections are
// handled, and other prefixes are served.
func TestRateLimit(t *testing.T) {
	a := newSide(t, gidA, guidA, 1)
	b := listening(t, 0, func(c *Config) {
		c.Rate = limit.RateConfig{PerPrefix: limit.Budget{PerSecond: 10, Burst: 10},
			Total: limit.Budget{PerSecond: 20, Burst: 20}}
	})
	ia, ib := establish(0, a, b)
	flooder := host(1)
	flooder.knocks(b, 0, 100)
	if n := b.m.c.DropRate; n != 90 {
		t.Errorf("%d requests of one host dropped, want 90", n)
	}
	host(2).knocks(b, 0, 1)
	for range 11 {
		b.event(EventConnectRequest)
	}
	for i := range uint32(100) {
		host(i+3).knocks(b, 0, 1)
	}
	for range 8 { // the rest of the total; one was a's request
		b.event(EventConnectRequest)
	}
	b.quiet()
	var unknown MAD
	(&DREQ{LocalID: 1, RemoteID: ib + 1}).Encode(&unknown, 1)
	b.hears(0, a, unknown)
	b.sends()
	a.must(a.m.Disconnect(0, ia, nil))
	b.hears(0, a, a.sends(AttrDREQ)...)
	if e := b.event(EventDisconnected); e.ID != ib {
		t.Errorf("event %+v", e)
	}
	flooder.knocks(b, second, 100)
	for range 10 {
		b.event(EventConnectRequest)
	}
	b.quiet()
}

// Requests of peers that the lists exclude are dropped, and others are not.
func TestPeers(t *testing.T) {
	deny := limit.Access{Deny: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")}}
	byConfig := listening(t, 0, func(c *Config) { c.Peers = deny })
	byListener := newSide(t, gidB, guidB, 1)
	_, err := byListener.m.Listen(ListenParams{Service: TCPService(port), Peers: deny})
	byListener.must(err)
	for _, b := range []*side{byConfig, byListener} {
		host(1).knocks(b, 0, 1)
		b.quiet()
		b.sends()
		host(2).knocks(b, 0, 1)
		b.event(EventConnectRequest)
		if b.m.c.DropPeer != 1 {
			t.Errorf("%d requests dropped, want 1", b.m.c.DropPeer)
		}
	}
	// Without a listener the denied peer does not even learn that.
	none := newSide(t, gidB, guidB, 1, func(c *Config) { c.Peers = deny })
	host(1).knocks(none, 0, 1)
	none.sends()
}

// Ignore discards a request silently; the same request is a new one when it is repeated.
func TestIgnore(t *testing.T) {
	b, s := listening(t, 0), host(1)
	req := s.request()
	for range 2 {
		s.says(b, 0, req)
		b.must(b.m.Ignore(0, b.event(EventConnectRequest).ID))
		b.event(EventClosed)
		b.sends()
		b.empty()
	}
}
