package frame

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/bth/bthtest"
)

// reencode builds the frame again from the decoded packet with the functions that the data path
// uses.
func reencode(t *testing.T, frame []byte, p *bth.Packet) []byte {
	t.Helper()
	a := Address{
		SrcMAC: p.SrcMAC, DstMAC: bth.MAC(frame[0:6]), Src: p.Src, Dst: p.Dst, VLAN: p.VLAN,
		SrcPort: p.SrcPort, TrafficClass: p.TrafficClass, HopLimit: p.HopLimit,
	}
	var enc Encoder
	if p.Src.IsIPv4() {
		enc.ID = binary.BigEndian.Uint16(p.NetHeader[4:])
	} else {
		a.FlowLabel = binary.BigEndian.Uint32(p.NetHeader) & flowLabelMask
	}
	out := make([]byte, bth.MaxNetHeader+bth.MaxHeaderLen+len(p.Payload)+3+bth.ICRCLen)
	netLen := PutHeaders(out, &a)
	b := out[netLen:]
	fields := p.BTH.Fields()
	bth.PutBTH(b, &fields)
	putExtensions(b, p)
	n := int(p.Info.HeaderLen)
	n += copy(b[n:], p.Payload)
	n += p.BTH.PadCount()
	out = out[:netLen+n+bth.ICRCLen]
	enc.Finish(out, netLen)
	return out
}

// putExtensions writes the extension headers of p's opcode.
func putExtensions(b []byte, p *bth.Packet) {
	i := p.Info
	if i.FETH != 0 {
		bth.PutFETH(b[i.FETH:], p.FETH().Placement(), p.FETH().Selectivity())
	}
	if i.DETH != 0 {
		bth.PutDETH(b[i.DETH:], p.DETH().QKey(), p.DETH().SrcQP())
	}
	if i.RETH != 0 {
		h := p.RETH()
		bth.PutRETH(b[i.RETH:], h.VA(), h.RKey(), h.DMALen())
	}
	if i.AtomicETH != 0 {
		h := p.AtomicETH()
		bth.PutAtomicETH(b[i.AtomicETH:], h.VA(), h.RKey(), h.SwapAdd(), h.Compare())
	}
	if i.AETH != 0 {
		bth.PutAETH(b[i.AETH:], p.AETH().Syndrome(), p.AETH().MSN())
	}
	if i.AtomicAckETH != 0 {
		bth.PutAtomicAckETH(b[i.AtomicAckETH:], p.AtomicAckETH().Original())
	}
	if i.ImmDt != 0 {
		bth.PutImmDt(b[i.ImmDt:], p.ImmDt().Imm())
	}
	if i.IETH != 0 {
		bth.PutIETH(b[i.IETH:], p.IETH().RKey())
	}
}

// Every RoCE frame from rxe decodes without error, and encoding the result gives the same bytes.
func TestCapturesRoundTrip(t *testing.T) {
	var d Decoder
	seen := map[bth.Opcode]int{}
	for _, name := range bthtest.Names(t) {
		t.Run(name, func(t *testing.T) {
			roce := 0
			for i, f := range bthtest.Frames(t, name) {
				want := bytes.Clone(f)
				var p bth.Packet
				r := d.Decode(f, &p)
				if r == ReasonNotRoCE &&
					!bytes.Contains(f[:min(len(f), 66)], []byte{bth.Port >> 8, bth.Port & 0xff}) {
					continue // ARP, neighbor discovery, TCP
				}
				if r != ReasonOK {
					t.Fatalf("frame %d: %v", i+1, r)
				}
				roce++
				seen[p.BTH.Opcode()]++
				if !bytes.Equal(f, want) {
					t.Fatalf("frame %d: Decode changed the frame", i+1)
				}
				if got := reencode(t, f, &p); !bytes.Equal(got, f) {
					t.Fatalf("frame %d, %v: encoded again\n%x\nwant\n%x", i+1, p.BTH.Opcode(), got,
						f)
				}
			}
			if roce == 0 {
				t.Error("no RoCE frame in the capture")
			}
		})
	}
	// Without this count, a Decoder that rejects frames would pass.
	total := 0
	for _, n := range seen {
		total += n
	}
	if len(seen) != 28 || total != 1359 {
		t.Errorf("found %d frames with %d opcodes, want 1359 with 28: %v", total, len(seen), seen)
	}
}
