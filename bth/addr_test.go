package bth

import (
	"encoding/json"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

func TestGID(t *testing.T) {
	for _, c := range []struct {
		addr, text      string
		ipv4, multicast bool
	}{
		{"10.77.0.1", "::ffff:10.77.0.1", true, false},
		{"::ffff:10.77.0.1", "::ffff:10.77.0.1", true, false},
		{"fe80::5054:ff:fe12:3456", "fe80::5054:ff:fe12:3456", false, false},
		{"fe80::1%eth0", "fe80::1", false, false}, // a GID has no zone
		{"224.0.0.1", "::ffff:224.0.0.1", true, true},
		{"239.255.255.255", "::ffff:239.255.255.255", true, true},
		{"240.0.0.1", "::ffff:240.0.0.1", true, false},
		{"ff02::1", "ff02::1", false, true},
		{"::10.0.0.1", "::a00:1", false, false}, // IPv4-compatible, not IPv4-mapped
	} {
		g := GIDFromAddr(netip.MustParseAddr(c.addr))
		if g.String() != c.text || g.IsIPv4() != c.ipv4 || g.IsMulticast() != c.multicast ||
			g.IsZero() {
			t.Errorf("GIDFromAddr(%s) = %v, IsIPv4 %v, IsMulticast %v",
				c.addr, g, g.IsIPv4(), g.IsMulticast())
		}
		if want := netip.MustParseAddr(c.addr).Unmap().WithZone(""); g.Addr() != want {
			t.Errorf("GIDFromAddr(%s).Addr() = %v, want %v", c.addr, g.Addr(), want)
		}
	}
	if !GIDFromAddr(netip.Addr{}).IsZero() || !(GID{}).IsZero() {
		t.Error("GIDFromAddr(netip.Addr{}) or GID{} is not the zero GID")
	}
}

func TestGIDText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var g GID
		copy(g[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "gid"))
		if rapid.Bool().Draw(t, "mapped") {
			g = GIDFromIPv4([4]byte(g[:4]))
		}
		b, err := json.Marshal(g)
		if err != nil {
			t.Fatal(err)
		}
		var back GID
		if err := json.Unmarshal(b, &back); err != nil || back != g {
			t.Fatalf("UnmarshalText(%s) = %v, %v", b, back, err)
		}
		if GIDFromAddr(g.Addr()) != g {
			t.Fatalf("GIDFromAddr(%v.Addr()) = %v", g, GIDFromAddr(g.Addr()))
		}
	})
	if _, err := ParseGID("ten.dot.one"); err == nil {
		t.Error("ParseGID accepted a string that is not an address")
	}
}

func TestMTU(t *testing.T) {
	for e, m := range map[uint8]MTU{0: 0, 1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096, 6: 0, 255: 0} {
		if got := MTUFromEnum(e); got != m {
			t.Errorf("MTUFromEnum(%d) = %d, want %d", e, got, m)
		}
		if m != 0 && (m.Enum() != e || !m.Valid()) {
			t.Errorf("MTU(%d).Enum() = %d, want %d", m, m.Enum(), e)
		}
	}
	for _, m := range []MTU{-256, 0, 1, 128, 255, 257, 1000, 1500, 8192} {
		if m.Valid() || m.Enum() != 0 {
			t.Errorf("MTU(%d) is valid, want invalid", m)
		}
	}
}

// Like rxe, MTUFor requires 80 bytes more than the path MTU.
func TestMTUFor(t *testing.T) {
	for device, want := range map[int]MTU{
		-1: 0, 0: 0, 335: 0, 336: 256, 592: 512, 1103: 512, 1104: 1024, 1500: 1024, 2127: 1024,
		2128: 2048,
		4175: 2048, 4176: 4096, 9000: 4096, 65535: 4096,
	} {
		if got := MTUFor(device); got != want {
			t.Errorf("MTUFor(%d) = %d, want %d", device, got, want)
		}
	}
}
