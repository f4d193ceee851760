package bth

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"
)

// packet returns the headers of an opcode with n bytes of payload and pad bytes.
func packet(o Opcode, n, pad int) []byte {
	h := int(o.Info().HeaderLen)
	b := make([]byte, h+n+pad)
	for i := range b {
		b[i] = byte(i + 1)
	}
	PutBTH(b, &BTHFields{Opcode: o, PadCount: uint8(pad), PKey: DefaultPKey})
	return b
}

func TestParse(t *testing.T) {
	version := packet(RCSendOnly, 4, 0)
	version[1] |= 1
	for _, c := range []struct {
		name    string
		b       []byte
		want    error
		payload int
	}{
		{"empty", nil, ErrTruncated, 0},
		{"one byte short of a BTH", packet(RCSendOnly, 0, 0)[:11], ErrTruncated, 0},
		{"empty SEND", packet(RCSendOnly, 0, 0), nil, 0},
		{"SEND of 5 with 3 pad", packet(RCSendOnly, 5, 3), nil, 5},
		{"WRITE without RETH's last byte", packet(RCWriteOnly, 0, 0)[:27], ErrTruncated, 0},
		{"empty WRITE", packet(RCWriteOnly, 0, 0), nil, 0},
		{"UD with immediate", packet(UDSendOnlyImm, 8, 0), nil, 8},
		{"ACK", packet(RCAck, 0, 0), nil, 0},
		{"CNP with its 16 reserved bytes", packet(CNP, 16, 0), nil, 16},
		{"transport version 1", version, ErrVersion, 0},
		{"reserved RC opcode 0x1f", packet(0x1f, 4, 0), ErrOpcode, 0},
		{"RD SEND", packet(0x44, 4, 0), ErrOpcode, 0},
		{"opcode 0xff", packet(0xff, 0, 0), ErrOpcode, 0},
		{"pad reaches into the BTH", packet(RCSendOnly, 0, 3)[:14], ErrPad, 0},
		{"pad reaches into the RETH", packet(RCWriteOnly, 0, 1)[:28], ErrPad, 0},
		{"pad without payload", packet(RCSendOnly, 0, 3), nil, 0},
		{"ATOMIC WRITE without payload", packet(RCAtomicWrite, 0, 0), ErrTruncated, 0},
		{"ATOMIC WRITE one byte short", packet(RCAtomicWrite, 7, 1), ErrTruncated, 0},
		{"ATOMIC WRITE", packet(RCAtomicWrite, 8, 0), nil, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p Packet
			err := p.Parse(c.b)
			if !errors.Is(err, c.want) {
				t.Fatalf("Parse() = %v, want %v", err, c.want)
			}
			if len(p.Payload) != c.payload {
				t.Fatalf("payload of %d bytes, want %d", len(p.Payload), c.payload)
			}
			touch(&p)
		})
	}
}

// touch calls every accessor. None may panic after Parse, even if Parse failed.
func touch(p *Packet) {
	_ = p.BTH.Fields()
	_ = p.BTH.Version()
	_ = p.BTH.Opcode().String()
	_, _, _ = p.RETH().VA(), p.RETH().RKey(), p.RETH().DMALen()
	_, _ = p.AETH().Syndrome().String(), p.AETH().MSN()
	_, _, _, _ = p.AtomicETH().VA(), p.AtomicETH().RKey(), p.AtomicETH().SwapAdd(), p.AtomicETH().Compare()
	_, _, _ = p.AtomicAckETH().Original(), p.ImmDt().Imm(), p.IETH().RKey()
	_, _ = p.DETH().QKey(), p.DETH().SrcQP()
	_, _ = p.FETH().Placement(), p.FETH().Selectivity()
}

// Parse accepts a packet of any length and pad count exactly if headers, pad and fixed payload fit.
func TestParseEveryLength(t *testing.T) {
	for o := range 256 {
		i := Opcode(o).Info()
		whole := packet(Opcode(o), 12, 0)
		for n := range len(whole) + 1 {
			for pad := range 4 {
				b := bytes.Clone(whole[:n])
				if n > 1 {
					b[1] = byte(pad) << 4
				}
				var p Packet
				err := p.Parse(b)
				fits := n >= HeaderLen && i.Known && n >= int(i.HeaderLen)+int(i.MinPayload)+pad
				if (err == nil) != fits {
					t.Fatalf("%v of %d bytes with pad %d: %v", i.Name, n, pad, err)
				}
				if err == nil && len(p.Payload) != n-int(i.HeaderLen)-pad {
					t.Fatalf("%v of %d bytes with pad %d: payload of %d bytes", i.Name, n, pad,
						len(p.Payload))
				}
				touch(&p)
			}
		}
	}
}

// A header that the packet does not have reads as zeros.
func TestAbsentHeadersAreZero(t *testing.T) {
	var p Packet
	if err := p.Parse(packet(RCSendOnly, 64, 0)); err != nil {
		t.Fatal(err)
	}
	if p.RETH().VA() != 0 || p.AtomicETH().Compare() != 0 || p.DETH().SrcQP() != 0 ||
		p.AETH().Syndrome() != 0 ||
		p.ImmDt().Imm() != 0 || p.IETH().RKey() != 0 || p.AtomicAckETH().Original() != 0 ||
		p.FETH().Placement() != 0 {
		t.Error("an absent header is not a view of zeros")
	}
}

// The views of a parsed packet start at the right offsets.
func TestParsedViews(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := make([]byte, 32+8)
		va, key, imm := rapid.Uint64().Draw(t, "va"), rapid.Uint32().Draw(t,
			"key"), rapid.Uint32().Draw(t, "imm")
		PutBTH(b, &BTHFields{Opcode: RCWriteOnlyImm, PadCount: 3})
		PutRETH(b[12:], va, RKey(key), 5)
		PutImmDt(b[28:], imm)
		copy(b[32:], "hello")
		var p Packet
		if err := p.Parse(b); err != nil {
			t.Fatal(err)
		}
		if p.RETH().VA() != va || p.RETH().RKey() != RKey(key) || p.RETH().DMALen() != 5 ||
			p.ImmDt().Imm() != imm || string(p.Payload) != "hello" {
			t.Fatalf("read %x %v %d %x %q", p.RETH().VA(), p.RETH().RKey(), p.RETH().DMALen(),
				p.ImmDt().Imm(), p.Payload)
		}
	})
}

func TestNoAllocations(t *testing.T) {
	good, bad := packet(RCWriteOnly, 64, 0), packet(0xff, 0, 0)
	p, f, b := new(Packet), &BTHFields{Opcode: RCWriteOnly}, make([]byte, MaxHeaderLen)
	n := testing.AllocsPerRun(100, func() {
		_ = p.Parse(bad)
		_ = p.Parse(bad[:3])
		_ = p.Parse(good)
		_, _, _ = p.RETH().VA(), p.AETH().MSN(), p.AtomicETH().Compare()
		_ = p.BTH.Opcode().String()
		PutBTH(b, f)
		PutRETH(b, 1, 2, 3)
		PutAETH(b, ACKNoLimit, 1)
		PutAtomicETH(b, 1, 2, 3, 4)
		PutAtomicAckETH(b, 1)
		PutImmDt(b, 1)
		PutIETH(b, 1)
		PutDETH(b, 1, 2)
		PutFETH(b, 1, 0)
		_ = RequestOpcode(RC, OpWrite, true, true, false, false)
	})
	if n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func BenchmarkParse(b *testing.B) {
	buf, p := packet(RCWriteOnly, 64, 0), new(Packet)
	for b.Loop() {
		if p.Parse(buf) != nil {
			b.Fatal("bad packet")
		}
	}
}

func BenchmarkPutBTH(b *testing.B) {
	buf, f := make([]byte, HeaderLen), &BTHFields{Opcode: RCWriteOnly, DestQP: 7, PKey: DefaultPKey}
	for b.Loop() {
		f.PSN = f.PSN.Next()
		PutBTH(buf, f)
	}
}
