package frame

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"pgregory.net/rapid"
)

// Decoding an encoded frame gives the same addresses, opcode and payload.
func TestRoundTrip(t *testing.T) {
	var e Encoder
	var d Decoder
	rapid.Check(t, func(t *rapid.T) {
		a := drawAddress(t)
		o := rapid.SampledFrom([]bth.Opcode{
			bth.RCSendOnly, bth.RCWriteFirst, bth.RCWriteOnlyImm, bth.RCAck, bth.RCAtomicAck,
			bth.RCCmpSwap,
			bth.RCFlush, bth.UCWriteLastImm, bth.UDSendOnlyImm, bth.CNP,
		}).Draw(t, "opcode")
		payload := rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "payload")
		pad := -len(payload) & 3
		ext := rapid.SliceOfN(rapid.Byte(), bth.MaxExtLen, bth.MaxExtLen).Draw(t, "extensions")

		h := int(o.Info().HeaderLen)
		f := make([]byte, bth.MaxNetHeader+h+len(payload)+pad+bth.ICRCLen)
		netLen := PutHeaders(f, &a)
		b := f[netLen:]
		copy(b[bth.HeaderLen:], ext)
		bth.PutBTH(b, &bth.BTHFields{Opcode: o, PadCount: uint8(pad), DestQP: 9})
		clear(b[h+copy(b[h:], payload):])
		f = f[:netLen+h+len(payload)+pad+bth.ICRCLen]
		e.Finish(f, netLen)

		var p bth.Packet
		if r := d.Decode(f, &p); r != ReasonOK {
			t.Fatal(r)
		}
		if p.Src != a.Src || p.Dst != a.Dst || p.SrcPort != a.SrcPort ||
			p.TrafficClass != a.TrafficClass ||
			p.HopLimit != a.HopLimit || p.VLAN != a.VLAN || p.SrcMAC != a.SrcMAC ||
			bth.MAC(f[:6]) != a.DstMAC {
			t.Fatalf("decoded %+v, encoded %+v", p, a)
		}
		if p.BTH.Opcode() != o || !bytes.Equal(p.Payload, payload) ||
			!bytes.Equal(p.BTH[bth.HeaderLen:h], ext[:h-bth.HeaderLen]) {
			t.Fatalf("%v: payload %x, want %x", p.BTH.Opcode(), p.Payload, payload)
		}
		want := bytes.Clone(f)
		f[len(f)-1] ^= 1 // of the ICRC
		if e.Reseal(f, netLen); !bytes.Equal(f, want) {
			t.Fatalf("Reseal() makes %x, want %x", f, want)
		}
	})
}

func drawAddress(t *rapid.T) Address {
	gid := func(name string) (g bth.GID) {
		copy(g[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, name))
		g[0] = 0xfd
		return g
	}
	a := Address{
		SrcMAC: bth.MAC{2, 1}, DstMAC: bth.MAC{2, 2}, Src: gid("src"), Dst: gid("dst"),
		VLAN:         rapid.OneOf(rapid.Just(uint16(0)), rapid.Uint16()).Draw(t, "vlan"),
		SrcPort:      rapid.Uint16().Draw(t, "port"),
		TrafficClass: rapid.Uint8().Draw(t, "class"), HopLimit: rapid.Uint8().Draw(t, "hops"),
		FlowLabel: rapid.Uint32().Draw(t, "label"),
	}
	if rapid.Bool().Draw(t, "IPv4") {
		a.Src, a.Dst = bth.GIDFromIPv4([4]byte(a.Src[12:])), bth.GIDFromIPv4([4]byte(a.Dst[12:]))
	}
	return a
}

// The headers of an IPv4 frame, byte by byte (RFC 791, RFC 768).
func TestHeadersIPv4(t *testing.T) {
	f, netLen := writeOnly(&addr4, 0)
	want := []byte{
		2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00,
		0x45, 0x68, 0, 60, 0, 0, 0x40, 0, 64, 17, 0x25, 0xad, 10, 77, 0, 1, 10, 77, 0, 2,
		0xc1, 0x23, 0x12, 0xb7, 0, 40, 0, 0,
	}
	if !bytes.Equal(f[:netLen], want) {
		t.Errorf("headers\n% x, want\n% x", f[:netLen], want)
	}
}

// The headers of a tagged IPv6 frame, byte by byte (IEEE 802.1Q, RFC 8200).
func TestHeadersIPv6(t *testing.T) {
	a := addr6
	a.VLAN = 0xa02a
	f, netLen := writeOnly(&a, 0)
	want := []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x81, 0, 0xa0, 0x2a, 0x86, 0xdd, 0x66, 0x8a,
		0xbc, 0xde, 0, 40, 17, 64}
	want = append(want, addr6.Src[:]...)
	want = append(want, addr6.Dst[:]...)
	want = append(want, 0xc1, 0x23, 0x12, 0xb7, 0, 40, 0, 0)
	if !bytes.Equal(f[:netLen], want) {
		t.Errorf("headers\n% x, want\n% x", f[:netLen], want)
	}
}

func TestPutHeadersOverwritesOldBytes(t *testing.T) {
	tagged := addr6
	tagged.VLAN = 1
	for _, a := range []*Address{&addr4, &addr6, &tagged} {
		clean, dirty := make([]byte, bth.MaxNetHeader), bytes.Repeat([]byte{0xee}, bth.MaxNetHeader)
		n := PutHeaders(clean, a)
		if m := PutHeaders(dirty, a); m != n || !bytes.Equal(clean[:n], dirty[:n]) {
			t.Errorf("headers of %d and %d bytes differ:\n% x\n% x", n, m, clean[:n], dirty[:n])
		}
	}
}

func TestPutHeadersMixedIPVersionsPanic(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("PutHeaders did not panic for GIDs of different IP versions")
		}
	}()
	PutHeaders(make([]byte, bth.MaxNetHeader), &Address{Src: addr4.Src, Dst: addr6.Dst})
}

// The IP identification is incremented per packet and wraps.
func TestIPIdentification(t *testing.T) {
	e := Encoder{ID: 0xfffe}
	f, netLen := writeOnly(&addr4, 0)
	for _, want := range []uint16{0xfffe, 0xffff, 0, 1} {
		PutHeaders(f, &addr4)
		e.Finish(f, netLen)
		if got := binary.BigEndian.Uint16(f[atIP+4:]); got != want {
			t.Errorf("ID %#x, want %#x", got, want)
		}
		if r := new(Decoder).Decode(f, new(bth.Packet)); r != ReasonOK {
			t.Error(r)
		}
	}
}

// The checksum is correct for every sum of the template, including all carries.
func TestIPChecksumOfEverySum(t *testing.T) {
	a := addr4
	f, netLen := writeOnly(&a, 0)
	for i := range 1 << 16 {
		a.Src[14], a.Src[15] = byte(i>>8), byte(i)
		PutHeaders(f, &a)
		(&Encoder{ID: 0xffff}).finishHeaders(f, netLen)
		if sum := sumIPv4(f[atIP:]); sum != 0xffff {
			t.Fatalf("%v: sum of the header = %#x, want 0xffff", a.Src, sum)
		}
	}
}

// A buffer of a longer frame can be reused for a shorter one after the template is written again.
func TestFinishIgnoresOldLengths(t *testing.T) {
	f, netLen := writeOnly(&addr4, 100)
	new(Encoder).Finish(f, netLen)
	f = f[:len(f)-40]
	PutHeaders(f, &addr4)
	new(Encoder).Finish(f, netLen)
	var p bth.Packet
	if r := new(Decoder).Decode(f, &p); r != ReasonOK || len(p.Payload) != 60 {
		t.Errorf("Decode() = %v, payload of %d bytes", r, len(p.Payload))
	}
}

func TestSourcePort(t *testing.T) {
	seen := map[uint16]bool{}
	for qp := range bth.QPN(4096) {
		port := SourcePort(0x11+qp, 0x2000+qp)
		if port < 0xc000 {
			t.Fatalf("SourcePort() = %#x, which is outside the dynamic port range", port)
		}
		if port != SourcePort(0x11+qp, 0x2000+qp) {
			t.Fatal("SourcePort differs between calls")
		}
		seen[port] = true
	}
	// 4096 balls in 16384 bins hit about 3620 of them.
	if len(seen) < 3000 {
		t.Errorf("4096 QPs share %d ports", len(seen))
	}
}

func TestNoAllocations(t *testing.T) {
	good, netLen := writeOnly(&addr4, 64)
	long, longNet := writeOnly(&addr6, 4096)
	bad := bytes.Clone(good)
	bad[len(bad)-1] ^= 1
	summed := bytes.Clone(long)
	summed[atUDP6+offSum] = 1
	d, e, p, a := new(Decoder), new(Encoder), new(bth.Packet), addr4
	n := testing.AllocsPerRun(100, func() {
		for _, f := range [][]byte{good, long, bad, summed, good[:20], nil} {
			d.Decode(f, p)
		}
		PutHeaders(good, &a)
		e.Finish(good, netLen)
		e.Finish(long, longNet)
	})
	if r := d.Decode(good, p); r != ReasonOK {
		t.Errorf("the measured frame is not valid: %v", r)
	}
	if n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func TestMACString(t *testing.T) {
	if s := (bth.MAC{2, 0, 0, 0xab, 0, 1}).String(); s != "02:00:00:ab:00:01" {
		t.Error(s)
	}
}

// FinishPart makes the packets that FinishWith makes with the identifications of a run, but for the
// headers.
func TestFinishPart(t *testing.T) {
	for _, a := range []*Address{&addr4, &addr6} {
		for _, n := range []int{64, 1024} {
			payload := make([]byte, n)
			for i := range payload {
				payload[i] = byte(i * 7)
			}
			template, netLen := writeOnly(a, n)
			h := bytes.Clone(template)[:netLen+bth.HeaderLen+bth.RETHLen]
			e := &Encoder{SourcePort: bth.Port}
			e.FinishHeaders(h, netLen, len(template))
			for i := range 3 {
				want := bytes.Clone(template)
				putSourcePort(want, netLen, bth.Port)
				(&Encoder{ID: uint16(i)}).FinishWith(want, netLen, len(h), payload)
				got := make([]byte, len(want))
				copy(got, h)
				e.FinishPart(got, netLen, len(h), payload, i)
				if !bytes.Equal(got[netLen:], want[netLen:]) {
					t.Errorf("%v, %d bytes, packet %d:\n% x, want\n% x", a.Src, n, i, got[netLen:],
						want[netLen:])
				}
			}
		}
	}
}
