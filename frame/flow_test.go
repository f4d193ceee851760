package frame

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"pgregory.net/rapid"
)

// same returns an error if a Decoder that has seen other frames decodes b differently from a new
// Decoder.
func same(d *Decoder, p *bth.Packet, b []byte) error {
	var q bth.Packet
	got, want := d.Decode(b, p), new(Decoder).Decode(b, &q)
	switch {
	case got != want:
		return fmt.Errorf("Decode() = %v, a new Decoder returns %v:\n% x", got, want, b)
	case (got == ReasonOK || got == ReasonICRC) && show(p) != show(&q):
		return fmt.Errorf("decoded %s\na new Decoder decodes %s", show(p), show(&q))
	}
	return nil
}

func show(p *bth.Packet) string {
	return fmt.Sprintf("%x %v %x | %v %v %x %d %d %d %x %d %v", []byte(p.BTH), p.Info.Name, p.Payload,
		p.Src, p.Dst, p.NetHeader, p.SrcPort, p.TrafficClass, p.HopLimit, p.SrcMAC, p.VLAN, p.HasVLAN)
}

// The flow cache skips no check: a frame with any header bit changed gets the same result as from a
// new Decoder.
func TestFlowSkipsNoCheck(t *testing.T) {
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

// The cache is used; otherwise the test above would prove nothing.
func TestFlowMatches(t *testing.T) {
	d, p := new(Decoder), new(bth.Packet)
	first, netLen := writeOnly(&addr4, 8)
	next, _ := writeOnly(&addr4, 100) // different length and checksums
	if d.flows.find(first) != nil || d.flows.find(make([]byte, flowLen)) != nil {
		t.Error("an empty cache has a matching flow")
	}
	d.Decode(first, p)
	PutHeaders(next, &addr4)
	(&Encoder{ID: 77}).Finish(next, netLen)
	switch {
	case d.flows.find(next) == nil:
		t.Error("the next packet of a flow does not match")
	case d.flows.find(next[:flowLen-1]) != nil:
		t.Error("a frame that is too short matches")
	}
	another, tagged := addr4, addr4
	another.SrcPort, tagged.VLAN = 0xc001, 5
	if f, _ := writeOnly(&another, 8); d.flows.find(f) == nil {
		t.Error("a frame of another QP of the same hosts does not match")
	}
	for _, a := range []*Address{&tagged, &addr6} {
		f, _ := writeOnly(a, 8)
		if d.Decode(f, p); d.flows.find(f) != nil {
			t.Errorf("a frame to %+v matches, but only untagged IPv4 has flows", a)
		}
	}
	neighbor := addr4
	neighbor.Src[15]++
	f, _ := writeOnly(&neighbor, 8)
	if d.Decode(f, p); d.flows.find(f) == nil || d.flows.find(first) == nil {
		t.Error("only one of two alternating peers is cached")
	}
	neighbor.Src[15] = addr4.Src[15] ^ numFlows // shares the entry of the first peer
	f, _ = writeOnly(&neighbor, 8)
	if d.Decode(f, p); d.flows.find(f) == nil || d.flows.find(first) != nil {
		t.Error("of two peers that share an entry, the last one is not cached")
	}
}

// Frames of several flows, some of them corrupted, in random order.
func TestFlowsInterleaved(t *testing.T) {
	tagged, neighbor, router, port := addr4, addr4, addr4, addr4
	tagged.VLAN = 0x2005
	neighbor.Src, neighbor.SrcMAC = bth.GIDFromIPv4([4]byte{10, 77, 0, 3}), bth.MAC{2, 0, 0, 0, 0, 3}
	router.HopLimit, router.TrafficClass, router.SrcMAC = 7, 3, bth.MAC{2, 0, 0, 0, 0, 4}
	port.SrcPort = 0xc777
	var frames [][]byte
	for _, a := range []*Address{&addr4, &neighbor, &router, &port, &tagged, &addr6} {
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
		t.Errorf("only %d valid frames, %d of them with a cached flow: the test is too weak", good, short)
	}
}
