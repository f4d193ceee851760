package layers

import (
	"fmt"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/gorxe/gorxe/bth"
)

// SelACK is a selective acknowledgment in the payload of an ACKNOWLEDGE. Contents has its accessors
// as bth.SelACK(Contents).
type SelACK struct {
	layers.BaseLayer
	Duplicates uint16     // request packets received more than once, modulo 2^16
	Held       []PSNRange // runs of packets that the responder holds, in order
}

// PSNRange is a run of packets, from First to Last.
type PSNRange struct{ First, Last bth.PSN }

// LayerType returns LayerTypeSelACK.
func (*SelACK) LayerType() gopacket.LayerType { return LayerTypeSelACK }

func newSelACK(payload []byte) (*SelACK, bool) {
	h, ok := bth.ParseSelACK(payload)
	if !ok {
		return nil, false
	}
	l := &SelACK{BaseLayer: base(payload, len(h)), Duplicates: h.Duplicates()}
	for from, end := h.Run(0); from < h.Bits(); from, end = h.Run(end) {
		l.Held = append(l.Held, PSNRange{h.Start().Add(uint32(from)),
			h.Start().Add(uint32(end - 1))})
	}
	return l, true
}

// decodeSelACK decodes a SelACK whose layer type the caller of gopacket asked for.
func decodeSelACK(data []byte, p gopacket.PacketBuilder) error {
	l, ok := newSelACK(data)
	if !ok {
		p.SetTruncated()
		return fmt.Errorf("selective acknowledgment of %d bytes: %w", len(data), bth.ErrTruncated)
	}
	p.AddLayer(l)
	if len(l.Payload) == 0 {
		return nil
	}
	return p.NextDecoder(gopacket.LayerTypePayload)
}
