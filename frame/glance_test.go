package frame

import (
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// A glance finds the BTH where Decode does, tagged or not, and never reaches beyond a frame that ends too early.
func TestGlance(t *testing.T) {
	d, p := new(Decoder), new(bth.Packet)
	for _, a := range []Address{addr4, addr6} {
		for _, vlan := range []uint16{0, 7} {
			a.VLAN = vlan
			f, _ := writeOnly(&a, 64)
			if r := d.Decode(f, p); r != ReasonOK {
				t.Fatal(r)
			}
			b := Glance(f)
			if b == nil || &b[0] != &p.BTH[0] {
				t.Errorf("IPv4 %v, tag %d: the glance is elsewhere than the BTH", a.Src.IsIPv4(), vlan)
			}
			for n := range f {
				if b := Glance(f[:n:n]); b != nil && len(b) < bth.HeaderLen {
					t.Fatalf("%d bytes of a frame give %d of a BTH", n, len(b))
				}
			}
			f[12], f[13] = 0x08, 0x06 // ARP
			if Glance(f) != nil {
				t.Error("ARP looks like RoCE")
			}
		}
	}
}
