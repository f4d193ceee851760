package cm

import (
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// A request that names a partition of which the port is no member is refused.
func TestPKeyOfRequest(t *testing.T) {
	for _, c := range []struct {
		key  bth.PKey
		keys []bth.PKey
		want bool
	}{
		{0xffff, nil, true},
		{0x8001, nil, true},
		{0x8001, []bth.PKey{0xffff}, false},
		{0x8001, []bth.PKey{0xffff, 0x0001}, true},
		{0x0001, []bth.PKey{0x0001}, false},
		{0x0001, []bth.PKey{0x8001}, true},
	} {
		a := newSide(t, gidA, guidA, 1)
		b := newSide(t, gidB, guidB, 2, func(f *Config) { f.PKeys = c.keys })
		b.listen()
		p := a.params(b)
		p.PKey = c.key
		_, err := a.m.Connect(0, p)
		a.must(err)
		b.hears(0, a, a.sends(AttrREQ)...)
		if c.want {
			if e := b.event(EventConnectRequest); e.Request.PKey != c.key {
				t.Errorf("the request's P_Key is %#04x, want %#04x", e.Request.PKey, c.key)
			}
			continue
		}
		b.quiet()
		a.hears(0, b, b.sends(AttrREJ)...)
		if e := a.event(EventRejected); e.Reason != ReasonUnsupported {
			t.Errorf("P_Key %#04x to %#04x: reason %v, want %v", c.key, c.keys, e.Reason,
				ReasonUnsupported)
		}
		if n := b.m.Counters().BadPKey; n != 1 {
			t.Errorf("BadPKey = %d, want 1", n)
		}
		b.empty()
	}
}

func TestPKeyOfSIDR(t *testing.T) {
	a := newSide(t, gidA, guidA, 1)
	b := newSide(t, gidB, guidB, 2, func(f *Config) { f.PKeys = []bth.PKey{0x8001} })
	if _, err := b.m.Listen(ListenParams{Service: UDPService(port)}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.m.Resolve(0, &SIDRParams{Local: a.gid, Remote: b.gid,
		Service: UDPService(port)}); err != nil {
		t.Fatal(err)
	}
	b.hears(0, a, a.sends(AttrSIDRREQ)...)
	b.quiet()
	a.hears(0, b, b.sends(AttrSIDRREP)...)
	if e := a.event(EventSIDRResponse); e.Reply.Status != SIDRRejected {
		t.Errorf("status %v, want %v", e.Reply.Status, SIDRRejected)
	}
}
