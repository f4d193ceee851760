package device

import (
	"strings"
	"testing"
)

// A link-local peer gets the zone of the interface. A device that is not named by its interface
// gives none.
func TestLinkLocalPeer(t *testing.T) {
	for _, c := range []struct{ host, dev, want string }{
		{"fe80::1", "eth0", "fe80::1%eth0"},
		{"fe80::1%eth1", "eth0", "fe80::1%eth1"},
		{"fe80::1%eth0", "/run/gorxe/eth0.sock", "fe80::1%eth0"},
		{"fe80::1", "/run/gorxe/eth0.sock", ""},
		{"fe80::1", "fe80::2", ""},
		{"fe80::1", "", ""},
		{"10.0.0.2", "/run/gorxe/eth0.sock", "10.0.0.2"},
		{"fe80::1%1", "eth0", "fe80::1%lo"}, // the number of the loopback interface is always 1
		{"fe80::1%999999999", "eth0", "fe80::1%999999999"},
	} {
		f := Flags{Iface: c.dev}
		p, err := f.FindPeer(t.Context(), c.host)
		switch {
		case c.want == "":
			if err == nil || !strings.Contains(err.Error(), "add the interface") {
				t.Errorf("%s with -d %q: %v, %v; want a request for the interface", c.host, c.dev, p, err)
			}
		case err != nil || p.Addr.String() != c.want || p.Iface != c.dev:
			t.Errorf("%s with -d %q: %+v, %v; want %s", c.host, c.dev, p, err, c.want)
		}
	}
}
