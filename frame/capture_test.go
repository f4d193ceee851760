package frame

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/bth/bthtest"
)

// reencode builds the frame again from what was decoded, by the writers that the
// data path uses: PutHeaders, PutBTH and the extension headers' Put, Finish.
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

// putExtensions writes every extension header of p's opcode from its fields.
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

// Every RoCE frame that rxe sent decodes with its ICRC right, and comes out the
// same, byte for byte, when it is built again from its fields.
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
				if r == ReasonNotRoCE && !bytes.Contains(f[:min(len(f), 66)], []byte{bth.Port >> 8, bth.Port & 0xff}) {
					continue // ARP, neighbour discovery, TCP
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
					t.Fatalf("frame %d, %v: built again\n%x\nwant\n%x", i+1, p.BTH.Opcode(), got, f)
				}
			}
			if roce == 0 {
				t.Error("no RoCE frame in the capture")
			}
		})
	}
	// The count holds the test to its purpose: a Decoder that passed frames over would fail here.
	total := 0
	for _, n := range seen {
		total += n
	}
	if len(seen) != 28 || total != 1359 {
		t.Errorf("%d frames of %d opcodes, want 1359 of 28: %v", total, len(seen), seen)
	}
}
