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
	case (got == ReasonOK || got == ReasonICRC) && show(p) != show(&q):
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
	if d.flows.find(first) != nil || d.flows.find(make([]byte, flowLen)) != nil {
		t.Error("recognised before anything was seen")
	}
	d.Decode(first, p)
	PutHeaders(next, &addr4)
	(&Encoder{ID: 77}).Finish(next, netLen)
	switch {
	case d.flows.find(next) == nil:
		t.Error("the next packet of a flow is not recognised")
	case d.flows.find(next[:flowLen-1]) != nil:
		t.Error("recognised in a frame that ends before its UDP header does")
	}
	another, tagged := addr4, addr4
	another.SrcPort, tagged.VLAN = 0xc001, 5
	if f, _ := writeOnly(&another, 8); d.flows.find(f) == nil {
		t.Error("another QP of the same two hosts is not recognised")
	}
	for _, a := range []*Address{&tagged, &addr6} {
		f, _ := writeOnly(a, 8)
		if d.Decode(f, p); d.flows.find(f) != nil {
			t.Errorf("recognised in %+v, which flows are not for", a)
		}
	}
	neighbour := addr4
	neighbour.Src[15]++
	f, _ := writeOnly(&neighbour, 8)
	if d.Decode(f, p); d.flows.find(f) == nil || d.flows.find(first) == nil {
		t.Error("of two peers that take turns only one is known")
	}
	neighbour.Src[15] = addr4.Src[15] ^ numFlows // a place of the first one's
	f, _ = writeOnly(&neighbour, 8)
	if d.Decode(f, p); d.flows.find(f) == nil || d.flows.find(first) != nil {
		t.Error("of two peers that share a place the one last heard of is known")
	}
}

// Frames of several flows, some damaged, in any order.
func TestFlowsTakeTurns(t *testing.T) {
	tagged, neighbour, router, port := addr4, addr4, addr4, addr4
	tagged.VLAN = 0x2005
	neighbour.Src, neighbour.SrcMAC = bth.GIDFromIPv4([4]byte{10, 77, 0, 3}), bth.MAC{2, 0, 0, 0, 0, 3}
	router.HopLimit, router.TrafficClass, router.SrcMAC = 7, 3, bth.MAC{2, 0, 0, 0, 0, 4}
	port.SrcPort = 0xc777
	var frames [][]byte
	for _, a := range []*Address{&addr4, &neighbour, &router, &port, &tagged, &addr6} {
		for _, n := range []int{0, 8, 300} {
			f, _ := writeOnly(a, n)
			frames = append(frames, f)
		}
	}
	good, short := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		d, p := new(Decoder), new(bth.Packet)
		for range rapid.IntRange(1, 30).Draw(t, "frames") {
			f := bytes.Clone(rapid.SampledFrom(frames).Draw(t, "frame"))
			if rapid.Bool().Draw(t, "damaged") {
				f[rapid.IntRange(0, len(f)-1).Draw(t, "where")] ^= rapid.Byte().Draw(t, "how")
			}
			if rapid.IntRange(0, 7).Draw(t, "cut") == 0 {
				f = f[:rapid.IntRange(0, len(f)).Draw(t, "length")]
			}
			known := d.flows.find(f) != nil
			if err := same(d, p, f); err != nil {
				t.Fatal(err)
			}
			if d.Decode(f, p) == ReasonOK {
				good++
				if known {
					short++
				}
			}
		}
	})
	if good < 100 || short < 20 {
		t.Errorf("only %d good frames, %d of them of a flow that was known: this has shown little", good, short)
	}
}
