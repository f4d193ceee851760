// Package layers lets gopacket (github.com/google/gopacket) decode RoCEv2: the
// BTH and each extension header as a layer, behind UDP port 4791. Importing it
// registers the port:
//
//	import _ "github.com/gorxe/gorxe/bth/layers"
//
// A packet then has Ethernet, IP, UDP, BTH, the extension headers that its opcode
// calls for, and the payload. Pad and ICRC are no part of the payload; they are
// fields of the BTH layer. With a gopacket.DecodingLayerParser, a BTH takes all
// transport headers at once, and its Packet shows the extension headers.
//
// The ICRC is shown, not checked, as gopacket gives a layer no view of the IP
// header in front of it: roce/frame's ICRC does that, see the example.
//
// This package is for tools; gorxe's data path does not use it. Reading order:
// layers.go (registration, BTH), ext.go (the extension headers).
package layers

import (
	"encoding/binary"
	"fmt"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/gorxe/gorxe/bth"
)

// The layer types. Their numbers lie in the range that gopacket leaves to others.
var (
	LayerTypeBTH          = register(1791, "BTH", gopacket.DecodeFunc(decodeBTH))
	LayerTypeRETH         = register(1792, "RETH", alone(bth.RETHLen, newRETH))
	LayerTypeAETH         = register(1793, "AETH", alone(bth.AETHLen, newAETH))
	LayerTypeAtomicETH    = register(1794, "AtomicETH", alone(bth.AtomicETHLen, newAtomicETH))
	LayerTypeAtomicAckETH = register(1795, "AtomicAckETH", alone(bth.AtomicAckETHLen, newAtomicAckETH))
	LayerTypeImmDt        = register(1796, "ImmDt", alone(bth.ImmDtLen, newImmDt))
	LayerTypeIETH         = register(1797, "IETH", alone(bth.IETHLen, newIETH))
	LayerTypeDETH         = register(1798, "DETH", alone(bth.DETHLen, newDETH))
	LayerTypeFETH         = register(1799, "FETH", alone(bth.FETHLen, newFETH))
)

func register(number int, name string, d gopacket.Decoder) gopacket.LayerType {
	return gopacket.RegisterLayerType(number, gopacket.LayerTypeMetadata{Name: name, Decoder: d})
}

func init() {
	layers.RegisterUDPPortLayerType(bth.Port, LayerTypeBTH)
}

// BTH is the Base Transport Header and what stands at the packet's end. Contents
// are its 12 bytes, Payload is what follows the last extension header.
type BTH struct {
	layers.BaseLayer
	bth.BTHFields
	Version uint8
	Pad     []byte // 0 to 3 bytes behind the payload
	ICRC    uint32 // as received; not checked

	// Packet views the same bytes: Info, and the extension headers by their methods. Its
	// network fields are not set.
	Packet bth.Packet
}

// LayerType returns LayerTypeBTH.
func (*BTH) LayerType() gopacket.LayerType { return LayerTypeBTH }

// CanDecode returns LayerTypeBTH.
func (*BTH) CanDecode() gopacket.LayerClass { return LayerTypeBTH }

// NextLayerType returns gopacket.LayerTypePayload: a BTH takes the extension
// headers with it.
func (*BTH) NextLayerType() gopacket.LayerType { return gopacket.LayerTypePayload }

// DecodeFromBytes reads a UDP datagram's payload, ICRC included, keeping views into
// it. Errors are those of bth.Packet.Parse; with ErrOpcode, ErrVersion and ErrPad the
// BTH's own fields are set all the same.
func (l *BTH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	*l = BTH{}
	end := len(data) - bth.ICRCLen
	if end < bth.HeaderLen {
		df.SetTruncated()
		return fmt.Errorf("%d bytes behind UDP: %w", len(data), bth.ErrTruncated)
	}
	err := l.Packet.Parse(data[:end:end])
	h := l.Packet.BTH
	l.BTHFields, l.Version = h.Fields(), h.Version()
	l.ICRC = binary.LittleEndian.Uint32(data[end:])
	l.Contents = data[:bth.HeaderLen:bth.HeaderLen]
	if err != nil {
		return fmt.Errorf("%v: %w", l.Opcode, err)
	}
	l.Payload = l.Packet.Payload
	l.Pad = data[end-int(l.PadCount) : end : end]
	return nil
}

// decodeBTH adds the BTH, its extension headers and the payload to a packet.
func decodeBTH(data []byte, p gopacket.PacketBuilder) error {
	l := new(BTH)
	err := l.DecodeFromBytes(data, p)
	if l.Contents != nil {
		p.AddLayer(l)
	}
	if err != nil {
		return err
	}
	at := l.Packet.BTH[bth.HeaderLen : len(l.Packet.BTH)-len(l.Pad)]
	for _, h := range order {
		if h.offset(l.Packet.Info) != 0 {
			p.AddLayer(h.layer(at))
			at = at[h.len:]
		}
	}
	if len(l.Payload) == 0 {
		return nil
	}
	return p.NextDecoder(gopacket.LayerTypePayload)
}
