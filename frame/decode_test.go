package frame

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"pgregory.net/rapid"
)

// Offsets of fields in an untagged frame.
const (
	atType  = 12
	atIP    = 14
	atUDP4  = atIP + lenIPv4
	atBTH4  = atUDP4 + lenUDP
	atUDP6  = atIP + lenIPv6
	atBTH6  = atUDP6 + lenUDP
	offLen  = 2 // IPv4 total length
	offFrag = 6
	offUDP  = 4 // UDP length
	offSum  = 6 // UDP checksum
)

// slowICRC implements IBA 7.8.1 and A17.3.3 in the most direct way.
func slowICRC(ip []byte) uint32 {
	b := bytes.Clone(ip)
	l4 := 20
	if b[0]>>4 == 4 {
		b[1], b[8], b[10], b[11] = 0xff, 0xff, 0xff, 0xff
	} else {
		l4 = 40
		b[0], b[1], b[2], b[3], b[7] = b[0]|0x0f, 0xff, 0xff, 0xff, 0xff
	}
	b[l4+6], b[l4+7], b[l4+12] = 0xff, 0xff, 0xff
	b = append(bytes.Repeat([]byte{0xff}, 8), b...)
	crc := ^uint32(0)
	for _, x := range b {
		crc ^= uint32(x)
		for range 8 {
			crc = crc>>1 ^ 0xedb88320*(crc&1)
		}
	}
	return ^crc
}

// seal recomputes checksums and ICRC of a modified frame, so that a test reaches the check that it
// is about.
func seal(f []byte) []byte {
	ip := f[atIP:]
	if binary.BigEndian.Uint16(f[atType:]) == etherTypeVLAN {
		ip = ip[lenVLAN:]
	}
	if ip[0]>>4 == 4 {
		h := ip[:20]
		h[10], h[11] = 0, 0
		binary.BigEndian.PutUint16(h[10:], ^sumIPv4(h))
	}
	end := len(ip) - bth.ICRCLen
	binary.LittleEndian.PutUint32(ip[end:], slowICRC(ip[:end]))
	return f
}

// withEachCRC runs a test with each implementation of the CRC that the processor supports. The test
// must not run in parallel with others.
func withEachCRC(t *testing.T, test func(t *testing.T)) {
	t.Run("hash/crc32", func(t *testing.T) {
		defer func(f *foldTable) { foldConstants = f }(foldConstants)
		foldConstants = nil
		test(t)
	})
	t.Run("AVX-512", func(t *testing.T) {
		needAVX512(t)
		test(t)
	})
}

// ICRC equals slowICRC for every length and both IP versions.
func TestICRCEveryLength(t *testing.T) {
	withEachCRC(t, func(t *testing.T) {
		for _, a := range []*Address{&addr4, &addr6} {
			for n := 0; n <= 4200; n++ {
				if n > 1400 && n < 4000 {
					n += 61
				}
				f, netLen := writeOnly(a, n)
				ip := f[atIP:]
				end := len(ip) - bth.ICRCLen
				if got, want := binary.LittleEndian.Uint32(ip[end:]), slowICRC(ip[:end]); got != want {
					t.Fatalf("%d header bytes, %d payload bytes: ICRC = %#08x, want %#08x", netLen,
						n, got, want)
				}
			}
		}
	})
}

// An Encoder's scratch space keeps nothing of a longer packet.
func TestICRCScratchReuse(t *testing.T) {
	withEachCRC(t, func(t *testing.T) {
		var e Encoder
		rapid.Check(t, func(t *rapid.T) {
			a := rapid.SampledFrom([]*Address{&addr4, &addr6}).Draw(t, "family")
			n := rapid.OneOf(rapid.IntRange(0, 100), rapid.IntRange(300, 700),
				rapid.IntRange(900, 1300), rapid.IntRange(0, 4096)).Draw(t, "n")
			f, netLen := writeOnly(a, n)
			e.Finish(f, netLen)
			end := len(f) - bth.ICRCLen
			if got, want := binary.LittleEndian.Uint32(f[end:]), slowICRC(f[atIP:end]); got != want {
				t.Fatalf("ICRC = %#08x, want %#08x", got, want)
			}
		})
	})
}

// The function ICRC gives the same result and refuses packets that are too short.
func TestICRCFunction(t *testing.T) {
	f, _ := writeOnly(&addr6, 9)
	end := len(f) - bth.ICRCLen
	crc, ok := ICRC(f[atIP:end])
	if !ok || crc != slowICRC(f[atIP:end]) {
		t.Errorf("ICRC() = %#08x, %v", crc, ok)
	}
	for n := range atBTH6 + bth.HeaderLen - atIP {
		if _, ok := ICRC(f[atIP : atIP+n]); ok {
			t.Errorf("ICRC() accepted %d bytes", n)
		}
	}
	if _, ok := ICRC(nil); ok {
		t.Error("ICRC() accepted an empty packet")
	}
}

func TestDecodeRefuses(t *testing.T) {
	put16 := binary.BigEndian.PutUint16
	for _, c := range []struct {
		name   string
		base   *Address
		change func(f []byte) []byte
		want   Reason
	}{
		{"unchanged, IPv4", &addr4, func(f []byte) []byte { return f }, ReasonOK},
		{"unchanged, IPv6", &addr6, func(f []byte) []byte { return f }, ReasonOK},
		{"Ethernet padding", &addr4,
			func(f []byte) []byte { return append(f, make([]byte, 18)...) }, ReasonOK},
		{"Ethernet padding, IPv6", &addr6, func(f []byte) []byte { return append(f, 1, 2, 3) },
			ReasonOK},
		{"empty", &addr4, func(f []byte) []byte { return nil }, ReasonShort},
		{"ends in the IP header", &addr4, func(f []byte) []byte { return f[:atIP+19] },
			ReasonShort},
		{"ends before its IP length", &addr4, func(f []byte) []byte { return f[:len(f)-1] },
			ReasonShort},
		{"ends before its IPv6 length", &addr6, func(f []byte) []byte { return f[:len(f)-1] },
			ReasonShort},
		{"ARP", &addr4, func(f []byte) []byte { put16(f[atType:], 0x0806); return f[:42] },
			ReasonNotRoCE},
		{"RoCEv1", &addr6, func(f []byte) []byte { put16(f[atType:], 0x8915); return f },
			ReasonNotRoCE},
		{"TCP", &addr4, func(f []byte) []byte { f[atIP+9] = 6; return seal(f) }, ReasonNotRoCE},
		{"TCP over IPv6", &addr6, func(f []byte) []byte { f[atIP+6] = 6; return f }, ReasonNotRoCE},
		{"another UDP port", &addr4,
			func(f []byte) []byte { put16(f[atUDP4+2:], 4792); return seal(f) }, ReasonNotRoCE},
		{"another UDP port, IPv6", &addr6,
			func(f []byte) []byte { put16(f[atUDP6+2:], 53); return seal(f) }, ReasonNotRoCE},
		{"IP version 5", &addr4, func(f []byte) []byte { f[atIP] = 0x55; return f }, ReasonNotRoCE},
		{"IPv4 with the EtherType of IPv6", &addr4,
			func(f []byte) []byte { put16(f[atType:], etherTypeIPv6); return f }, ReasonNotRoCE},
		{"IPv4 header of 4 words", &addr4, func(f []byte) []byte { f[atIP] = 0x44; return f },
			ReasonNotRoCE},
		{"IPv4 options", &addr4, func(f []byte) []byte { f[atIP] = 0x46; return f },
			ReasonIPOptions},
		{"IPv6 hop-by-hop options", &addr6, func(f []byte) []byte { f[atIP+6] = 0; return f },
			ReasonIPOptions},
		{"IPv6 routing header", &addr6, func(f []byte) []byte { f[atIP+6] = 43; return f },
			ReasonIPOptions},
		{"IPv6 destination options", &addr6, func(f []byte) []byte { f[atIP+6] = 60; return f },
			ReasonIPOptions},
		{"first fragment", &addr4,
			func(f []byte) []byte { put16(f[atIP+offFrag:], 0x2000); return seal(f) },
			ReasonFragment},
		{"last fragment", &addr4,
			func(f []byte) []byte { put16(f[atIP+offFrag:], 0x0001); return seal(f) },
			ReasonFragment},
		{"IPv6 fragment", &addr6, func(f []byte) []byte { f[atIP+6] = 44; return f },
			ReasonFragment},
		{"DF clear", &addr4, func(f []byte) []byte { put16(f[atIP+offFrag:], 0); return seal(f) },
			ReasonOK},
		{"IP checksum", &addr4, func(f []byte) []byte { f[atIP+10] ^= 1; return f },
			ReasonIPChecksum},
		{"hop limit changed without the checksum", &addr4,
			func(f []byte) []byte { f[atIP+8]--; return f }, ReasonIPChecksum},
		{"hop limit and TOS changed in transit", &addr4, func(f []byte) []byte {
			crc := bytes.Clone(f[len(f)-4:])
			f[atIP+8], f[atIP+1] = 1, 3
			copy(seal(f)[len(f)-4:], crc)
			return f
		}, ReasonOK},
		{"hop limit, class and label changed in transit, IPv6", &addr6, func(f []byte) []byte {
			f[atIP], f[atIP+1], f[atIP+3], f[atIP+7] = 0x6a, 0xbc, 0, 1
			return f
		}, ReasonOK},
		{"FECN set in transit", &addr4, func(f []byte) []byte { f[atBTH4+4] |= 0x80; return f },
			ReasonOK},
		{"IP length too short for a BTH", &addr4,
			func(f []byte) []byte { put16(f[atIP+offLen:], 43); return seal(f) }, ReasonTruncated},
		{"IP length 0", &addr4, func(f []byte) []byte { put16(f[atIP+offLen:], 0); return seal(f) },
			ReasonTruncated},
		{"IPv6 length 0", &addr6, func(f []byte) []byte { put16(f[atIP+4:], 0); return f },
			ReasonTruncated},
		{"UDP length too long", &addr4,
			func(f []byte) []byte { put16(f[atUDP4+offUDP:], 0xffff); return seal(f) },
			ReasonUDPLength},
		{"UDP length too short", &addr4,
			func(f []byte) []byte { put16(f[atUDP4+offUDP:], 20); return seal(f) },
			ReasonUDPLength},
		{"UDP length 0", &addr6,
			func(f []byte) []byte { put16(f[atUDP6+offUDP:], 0); return seal(f) }, ReasonUDPLength},
		{"UDP checksum wrong", &addr4,
			func(f []byte) []byte { put16(f[atUDP4+offSum:], 0x1234); return f },
			ReasonUDPChecksum},
		{"UDP checksum wrong, IPv6", &addr6,
			func(f []byte) []byte { put16(f[atUDP6+offSum:], 0x1234); return f },
			ReasonUDPChecksum},
		{"IPv4 source in an IPv6 header", &addr6,
			func(f []byte) []byte { copy(f[atIP+8:], addr4.Src[:]); return seal(f) },
			ReasonAddress},
		{"IPv4 destination in an IPv6 header", &addr6,
			func(f []byte) []byte { copy(f[atIP+24:], addr4.Dst[:]); return seal(f) },
			ReasonAddress},
		{"payload bit flipped", &addr4, func(f []byte) []byte { f[len(f)-6] ^= 0x10; return f },
			ReasonICRC},
		{"ICRC bit flipped", &addr4, func(f []byte) []byte { f[len(f)-1] ^= 0x01; return f },
			ReasonICRC},
		{"PSN bit flipped", &addr6, func(f []byte) []byte { f[atBTH6+11] ^= 0x01; return f },
			ReasonICRC},
		{"IP identification changed", &addr4, func(f []byte) []byte {
			crc := bytes.Clone(f[len(f)-4:])
			f[atIP+5]++
			copy(seal(f)[len(f)-4:], crc)
			return f
		}, ReasonICRC},
		{"opcode corrupted to an unknown one", &addr4,
			func(f []byte) []byte { f[atBTH4] = 0xff; return f }, ReasonICRC},
		{"transport version 1", &addr4, func(f []byte) []byte { f[atBTH4+1] |= 1; return seal(f) },
			ReasonVersion},
		{"reserved opcode", &addr4, func(f []byte) []byte { f[atBTH4] = 0x1f; return seal(f) },
			ReasonOpcode},
		{"opcode whose headers exceed the packet", &addr4,
			func(f []byte) []byte { f[atBTH4] = byte(bth.RCCmpSwap); return seal(f) }, ReasonTruncated},
		{"pad count beyond the payload", &addr4,
			func(f []byte) []byte { f[atBTH4+1] |= 0x30; return seal(f) }, ReasonPad},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, _ := writeOnly(c.base, 0)
			f = c.change(f)
			d, p := new(Decoder), new(bth.Packet)
			if got := d.Decode(f, p); got != c.want {
				t.Fatalf("Decode() = %v, want %v", got, c.want)
			}
		})
	}
}

// Frames that crashed other RoCE implementations.
func TestFramesThatCrashedOthers(t *testing.T) {
	build := func(o bth.Opcode, dest bth.QPN, pad uint8, transport int) []byte {
		f := make([]byte, bth.MaxNetHeader+transport+bth.ICRCLen)
		n := PutHeaders(f, &addr4)
		f = f[:n+transport+bth.ICRCLen]
		bth.PutBTH(f[n:], &bth.BTHFields{Opcode: o, DestQP: dest, PadCount: pad,
			PKey: bth.DefaultPKey})
		new(Encoder).Finish(f, n)
		return f
	}
	// 48 bytes of IP packet: 20 + 8 + 12 + 4 of ICRC + 4.
	killer := build(0xff, bth.QPNMulticast, 0, bth.HeaderLen+4)
	if len(killer)-atIP != 48 {
		t.Fatalf("the packet has %d bytes", len(killer)-atIP)
	}
	for _, c := range []struct {
		name string
		f    []byte
		want Reason
	}{
		{"opcode 0xff to the multicast QPN in 48 bytes", killer, ReasonOpcode},
		{"ATOMIC WRITE of zero length", build(bth.RCAtomicWrite, 5, 0, bth.HeaderLen+bth.RETHLen),
			ReasonTruncated},
		{"ATOMIC WRITE without its RETH", build(bth.RCAtomicWrite, 5, 0, bth.HeaderLen),
			ReasonTruncated},
		{"pad of 3 in an ACK", build(bth.RCAck, 5, 3, bth.HeaderLen+bth.AETHLen), ReasonPad},
		{"pad of 3 in an empty SEND", build(bth.RCSendOnly, 5, 3, bth.HeaderLen), ReasonPad},
		{"UD without DETH to QP1", build(bth.UDSendOnly, bth.QPNGSI, 0, bth.HeaderLen),
			ReasonTruncated},
		{"CNP without its reserved bytes", build(bth.CNP, 5, 0, bth.HeaderLen), ReasonOK},
	} {
		d, p := new(Decoder), new(bth.Packet)
		if got := d.Decode(c.f, p); got != c.want {
			t.Errorf("%s: Decode() = %v, want %v", c.name, got, c.want)
		}
	}
}

func TestVLAN(t *testing.T) {
	for _, base := range []Address{addr4, addr6} {
		base.VLAN = 5<<13 | 42 // priority 5, VLAN 42
		f, netLen := writeOnly(&base, 7)
		d, p := new(Decoder), new(bth.Packet)
		if r := d.Decode(f, p); r != ReasonOK || !p.HasVLAN || p.VLAN != base.VLAN ||
			len(p.Payload) != 7 || p.Src != base.Src {
			t.Fatalf("tagged frame with %d bytes of headers: Decode() = %v, VLAN %#x, HasVLAN %v",
				netLen, r, p.VLAN, p.HasVLAN)
		}
		plain, _ := writeOnly(&addr4, 0)
		if r := d.Decode(plain, p); r != ReasonOK || p.HasVLAN || p.VLAN != 0 {
			t.Fatalf("untagged frame after a tagged one: Decode() = %v, VLAN %#x", r, p.VLAN)
		}
		for _, inner := range []uint16{etherTypeVLAN, etherTypeQinQ} {
			twice := append(bytes.Clone(f[:16]), byte(inner>>8), byte(inner), 0, 1)
			twice = append(twice, f[16:]...)
			if r := d.Decode(twice, p); r != ReasonVLAN {
				t.Errorf("frame with two tags: Decode() = %v", r)
			}
		}
		if r := d.Decode(f[:17], p); r != ReasonShort {
			t.Errorf("frame that ends in the tag: Decode() = %v", r)
		}
	}
}

// RFC 768: a UDP checksum must be correct if it is not 0. The kernel may leave a partial checksum
// on virtual interfaces.
func TestUDPChecksums(t *testing.T) {
	for _, a := range []*Address{&addr4, &addr6} {
		for _, n := range []int{0, 1, 31, 64, 1024} {
			f, netLen := writeOnly(a, n)
			udp := f[netLen-lenUDP:]
			addrs := f[netLen-lenUDP-8 : netLen-lenUDP]
			if a == &addr6 {
				addrs = f[netLen-lenUDP-32 : netLen-lenUDP]
			}
			pseudo := slowSum(append(append(bytes.Clone(addrs), 0, protoUDP), byte(len(udp)>>8),
				byte(len(udp))))
			right := ^slowSum(append([]byte{byte(pseudo >> 8), byte(pseudo)}, udp...))
			for name, c := range map[string]struct {
				field uint16
				want  Reason
			}{
				"right": {right, ReasonOK}, "partial": {pseudo, ReasonOK},
				"wrong": {right ^ 0x0100, ReasonUDPChecksum},
			} {
				binary.BigEndian.PutUint16(udp[6:], c.field)
				if got := new(Decoder).Decode(f, new(bth.Packet)); got != c.want {
					t.Errorf("%s checksum %#04x, %d bytes: Decode() = %v, want %v", name, c.field,
						n, got, c.want)
				}
			}
		}
	}
}

// slowSum is the sum of RFC 1071, word by word.
func slowSum(b []byte) uint16 {
	var s uint32
	for i, x := range b {
		s += uint32(x) << (8 * (1 - i&1))
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

func TestSum16(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.OneOf(rapid.Byte(), rapid.Just(byte(0xff))), 0, 200).Draw(t, "b")
		if got, want := sum16(b), slowSum(b); got != want &&
			uint32(got)%0xffff != uint32(want)%0xffff {
			t.Fatalf("sum16() = %#04x, want %#04x", got, want)
		}
	})
}

// A frame truncated at any length is rejected without a panic.
func TestEveryTruncation(t *testing.T) {
	tagged := addr6
	tagged.VLAN = 42
	d, p := new(Decoder), new(bth.Packet)
	for _, a := range []*Address{&addr4, &addr6, &tagged} {
		f, _ := writeOnly(a, 5)
		for n := range len(f) {
			if r := d.Decode(f[:n:n], p); r == ReasonOK {
				t.Fatalf("Decode accepted %d of %d bytes", n, len(f))
			}
		}
	}
}

// A packet with a wrong ICRC is filled in as far as possible.
func TestBadICRCFillsPacket(t *testing.T) {
	f, _ := writeOnly(&addr4, 64)
	f[len(f)-1] ^= 0xff
	var p bth.Packet
	if r := new(Decoder).Decode(f, &p); r != ReasonICRC {
		t.Fatal(r)
	}
	if p.Info.Opcode != bth.RCWriteOnly || p.RETH().DMALen() != 64 || p.Src != addr4.Src ||
		len(p.Payload) != 64 {
		t.Errorf("opcode %v, DMA length %d, source %v", p.Info.Opcode, p.RETH().DMALen(), p.Src)
	}
}

func TestReasonNames(t *testing.T) {
	seen := map[string]bool{}
	for r := range NumReasons {
		if s := r.String(); s == "" || seen[s] {
			t.Errorf("Reason(%d).String() = %q", uint8(r), s)
		} else {
			seen[s] = true
		}
	}
	if s := NumReasons.String(); s != "reason 15" {
		t.Errorf("String() of an unknown reason = %q", s)
	}
}
