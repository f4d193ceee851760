package frame

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"pgregory.net/rapid"
)

// same tells how a Decoder that has seen other frames and one that has not differ over b: they must not.
func same(d *Decoder, p *bth.Packet, b []byte) error {
	var q bth.Packet
	got, want := d.Decode(b, p), new(Decoder).Decode(b, &q)
	switch {
	case got != want:
		return fmt.Errorf("%v, a fresh Decoder says %v:\n% x", got, want, b)
	case got == ReasonOK && show(p) != show(&q):
		return fmt.Errorf("%s\na fresh Decoder says %s", show(p), show(&q))
	}
	return nil
}

func show(p *bth.Packet) string {
	return fmt.Sprintf("%x %v %x | %v %v %x %d %d %d %x %d %v", []byte(p.BTH), p.Info.Name, p.Payload,
		p.Src, p.Dst, p.NetHeader, p.SrcPort, p.TrafficClass, p.HopLimit, p.SrcMAC, p.VLAN, p.HasVLAN)
}

// What is known from the frame before spares no frame a check: with any bit of the headers changed, it is judged as by a
// Decoder that has never seen another. And the next good frame is good again.
func TestFlowSparesNoCheck(t *testing.T) {
	good, _ := writeOnly(&addr4, 8)
	d, p := new(Decoder), new(bth.Packet)
	for i := range flowLen {
		for bit := range 8 {
			for _, sealed := range []bool{false, true} {
				bad := bytes.Clone(good)
				bad[i] ^= 1 << bit
				if sealed && bad[atIP] == good[atIP] && bad[atType] == good[atType] && bad[atType+1] == good[atType+1] {
					seal(bad)
				}
				for _, f := range [][]byte{good, bad, bad, good} {
					if err := same(d, p, f); err != nil {
						t.Fatalf("bit %d of byte %d, sealed %v: %v", bit, i, sealed, err)
					}
				}
			}
		}
	}
}

// A flow is recognised: else the test above would show nothing.
func TestFlowIsRecognised(t *testing.T) {
	d, p := new(Decoder), new(bth.Packet)
	first, netLen := writeOnly(&addr4, 8)
	next, _ := writeOnly(&addr4, 100) // another length and checksum
	if d.flow.again(first, p) {
		t.Error("recognised before anything was seen")
	}
	d.Decode(first, p)
	PutHeaders(next, &addr4)
	(&Encoder{ID: 77}).Finish(next, netLen)
	switch {
	case !d.flow.again(next, p):
		t.Error("the next packet of a flow is not recognised")
	case d.flow.again(next, new(bth.Packet)):
		t.Error("recognised for a Packet that was never filled")
	case d.flow.again(next[:flowLen-1], p):
		t.Error("recognised in a frame that ends before its UDP header does")
	}
	tagged := addr4
	tagged.VLAN = 5
	other, _ := writeOnly(&tagged, 8)
	d.Decode(other, p)
	if d.flow.again(other, p) || d.flow.again(first, p) {
		t.Error("recognised though p was filled from a frame that flows are not for")
	}
}

// Frames of several flows, some damaged, in any order.
func TestFlowsTakeTurns(t *testing.T) {
	tagged, other := addr4, addr4
	tagged.VLAN, other.SrcPort = 0x2005, 0xc777
	var frames [][]byte
	for _, a := range []*Address{&addr4, &other, &tagged, &addr6} {
		for _, n := range []int{0, 8, 300} {
			f, _ := writeOnly(a, n)
			frames = append(frames, f)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		d, p := new(Decoder), new(bth.Packet)
		for range rapid.IntRange(1, 30).Draw(t, "frames") {
			f := bytes.Clone(rapid.SampledFrom(frames).Draw(t, "frame"))
			if rapid.Bool().Draw(t, "damaged") {
				f[rapid.IntRange(0, len(f)-1).Draw(t, "where")] ^= rapid.Byte().Draw(t, "how")
			}
			f = f[:rapid.IntRange(0, len(f)).Draw(t, "length")]
			if err := same(d, p, f); err != nil {
				t.Fatal(err)
			}
		}
	})
}
