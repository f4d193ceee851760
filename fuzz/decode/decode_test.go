package decode

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/google/gopacket"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/bth/bthtest"
	"github.com/gorxe/gorxe/bth/layers"
	"github.com/gorxe/gorxe/frame"
)

// seeds returns the shortest captured frame of each kind (opcode, IP version, pad count), frames
// that are not RoCE, and known killers. More or longer seeds would only slow the fuzzer down.
func seeds(f *testing.F) [][]byte {
	type kind struct {
		opcode bth.Opcode
		ipv4   bool
		pad    int
		reason frame.Reason
	}
	shortest := map[kind][]byte{}
	d, p := new(frame.Decoder), new(bth.Packet)
	for _, name := range bthtest.Names(f) {
		for _, b := range bthtest.Frames(f, name) {
			k := kind{reason: d.Decode(b, p)}
			if k.reason == frame.ReasonOK {
				k.opcode, k.ipv4, k.pad = p.BTH.Opcode(), p.Src.IsIPv4(), p.BTH.PadCount()
			}
			if old, ok := shortest[k]; !ok || len(b) < len(old) {
				shortest[k] = b
			}
		}
	}
	return append(slices.Collect(maps.Values(shortest)), killers()...)
}

// killers are frames similar to those that crashed other RoCE stacks.
func killers() [][]byte {
	var all [][]byte
	for _, k := range []struct {
		opcode bth.Opcode
		dest   bth.QPN
		pad    uint8
		n      int
	}{
		{0xff, bth.QPNMulticast, 0, 16},     // unknown opcode to the multicast QPN, 48 bytes of IP
		{bth.RCAtomicWrite, 2, 0, 28},       // no payload
		{bth.RCAck, 2, 3, 16},               // pad longer than the payload
		{bth.RCSendOnly, 2, 3, 12},          // the same
		{bth.UDSendOnly, bth.QPNGSI, 0, 12}, // no DETH
		{bth.CNP, 2, 0, 12},
	} {
		t := make([]byte, k.n)
		bth.PutBTH(t, &bth.BTHFields{Opcode: k.opcode, DestQP: k.dest, PadCount: k.pad,
			PKey: bth.DefaultPKey})
		all = append(all, wrap(t, false))
	}
	return all
}

// wrap puts correct headers and a correct ICRC around a transport packet.
func wrap(transport []byte, ipv6 bool) []byte {
	a := frame.Address{Src: bth.GIDFromIPv4([4]byte{10, 77, 0, 1}),
		Dst: bth.GIDFromIPv4([4]byte{10, 77, 0, 2}), HopLimit: 64}
	if ipv6 {
		a.Src, a.Dst = bth.GID{0: 0xfd, 15: 1}, bth.GID{0: 0xfd, 15: 2}
	}
	b := make([]byte, bth.MaxNetHeader+len(transport)+bth.ICRCLen)
	n := frame.PutHeaders(b, &a)
	b = b[:n+copy(b[n:], transport)+bth.ICRCLen]
	new(frame.Encoder).Finish(b, n)
	return b
}

// checkPacket checks what must hold for every accepted packet.
func checkPacket(t *testing.T, p *bth.Packet) {
	i := p.Info
	if !i.Known || i.Opcode != p.BTH.Opcode() || p.BTH.Version() != 0 {
		t.Fatalf("accepted %+v, version %d", i, p.BTH.Version())
	}
	if got := int(i.HeaderLen) + len(p.Payload) + p.BTH.PadCount(); got != len(p.BTH) {
		t.Fatalf("%v: headers, payload and pad are %d bytes of %d", i.Opcode, got, len(p.BTH))
	}
	if len(p.Payload) < int(i.MinPayload) {
		t.Fatalf("%v with %d bytes of payload", i.Opcode, len(p.Payload))
	}
	rebuilt := make([]byte, bth.HeaderLen)
	fields := p.BTH.Fields()
	bth.PutBTH(rebuilt, &fields)
	want := bytes.Clone(p.BTH[:bth.HeaderLen])
	want[4] &= 0xc0 // reserved bits
	want[8] &= 0x80
	if !bytes.Equal(rebuilt, want) {
		t.Fatalf("BTH % x written again as % x", want, rebuilt)
	}
	touch(p)
}

// touch calls every accessor. None may panic, whatever Parse returned.
func touch(p *bth.Packet) {
	_, _, _, _ = p.BTH.Fields(), p.BTH.Opcode().String(), p.BTH.PadCount(), p.Info.Name
	_, _, _ = p.RETH().VA(), p.RETH().RKey(), p.RETH().DMALen()
	_, _ = p.AETH().Syndrome().String(), p.AETH().MSN()
	_, _, _, _ = p.AtomicETH().VA(), p.AtomicETH().RKey(), p.AtomicETH().SwapAdd(), p.AtomicETH().Compare()
	_, _, _ = p.AtomicAckETH().Original(), p.ImmDt().Imm(), p.IETH().RKey()
	_, _, _, _ = p.DETH().QKey(), p.DETH().SrcQP(), p.FETH().Placement(), p.FETH().Selectivity()
}

// FuzzFrameDecode checks that arbitrary frames are decoded or rejected with a reason, stay
// unchanged, and have a correct ICRC if accepted.
func FuzzFrameDecode(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		d, p := new(frame.Decoder), new(bth.Packet)
		r := d.Decode(b, p)
		if !bytes.Equal(b, before) {
			t.Fatal("Decode changed the frame")
		}
		if again := d.Decode(b, p); again != r { // it knows the flow now
			t.Fatalf("%v, then %v for the same frame", r, again)
		}
		switch r {
		case frame.ReasonOK:
			checkPacket(t, p)
			checkICRC(t, b, p)
		case frame.ReasonICRC:
			touch(p)
		}
		if r >= frame.NumReasons {
			t.Fatalf("reason %d", r)
		}
	})
}

func checkICRC(t *testing.T, b []byte, p *bth.Packet) {
	start := 14
	if p.HasVLAN {
		start += 4
	}
	ip := b[start:]
	end := len(p.NetHeader) + 8 + len(p.BTH)
	crc, ok := frame.ICRC(ip[:end])
	if !ok || crc != binary.LittleEndian.Uint32(ip[end:]) {
		t.Fatalf("accepted with ICRC % x, want %#08x", ip[end:end+4], crc)
	}
}

// FuzzBTHParse checks that arbitrary transport packets are parsed or rejected, with the same
// verdict inside a correct frame, so that the fuzzer need not guess checksums.
func FuzzBTHParse(f *testing.F) {
	d, p := new(frame.Decoder), new(bth.Packet)
	for _, s := range seeds(f) {
		if r := d.Decode(s, p); r == frame.ReasonOK {
			f.Add([]byte(p.BTH), p.Src.IsIPv4())
		}
	}
	for _, k := range killers() {
		f.Add(k[42:len(k)-bth.ICRCLen], false)
	}
	f.Fuzz(func(t *testing.T, b []byte, ipv6 bool) {
		if len(b) > 8192 {
			return
		}
		err := p.Parse(b)
		touch(p)
		if err == nil {
			checkPacket(t, p)
		}
		want := frame.ReasonOK
		for sentinel, r := range map[error]frame.Reason{
			bth.ErrTruncated: frame.ReasonTruncated, bth.ErrOpcode: frame.ReasonOpcode,
			bth.ErrVersion: frame.ReasonVersion, bth.ErrPad: frame.ReasonPad,
		} {
			if errors.Is(err, sentinel) {
				want = r
			}
		}
		if err != nil && want == frame.ReasonOK {
			t.Fatalf("unknown error: %v", err)
		}
		if len(b) < bth.HeaderLen {
			return // a frame cannot be finished without a BTH
		}
		if r := d.Decode(wrap(b, ipv6), p); r != want {
			t.Fatalf("Parse: %v; in a correct frame: %v", err, r)
		}
	})
}

// FuzzLayers checks that the gopacket layers accept what bth.Packet.Parse accepts, with the same
// contents, and never panic (gopacket's recovery is off; the layers below UDP are gopacket's own).
func FuzzLayers(f *testing.F) {
	d, p := new(frame.Decoder), new(bth.Packet)
	for _, s := range seeds(f) {
		if r := d.Decode(s, p); r == frame.ReasonOK {
			f.Add(append(bytes.Clone(p.BTH), 1, 2, 3, 4))
		}
	}
	for _, k := range killers() {
		f.Add(k[42:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		g := gopacket.NewPacket(b, layers.LayerTypeBTH,
			gopacket.DecodeOptions{SkipDecodeRecovery: true, NoCopy: true})
		accepted := len(b) >= bth.ICRCLen && p.Parse(b[:len(b)-bth.ICRCLen]) == nil
		if accepted != (g.ErrorLayer() == nil) {
			t.Fatalf("Parse accepts: %v, but gopacket has %v", accepted, g)
		}
		if !accepted {
			return
		}
		l := g.Layer(layers.LayerTypeBTH).(*layers.BTH)
		if l.BTHFields != p.BTH.Fields() || !bytes.Equal(l.Payload, p.Payload) {
			t.Fatalf("accepted %v, but gopacket has %v", p.BTH.Fields(), g)
		}
	})
}
