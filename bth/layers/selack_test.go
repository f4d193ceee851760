package layers

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/google/gopacket"

	"github.com/gorxe/gorxe/bth"
)

// An ACKNOWLEDGE with a selective acknowledgment has a SelACK layer after the AETH.
func TestSelACK(t *testing.T) {
	const at = bth.HeaderLen + bth.AETHLen
	b := transport(bth.RCAck, 20, 0)
	n := bth.PutSelACK(b[at:], 0xfffffe, 7, []uint32{0xd0000000, 1})
	p := gopacket.NewPacket(b, LayerTypeBTH, gopacket.Default)
	if e := p.ErrorLayer(); e != nil {
		t.Fatal(e.Error())
	}
	s, ok := p.Layer(LayerTypeSelACK).(*SelACK)
	want := []PSNRange{{0xfffffe, 0xffffff}, {1, 1}, {0x3d, 0x3d}}
	if !ok || s.Duplicates != 7 || !slices.Equal(s.Held, want) || len(s.Contents) != n {
		t.Fatalf("SelACK %+v, want ranges %v", s, want)
	}
	if l := p.Layer(LayerTypeAETH); l == nil {
		t.Error("no AETH layer")
	}
	payload := p.Layer(gopacket.LayerTypePayload)
	if payload == nil || !bytes.Equal(payload.LayerContents(), b[at+n:at+20]) {
		t.Errorf("payload %v, want the 4 bytes after the bitmap", payload)
	}

	// Other payloads stay payloads.
	b[at] = bth.SelACKVersion + 1
	p = gopacket.NewPacket(b, LayerTypeBTH, gopacket.Default)
	if l := p.Layer(gopacket.LayerTypePayload); l == nil || len(l.LayerContents()) != 20 ||
		p.Layer(LayerTypeSelACK) != nil {
		t.Errorf("version 2: %v", p)
	}
	b[at] = bth.SelACKVersion
	bth.PutBTH(b, &bth.BTHFields{Opcode: bth.RCReadResponseOnly})
	if p = gopacket.NewPacket(b, LayerTypeBTH, gopacket.Default); p.Layer(LayerTypeSelACK) != nil {
		t.Errorf("a READ response has a SelACK: %v", p)
	}

	// On its own.
	p = gopacket.NewPacket(b[at:at+n], LayerTypeSelACK, gopacket.Default)
	if s, ok := p.Layer(LayerTypeSelACK).(*SelACK); !ok || !slices.Equal(s.Held, want) {
		t.Errorf("standalone SelACK: %v", p)
	}
	p = gopacket.NewPacket(b[at:at+n-1], LayerTypeSelACK, gopacket.Default)
	if e := p.ErrorLayer(); e == nil || !errors.Is(e.Error(), bth.ErrTruncated) {
		t.Errorf("SelACK without its last byte: %v", p)
	}
}
