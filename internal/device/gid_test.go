package device

import (
	"net/netip"
	"testing"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce"
)

// Choose returns the chosen GID, the GID with the local address, or one of the same IP version.
func TestChooseGID(t *testing.T) {
	tb, err := testbed.New(testbed.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer tb.Close()
	dev := tb.Dev[0]
	byKind := map[roce.GIDKind]roce.GIDEntry{}
	for _, g := range dev.GIDs() {
		byKind[g.Kind] = g
	}
	v4, v6 := byKind[roce.GIDIPv4], byKind[roce.GIDIPv6]
	for _, c := range []struct {
		name  string
		gid   GIDIndex
		local netip.Addr
		want  int
	}{
		{"chosen", 7, v4.Addr, 7},
		{"IPv4 address", AnyGID, v4.Addr, v4.Index},
		{"IPv6 address", AnyGID, v6.Addr, v6.Index},
		{"mapped address", AnyGID, netip.AddrFrom16(v4.Addr.As16()), v4.Index},
		{"other IPv4 address", AnyGID, netip.MustParseAddr("192.0.2.1"), v4.Index},
		{"other IPv6 address", AnyGID, netip.MustParseAddr("2001:db8::1"), v6.Index},
	} {
		got, err := c.gid.Choose(dev, c.local)
		if err != nil || *got != c.want {
			t.Errorf("%s: Choose() = %v, %v; want %d", c.name, got, err, c.want)
		}
	}
	if err := AnyGID.check(dev); err != nil {
		t.Errorf("check(AnyGID) = %v", err)
	}
	if err := GIDIndex(200).check(dev); cli.Status(err) != cli.StatusUsage {
		t.Errorf("check(200) = %v, want a usage error", err)
	}
}

func TestGIDIndexFlag(t *testing.T) {
	g := AnyGID
	if g.String() != "" {
		t.Errorf("String() = %q before Set, want an empty text", g.String())
	}
	for _, text := range []string{"-1", "256", "x"} {
		if err := g.Set(text); err == nil || g != AnyGID {
			t.Errorf("Set(%q) = %v and the index is %d, want an error", text, err, int(g))
		}
	}
	if err := g.Set("3"); err != nil || g != 3 || g.String() != "3" {
		t.Errorf("Set(3) = %v and the index is %d", err, int(g))
	}
}
