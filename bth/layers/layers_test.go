package layers

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/bth/bthtest"
	"github.com/gorxe/gorxe/frame"
)

// Every captured RoCE frame decodes to the layers of its opcode, with the field values that
// frame.Decoder finds.
func TestCaptures(t *testing.T) {
	var d frame.Decoder
	count := 0
	for _, name := range bthtest.Names(t) {
		for i, f := range bthtest.Frames(t, name) {
			var want bth.Packet
			if d.Decode(f, &want) != frame.ReasonOK {
				continue
			}
			count++
			p := gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.Default)
			if e := p.ErrorLayer(); e != nil {
				t.Fatalf("%s, frame %d: %v", name, i+1, e.Error())
			}
			compare(t, p, &want)
			if t.Failed() {
				t.Fatalf("%s, frame %d: %v", name, i+1, p)
			}
		}
	}
	if count != 1359 {
		t.Errorf("%d RoCE frames, want 1359", count)
	}
}

func compare(t *testing.T, p gopacket.Packet, want *bth.Packet) {
	l := p.Layer(LayerTypeBTH).(*BTH)
	if l.BTHFields != want.BTH.Fields() || l.Version != 0 ||
		!bytes.Equal(l.Contents, want.BTH[:bth.HeaderLen]) {
		t.Errorf("BTH %+v", l)
	}
	if !bytes.Equal(l.Payload, want.Payload) || len(l.Pad) != want.BTH.PadCount() {
		t.Errorf("payload of %d bytes, pad %d", len(l.Payload), len(l.Pad))
	}
	net := p.NetworkLayer()
	if crc, ok := frame.ICRC(append(bytes.Clone(net.LayerContents()),
		net.LayerPayload()[:8+len(want.BTH)]...)); !ok || crc != l.ICRC {
		t.Errorf("ICRC %#08x, want %#08x", l.ICRC, crc)
	}
	var got []string
	for _, x := range p.Layers() {
		switch x := x.(type) {
		case *BTH, *layers.Ethernet, *layers.IPv4, *layers.IPv6, *layers.UDP:
		case *gopacket.Payload:
			if !bytes.Equal(*x, want.Payload) {
				t.Errorf("payload layer %x", *x)
			}
		default:
			got = append(got, x.LayerType().String())
			compareExtension(t, x, want)
		}
	}
	if s := strings.Join(got, " "); s != extensionNames(want.Info) {
		t.Errorf("%v: layers %q, want %q", l.Opcode, s, extensionNames(want.Info))
	}
}

func extensionNames(i *bth.OpcodeInfo) string {
	var names []string
	for _, h := range []struct {
		offset uint8
		name   string
	}{
		{i.FETH, "FETH"}, {i.DETH, "DETH"}, {i.RETH, "RETH"}, {i.AtomicETH, "AtomicETH"},
		{i.AETH, "AETH"},
		{i.AtomicAckETH, "AtomicAckETH"}, {i.ImmDt, "ImmDt"}, {i.IETH, "IETH"},
	} {
		if h.offset != 0 {
			names = append(names, h.name)
		}
	}
	return strings.Join(names, " ")
}

func compareExtension(t *testing.T, l gopacket.Layer, p *bth.Packet) {
	ok := false
	switch l := l.(type) {
	case *RETH:
		ok = l.VA == p.RETH().VA() && l.RKey == p.RETH().RKey() && l.DMALen == p.RETH().DMALen()
	case *AETH:
		ok = l.Syndrome == p.AETH().Syndrome() && l.MSN == p.AETH().MSN()
	case *AtomicETH:
		h := p.AtomicETH()
		ok = l.VA == h.VA() && l.RKey == h.RKey() && l.SwapAdd == h.SwapAdd() &&
			l.Compare == h.Compare()
	case *AtomicAckETH:
		ok = l.Original == p.AtomicAckETH().Original()
	case *ImmDt:
		ok = l.Imm == p.ImmDt().Imm()
	case *IETH:
		ok = l.RKey == p.IETH().RKey()
	case *DETH:
		ok = l.QKey == p.DETH().QKey() && l.SrcQP == p.DETH().SrcQP()
	case *FETH:
		ok = l.Placement == p.FETH().Placement() && l.Selectivity == p.FETH().Selectivity()
	}
	if !ok {
		t.Errorf("%v: %+v", l.LayerType(), l)
	}
}

// transport returns a transport packet of an opcode with n bytes after its headers.
func transport(o bth.Opcode, n, pad int) []byte {
	b := make([]byte, int(o.Info().HeaderLen)+n+bth.ICRCLen)
	for i := range b {
		b[i] = byte(i)
	}
	bth.PutBTH(b, &bth.BTHFields{Opcode: o, PadCount: uint8(pad)})
	return b
}

// The captures contain no FLUSH and no SEND with invalidate.
func TestRareHeaders(t *testing.T) {
	for _, o := range []bth.Opcode{bth.RCFlush, bth.RCSendOnlyInv, bth.RCWriteLastImm, bth.CNP,
		bth.RCAtomicWrite} {
		b := transport(o, 16, 0)
		var want bth.Packet
		if err := want.Parse(b[:len(b)-bth.ICRCLen]); err != nil {
			t.Fatal(err)
		}
		var got []string
		p := gopacket.NewPacket(b, LayerTypeBTH, gopacket.Default)
		for _, l := range p.Layers() {
			if t := l.LayerType(); t != LayerTypeBTH && t != gopacket.LayerTypePayload {
				got = append(got, t.String())
			}
		}
		for _, l := range p.Layers()[1 : len(got)+1] {
			compareExtension(t, l, &want)
		}
		if s := strings.Join(got, " "); s != extensionNames(o.Info()) {
			t.Errorf("%v: layers %q, want %q", o, s, extensionNames(o.Info()))
		}
	}
}

func TestRefused(t *testing.T) {
	version := transport(bth.RCSendOnly, 0, 0)
	version[1] |= 1
	for _, c := range []struct {
		name    string
		b       []byte
		want    error
		showBTH bool
	}{
		{"empty", nil, bth.ErrTruncated, false},
		{"BTH without ICRC", transport(bth.RCSendOnly, 0, 0)[:12], bth.ErrTruncated, false},
		{"unknown opcode", transport(0xff, 4, 0), bth.ErrOpcode, true},
		{"WRITE without RETH", transport(bth.RCWriteOnly, 0, 0)[:20], bth.ErrTruncated, true},
		{"pad beyond payload", transport(bth.RCSendOnly, 2, 3), bth.ErrPad, true},
		{"version 1", version, bth.ErrVersion, true},
	} {
		p := gopacket.NewPacket(c.b, LayerTypeBTH, gopacket.Default)
		e := p.ErrorLayer()
		if e == nil || !errors.Is(e.Error(), c.want) {
			t.Errorf("%s: %v, want %v", c.name, e, c.want)
		}
		if shown := p.Layer(LayerTypeBTH) != nil; shown != c.showBTH {
			t.Errorf("%s: BTH shown: %v", c.name, shown)
		}
	}
	for _, lt := range []gopacket.LayerType{LayerTypeRETH, LayerTypeAETH, LayerTypeAtomicETH,
		LayerTypeDETH} {
		p := gopacket.NewPacket([]byte{1, 2, 3}, lt, gopacket.Default)
		if e := p.ErrorLayer(); e == nil || !errors.Is(e.Error(), bth.ErrTruncated) {
			t.Errorf("%v of 3 bytes: %v", lt, e)
		}
	}
	if l := gopacket.NewPacket(make([]byte, 20), LayerTypeRETH,
		gopacket.Default).Layer(LayerTypeRETH); l == nil || len(l.LayerPayload()) != 4 {
		t.Errorf("standalone RETH: %v", l)
	}
}

// A DecodingLayerParser reaches the payload with one BTH layer.
func TestDecodingLayerParser(t *testing.T) {
	var (
		eth     layers.Ethernet
		ip4     layers.IPv4
		udp     layers.UDP
		transp  BTH
		payload gopacket.Payload
		decoded []gopacket.LayerType
	)
	parser := gopacket.NewDecodingLayerParser(layers.LayerTypeEthernet, &eth, &ip4, &udp, &transp,
		&payload)
	f := bthtest.Frames(t, "rc_write_only.pcap")
	var want bth.Packet
	for _, b := range f {
		if new(frame.Decoder).Decode(b, &want) != frame.ReasonOK || !want.Info.HasPayload {
			continue
		}
		if err := parser.DecodeLayers(b, &decoded); err != nil {
			t.Fatal(err)
		}
		if transp.Packet.RETH().VA() != want.RETH().VA() || !bytes.Equal(payload, want.Payload) {
			t.Fatalf("VA %#x, payload %x", transp.Packet.RETH().VA(), payload)
		}
		return
	}
	t.Fatal("no WRITE in the capture")
}
