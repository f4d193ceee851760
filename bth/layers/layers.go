// Package layers lets gopacket (github.com/google/gopacket) decode RoCEv2: the BTH and each
// extension header become layers after UDP port 4791. Importing the package registers the port:
//
//	import _ "github.com/gorxe/gorxe/bth/layers"
//
// A packet then has the layers Ethernet, IP, UDP, BTH, the extension headers of its opcode, and the
// payload. A selective acknowledgment in an ACKNOWLEDGE is a layer before the payload. The pad and
// the ICRC are not part of the payload; they are fields of the BTH layer. With a
// gopacket.DecodingLayerParser, the BTH layer decodes all transport headers at once, and its Packet
// field gives access to the extension headers.
//
// The ICRC is not checked, because gopacket gives a layer no access to the IP header before it. The
// example shows how to check it with package frame.
//
// Packet tools use this package. The data path does not.
//
// Reading order:
//
//   - layers.go: registration and the BTH layer
//   - ext.go: the layers of the extension headers
//   - selack.go: the layer of a selective acknowledgment
package layers

import (
	"encoding/binary"
	"fmt"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/gorxe/gorxe/bth"
)

// The layer types. Their numbers are in the range that gopacket reserves for other packages.
var (
	LayerTypeBTH          = register(1791, "BTH", gopacket.DecodeFunc(decodeBTH))
	LayerTypeRETH         = register(1792, "RETH", standalone(bth.RETHLen, newRETH))
	LayerTypeAETH         = register(1793, "AETH", standalone(bth.AETHLen, newAETH))
	LayerTypeAtomicETH    = register(1794, "AtomicETH", standalone(bth.AtomicETHLen, newAtomicETH))
	LayerTypeAtomicAckETH = register(1795, "AtomicAckETH",
		standalone(bth.AtomicAckETHLen, newAtomicAckETH))
	LayerTypeImmDt = register(1796, "ImmDt", standalone(bth.ImmDtLen, newImmDt))
	LayerTypeIETH  = register(1797, "IETH", standalone(bth.IETHLen, newIETH))
	LayerTypeDETH  = register(1798, "DETH", standalone(bth.DETHLen, newDETH))
	LayerTypeFETH  = register(1799, "FETH", standalone(bth.FETHLen, newFETH))

	LayerTypeSelACK = register(1800, "SelACK", gopacket.DecodeFunc(decodeSelACK))
)

func register(number int, name string, d gopacket.Decoder) gopacket.LayerType {
	return gopacket.RegisterLayerType(number, gopacket.LayerTypeMetadata{Name: name, Decoder: d})
}

func init() {
	layers.RegisterUDPPortLayerType(bth.Port, LayerTypeBTH)
}

// BTH is the Base Transport Header and the end of the packet. Contents is the header's 12 bytes.
// Payload is what follows the last extension header, without the pad.
type BTH struct {
	layers.BaseLayer
	bth.BTHFields
	Version uint8
	Pad     []byte // 0 to 3 bytes after the payload
	ICRC    uint32 // as received, not checked

	// Packet views the same bytes. It gives access to the opcode's Info and to the extension
	// headers. Its fields for Ethernet, IP and UDP are not set.
	Packet bth.Packet
}

// LayerType returns LayerTypeBTH.
func (*BTH) LayerType() gopacket.LayerType { return LayerTypeBTH }

// CanDecode returns LayerTypeBTH.
func (*BTH) CanDecode() gopacket.LayerClass { return LayerTypeBTH }

// NextLayerType returns gopacket.LayerTypePayload, because a BTH includes the extension headers.
func (*BTH) NextLayerType() gopacket.LayerType { return gopacket.LayerTypePayload }

// DecodeFromBytes decodes the payload of a UDP datagram, including the ICRC, and keeps views of it.
// It returns the errors of bth.Packet.Parse. With ErrOpcode, ErrVersion and ErrPad, the fields of
// the BTH itself are still set.
func (l *BTH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	*l = BTH{}
	end := len(data) - bth.ICRCLen
	if end < bth.HeaderLen {
		df.SetTruncated()
		return fmt.Errorf("UDP payload of %d bytes: %w", len(data), bth.ErrTruncated)
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
	if l.Packet.Info.Op == bth.OpAck {
		if h, ok := newSelACK(l.Payload); ok {
			p.AddLayer(h)
			at = h.Payload
		}
	}
	if len(at) == 0 {
		return nil
	}
	return p.NextDecoder(gopacket.LayerTypePayload)
}
