package bth

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

func TestSelACKBytes(t *testing.T) {
	b := make([]byte, MaxSelACKLen)
	n := PutSelACK(b, 0xfffff0, 0x0203, []uint32{0x80000001, 0xff000000})
	want := []byte{1, 2, 2, 3, 0xff, 0xff, 0xf0, 0, 0x80, 0, 0, 1, 0xff, 0, 0, 0}
	if !bytes.Equal(b[:n], want) {
		t.Fatalf("PutSelACK wrote % x, want % x", b[:n], want)
	}
	h, ok := ParseSelACK(b[:n])
	if !ok || h.Words() != 2 || h.Bits() != 64 || h.Duplicates() != 0x0203 ||
		h.Start() != 0xfffff0 || h.Word(0) != 0x80000001 || h.Word(1) != 0xff000000 {
		t.Fatalf("ParseSelACK(% x) = % x, %v", b[:n], h, ok)
	}
	if p := h.Start().Add(31); p != 0xf {
		t.Errorf("PSN of bit 31 = %v, want 0x00000f", p)
	}
	at := 0
	for _, want := range [][2]int{{0, 1}, {31, 40}, {64, 64}} {
		start, end := h.Run(at)
		if start != want[0] || end != want[1] {
			t.Errorf("Run(%d) = %d, %d, want %d, %d", at, start, end, want[0], want[1])
		}
		at = end
	}
	if start, end := h.Run(35); start != 35 || end != 40 {
		t.Errorf("Run(35) = %d, %d, want 35, 40", start, end)
	}
	if start, end := h.Run(1000); start != 64 || end != 64 {
		t.Errorf("Run(1000) = %d, %d, want 64, 64", start, end)
	}
}

func TestParseSelACKRefuses(t *testing.T) {
	whole := make([]byte, MaxSelACKLen+4)
	for _, c := range []struct {
		name string
		b    []byte
		ok   bool
	}{
		{"empty", nil, false},
		{"7 bytes", []byte{1, 0, 0, 0, 0, 0, 0}, false},
		{"no words", []byte{1, 0, 0, 0, 0, 0, 0, 0}, true},
		{"bytes after the bitmap", append([]byte{1, 0, 0, 0, 0, 0, 0, 0}, 1, 2, 3, 4), true},
		{"version 0", []byte{0, 0, 0, 0, 0, 0, 0, 0}, false},
		{"version 2", []byte{2, 0, 0, 0, 0, 0, 0, 0}, false},
		{"one word short of 4 bytes", []byte{1, 1, 0, 0, 0, 0, 0, 0}, false},
		{"one word short of 1 byte", []byte{1, 1, 0, 0, 0, 0, 0, 0, 1, 2, 3}, false},
		{"16 words", append([]byte{1, 16}, whole[2:MaxSelACKLen]...), true},
		{"17 words", append([]byte{1, 17}, whole[2:]...), false},
		{"255 words", append([]byte{1, 255}, make([]byte, 2000)...), false},
	} {
		h, ok := ParseSelACK(c.b)
		if ok != c.ok {
			t.Errorf("%s: ParseSelACK() ok = %v, want %v", c.name, ok, c.ok)
		}
		if ok && len(h) != SelACKHeaderLen+4*int(c.b[1]) {
			t.Errorf("%s: view of %d bytes, want %d", c.name, len(h), SelACKHeaderLen+4*int(c.b[1]))
		}
	}
}

// The runs of a bitmap are exactly its 1 bits.
func TestSelACKRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.OneOf(rapid.Uint32(), rapid.SampledFrom([]uint32{0, 1, 1 << 31, ^uint32(0)}))
		words := rapid.SliceOfN(word, 0, MaxSelACKWords).Draw(t, "words")
		start := PSN(rapid.Uint32Range(0, mask24).Draw(t, "start"))
		dups := rapid.Uint16().Draw(t, "duplicates")
		b := bytes.Repeat([]byte{0xee}, MaxSelACKLen+1)
		n := PutSelACK(b, start, dups, words)
		if b[n] != 0xee {
			t.Fatalf("PutSelACK wrote more than the %d bytes it returned", n)
		}
		h, ok := ParseSelACK(b[:n])
		if !ok || h.Start() != start || h.Duplicates() != dups || h.Words() != len(words) {
			t.Fatalf("ParseSelACK(% x) = % x, %v", b[:n], h, ok)
		}
		got := make([]uint32, len(words))
		for i, end := h.Run(0); i < h.Bits(); i, end = h.Run(end) {
			for ; i < end; i++ {
				got[i/32] |= 1 << (31 - i%32)
			}
		}
		for i, w := range words {
			if got[i] != w || h.Word(i) != w {
				t.Fatalf("word %d: runs give %#x, Word() = %#x, want %#x", i, got[i], h.Word(i), w)
			}
		}
	})
}

// No payload makes ParseSelACK or an accessor panic.
func FuzzSelACK(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{1, 0, 0, 7, 0, 0, 1, 0})
	f.Add([]byte{1, 1, 0, 0, 0xff, 0xff, 0xff, 0, 0x80, 0, 0, 1})
	f.Add([]byte{1, 2, 0, 0, 0, 0, 0, 0, 1})
	f.Add([]byte{1, 17, 0, 0, 0, 0, 0, 0})
	f.Add(append([]byte{1, 16, 0, 0, 0, 0, 0, 0xff}, bytes.Repeat([]byte{0xff}, 64)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, ok := ParseSelACK(b)
		if !ok {
			if h != nil {
				t.Fatalf("ParseSelACK(% x) = % x, false", b, h)
			}
			return
		}
		words := make([]uint32, h.Words())
		for i := range words {
			words[i] = h.Word(i)
		}
		again := make([]byte, MaxSelACKLen)
		n := PutSelACK(again, h.Start(), h.Duplicates(), words)
		again[7] = b[7] // reserved
		if !bytes.Equal(again[:n], b[:n]) {
			t.Fatalf("wrote % x, read % x", again[:n], b[:n])
		}
		for i, end := h.Run(0); i < h.Bits(); i, end = h.Run(end) {
			if end <= i || end > h.Bits() {
				t.Fatalf("Run() = %d, %d of %d bits", i, end, h.Bits())
			}
		}
	})
}

func TestSelACKDoesNotAllocate(t *testing.T) {
	b, words := make([]byte, MaxAckLen), make([]uint32, MaxSelACKWords)
	words[3] = 0xff00
	sum := 0
	if n := testing.AllocsPerRun(100, func() {
		PutPlain(b, RCAck, false, false, 0, DefaultPKey, 1, 2)
		PutAETH(b[HeaderLen:], ACKNoLimit, 3)
		PutSelACK(b[HeaderLen+AETHLen:], 4, 5, words)
		var p Packet
		if p.Parse(b) != nil {
			t.Fatal("Parse refused the packet")
		}
		h, _ := ParseSelACK(p.Payload)
		start, end := h.Run(0)
		sum += end - start
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
	if sum == 0 {
		t.Error("no held packets found")
	}
}

// The bytes are those of a CNP that a ConnectX NIC sent to QP 0x0000d2, as its vendor published
// them, without the ICRC.
func TestCNPBytes(t *testing.T) {
	b := bytes.Repeat([]byte{0xee}, CNPLen+1)
	PutCNP(b, DefaultPKey, 0xd2)
	want := append([]byte{0x81, 0, 0xff, 0xff, 0x40, 0, 0, 0xd2, 0, 0, 0, 0}, make([]byte, 16)...)
	if !bytes.Equal(b, append(want, 0xee)) {
		t.Fatalf("PutCNP wrote % x, want % x and the next byte unchanged", b, want)
	}
	var p Packet
	if err := p.Parse(b[:CNPLen]); err != nil {
		t.Fatal(err)
	}
	if f := p.BTH.Fields(); !f.BECN || f.FECN || f.Opcode != CNP || f.DestQP != 0xd2 || f.PSN != 0 {
		t.Errorf("Fields() = %+v", f)
	}
	if p.Info.Op != OpCNP || len(p.Payload) != 16 {
		t.Errorf("operation %v, payload of %d bytes, want CNP and 16", p.Info.Op, len(p.Payload))
	}
}
