package frame

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// headersOf returns the headers that p writes.
func headersOf(p *Path) []byte {
	b := bytes.Repeat([]byte{0xff}, bth.MaxNetHeader)
	return b[:p.Put(b)]
}

// Relink leaves the same headers as building the path anew.
func TestPathRelink(t *testing.T) {
	for _, a := range []Address{addr4, addr6} {
		for _, vlans := range [][2]uint16{{0, 0}, {0, 5}, {5, 0}, {5, 6}} {
			a.VLAN = vlans[0]
			got, want := NewPath(&a), a
			want.VLAN, want.DstMAC, want.SrcMAC = vlans[1], bth.MAC{2, 3}, bth.MAC{2, 4}
			got.Relink(want.SrcMAC, want.DstMAC, want.VLAN)
			if got != NewPath(&want) {
				t.Errorf("VLAN %d to %d: got %+v, want %+v", vlans[0], vlans[1], got, want)
			}
		}
	}
}

func TestPathSourcePort(t *testing.T) {
	for _, a := range []Address{addr4, addr6} {
		p := NewPath(&a)
		if p.SourcePort() != a.SrcPort {
			t.Errorf("SourcePort() = %d, want %d", p.SourcePort(), a.SrcPort)
		}
		b := make([]byte, bth.MaxNetHeader)
		n := p.PutFrom(b, 0xc123)
		a.SrcPort = 0xc123
		want := NewPath(&a)
		if !bytes.Equal(b[:n], headersOf(&want)) {
			t.Errorf("PutFrom wrote %x, want %x", b[:n], headersOf(&want))
		}
		if p.SetSourcePort(0xc123); p != want {
			t.Errorf("SetSourcePort: got %+v, want %+v", p, want)
		}
	}
}

// A path without headers keeps its addresses and never writes a header.
func TestBarePath(t *testing.T) {
	a := addr4
	p := NewBarePath(&a)
	p.SetSourcePort(0xc123)
	p.Relink(bth.MAC{1}, bth.MAC{2}, 7)
	a.SrcPort, a.SrcMAC, a.DstMAC, a.VLAN = 0xc123, bth.MAC{1}, bth.MAC{2}, 7
	if p.Address() != a {
		t.Errorf("Address() = %+v, want %+v", p.Address(), a)
	}
	b := make([]byte, bth.MaxNetHeader)
	if n := p.PutFrom(b, 0xc124); n != 0 || p.HeaderLen() != 0 || !p.Valid() {
		t.Errorf("PutFrom() = %d, HeaderLen() = %d, Valid() = %v, want 0, 0, true", n,
			p.HeaderLen(), p.Valid())
	}
}

func TestPathMatches(t *testing.T) {
	p := NewPath(&addr4)
	if want := (bth.GIDPair{Local: addr4.Src, Remote: addr4.Dst}); p.GIDs() != want {
		t.Errorf("GIDs() = %v, want %v", p.GIDs(), want)
	}
	for _, c := range []struct {
		src, dst bth.GID
		want     bool
	}{{addr4.Dst, addr4.Src, true}, {addr4.Src, addr4.Dst, false}, {addr4.Dst, addr6.Src, false},
		{addr6.Dst, addr4.Src, false}} {
		if got := p.Matches(&bth.Packet{Src: c.src, Dst: c.dst}); got != c.want {
			t.Errorf("Matches(%v to %v) = %v, want %v", c.src, c.dst, got, c.want)
		}
	}
	if new(Path).Valid() {
		t.Error("the zero Path is valid")
	}
}

// The PCP of an address replaces the priority of each VLAN tag, survives Relink, and adds no tag.
func TestPathPriority(t *testing.T) {
	for _, c := range []struct {
		vlan uint16
		pcp  uint8
		want uint16 // tag control information; 0: no tag
	}{
		{0, 0, 0}, {0, 7, 0}, {5, 0, 5}, {5, 7, 7<<13 | 5}, {3<<13 | 5, 0, 3<<13 | 5},
		{3<<13 | 1<<12 | 5, 1, 1<<13 | 1<<12 | 5},
	} {
		for _, a := range []Address{addr4, addr6} {
			a.VLAN, a.PCP = c.vlan, c.pcp
			relinked := a
			relinked.VLAN = 6
			moved := NewPath(&relinked)
			moved.Relink(a.SrcMAC, a.DstMAC, a.VLAN)
			p := NewPath(&a)
			if moved != p {
				t.Errorf("%+v: Relink() = %+v, want %+v", c, moved, p)
			}
			p.SetECT()
			b, tci := headersOf(&p), uint16(0)
			if binary.BigEndian.Uint16(b[12:]) == etherTypeVLAN {
				tci = binary.BigEndian.Uint16(b[14:])
			}
			if tci != c.want {
				t.Errorf("VLAN %#x with PCP %d: tag %#04x, want %#04x", c.vlan, c.pcp, tci, c.want)
			}
		}
	}
}
