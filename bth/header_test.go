package bth

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// The BTH of IBA 9.2 with a distinct value in every field.
func TestBTHBits(t *testing.T) {
	got := make([]byte, HeaderLen)
	PutBTH(got, &BTHFields{
		Opcode: RCWriteOnly, Solicited: true, MigReq: false, PadCount: 2, PKey: 0x1234,
		FECN: false, BECN: true, DestQP: 0xabcdef, AckReq: true, PSN: 0x987654,
	})
	want := []byte{0x0a, 0xa0, 0x12, 0x34, 0x40, 0xab, 0xcd, 0xef, 0x80, 0x98, 0x76, 0x54}
	if !bytes.Equal(got, want) {
		t.Fatalf("PutBTH wrote\n% x, want\n% x", got, want)
	}
	PutBTH(got, &BTHFields{MigReq: true, FECN: true, PadCount: 7, DestQP: 1 << 24, PSN: 1<<24 + 1})
	want = []byte{0, 0x70, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 1}
	if !bytes.Equal(got, want) {
		t.Fatalf("PutBTH of values that are too wide wrote\n% x, want\n% x", got, want)
	}
}

func TestBTHRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := BTHFields{
			Opcode: Opcode(rapid.Uint8().Draw(t, "opcode")), Solicited: rapid.Bool().Draw(t, "se"),
			MigReq: rapid.Bool().Draw(t, "mig"), AckReq: rapid.Bool().Draw(t, "ack"),
			PadCount: rapid.Uint8Range(0, 3).Draw(t, "pad"),
			PKey:     PKey(rapid.Uint16().Draw(t, "pkey")),
			DestQP:   QPN(rapid.Uint32Range(0, mask24).Draw(t, "qp")),
			PSN:      PSN(rapid.Uint32Range(0, mask24).Draw(t, "psn")),
			FECN:     rapid.Bool().Draw(t, "fecn"), BECN: rapid.Bool().Draw(t, "becn"),
		}
		b := bytes.Repeat([]byte{0xee}, HeaderLen+1)
		PutBTH(b, &want)
		if got := BTH(b).Fields(); got != want {
			t.Fatalf("got %+v, want %+v", got, want)
		}
		if BTH(b).Version() != 0 || b[HeaderLen] != 0xee {
			t.Fatalf("PutBTH changed the version or the byte after the header: % x", b)
		}
	})
}

func TestExtensionBytes(t *testing.T) {
	for _, c := range []struct {
		name string
		put  func(b []byte)
		want []byte
	}{
		{"RETH", func(b []byte) { PutRETH(b, 0x0102030405060708, 0x090a0b0c, 0x0d0e0f10) },
			[]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}},
		{"AETH", func(b []byte) { PutAETH(b, NAKSyndrome(NAKRemoteAccess), 0xff010203) },
			[]byte{0x62, 1, 2, 3}},
		{"AtomicETH", func(b []byte) { PutAtomicETH(b, 1, 2, 3, 4) },
			[]byte{0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0,
				4}},
		{"AtomicAckETH", func(b []byte) { PutAtomicAckETH(b, 0x0102030405060708) },
			[]byte{1, 2, 3, 4, 5, 6, 7, 8}},
		{"ImmDt", func(b []byte) { PutImmDt(b, 0x01020304) }, []byte{1, 2, 3, 4}},
		{"IETH", func(b []byte) { PutIETH(b, 0x01020304) }, []byte{1, 2, 3, 4}},
		{"DETH", func(b []byte) { PutDETH(b, QKeyGSI, 0xff000001) },
			[]byte{0x80, 1, 0, 0, 0, 0, 0, 1}},
		{"FETH", func(b []byte) { PutFETH(b, 0x12, 5) }, []byte{0, 0, 0, 0x12}},
	} {
		got := bytes.Repeat([]byte{0xee}, len(c.want)+1)
		c.put(got)
		if !bytes.Equal(got, append(bytes.Clone(c.want), 0xee)) {
			t.Errorf("%s: wrote % x, want % x and the next byte unchanged", c.name, got, c.want)
		}
	}
}

func TestExtensionRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u64 := func(n string) uint64 { return rapid.Uint64().Draw(t, n) }
		u32 := func(n string) uint32 { return rapid.Uint32().Draw(t, n) }
		b := make([]byte, MaxExtLen)
		va, swap, compare, key, n := u64("va"), u64("swap"), u64("compare"), RKey(u32("key")), u32("n")

		PutRETH(b, va, key, n)
		if h := RETH(b); h.VA() != va || h.RKey() != key || h.DMALen() != n {
			t.Fatalf("RETH % x", b)
		}
		PutAtomicETH(b, va, key, swap, compare)
		if h := AtomicETH(b); h.VA() != va || h.RKey() != key || h.SwapAdd() != swap ||
			h.Compare() != compare {
			t.Fatalf("AtomicETH % x", b)
		}
		PutAtomicAckETH(b, swap)
		if AtomicAckETH(b).Original() != swap {
			t.Fatalf("AtomicAckETH % x", b)
		}
		PutImmDt(b, n)
		if ImmDt(b).Imm() != n {
			t.Fatalf("ImmDt % x", b)
		}
		PutIETH(b, key)
		if IETH(b).RKey() != key {
			t.Fatalf("IETH % x", b)
		}
		qp := QPN(n & mask24)
		PutDETH(b, QKey(key), qp)
		if h := DETH(b); h.QKey() != QKey(key) || h.SrcQP() != qp {
			t.Fatalf("DETH % x", b)
		}
		s, m := Syndrome(rapid.Uint8().Draw(t, "syndrome")), MSN(n&mask24)
		PutAETH(b, s, m)
		if h := AETH(b); h.Syndrome() != s || h.MSN() != m {
			t.Fatalf("AETH % x", b)
		}
		PutFETH(b, uint8(s)&0xf, uint8(s)>>4&3)
		if h := FETH(b); h.Placement() != uint8(s)&0xf || h.Selectivity() != uint8(s)>>4&3 {
			t.Fatalf("FETH % x", b)
		}
	})
}
