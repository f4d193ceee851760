package frame

import (
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// PeekBTH finds the BTH where Decode does, with and without a tag, and copes with any truncation.
func TestPeekBTH(t *testing.T) {
	d, p := new(Decoder), new(bth.Packet)
	for _, a := range []Address{addr4, addr6} {
		for _, vlan := range []uint16{0, 7} {
			a.VLAN = vlan
			f, _ := writeOnly(&a, 64)
			if r := d.Decode(f, p); r != ReasonOK {
				t.Fatal(r)
			}
			b := PeekBTH(f)
			if b == nil || &b[0] != &p.BTH[0] {
				t.Errorf("IPv4 %v, VLAN %d: PeekBTH does not point to the BTH", a.Src.IsIPv4(),
					vlan)
			}
			for n := range f {
				if b := PeekBTH(f[:n:n]); b != nil && len(b) < bth.HeaderLen {
					t.Fatalf("PeekBTH of %d bytes returned %d bytes", n, len(b))
				}
			}
			f[12], f[13] = 0x08, 0x06 // ARP
			if PeekBTH(f) != nil {
				t.Error("PeekBTH accepted an ARP frame")
			}
		}
	}
}
