package layers

import (
	"fmt"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/gorxe/gorxe/bth"
)

// extension describes one kind of extension header.
type extension struct {
	len    int
	offset func(*bth.OpcodeInfo) uint8
	layer  func([]byte) gopacket.Layer // needs at least len bytes
}

// order lists the extension headers in the order in which they appear on the wire.
var order = []extension{
	{bth.FETHLen, func(i *bth.OpcodeInfo) uint8 { return i.FETH }, newFETH},
	{bth.DETHLen, func(i *bth.OpcodeInfo) uint8 { return i.DETH }, newDETH},
	{bth.RETHLen, func(i *bth.OpcodeInfo) uint8 { return i.RETH }, newRETH},
	{bth.AtomicETHLen, func(i *bth.OpcodeInfo) uint8 { return i.AtomicETH }, newAtomicETH},
	{bth.AETHLen, func(i *bth.OpcodeInfo) uint8 { return i.AETH }, newAETH},
	{bth.AtomicAckETHLen, func(i *bth.OpcodeInfo) uint8 { return i.AtomicAckETH }, newAtomicAckETH},
	{bth.ImmDtLen, func(i *bth.OpcodeInfo) uint8 { return i.ImmDt }, newImmDt},
	{bth.IETHLen, func(i *bth.OpcodeInfo) uint8 { return i.IETH }, newIETH},
}

// standalone decodes an extension header whose layer type the caller of gopacket asked for. The
// bytes after it are payload, because only the opcode in the BTH says what else follows.
func standalone(n int, layer func([]byte) gopacket.Layer) gopacket.Decoder {
	return gopacket.DecodeFunc(func(data []byte, p gopacket.PacketBuilder) error {
		if len(data) < n {
			p.SetTruncated()
			return fmt.Errorf("extension header of %d bytes has only %d: %w", n, len(data),
				bth.ErrTruncated)
		}
		p.AddLayer(layer(data))
		return p.NextDecoder(gopacket.LayerTypePayload)
	})
}

func base(b []byte, n int) layers.BaseLayer {
	return layers.BaseLayer{Contents: b[:n:n], Payload: b[n:]}
}

// RETH is the RDMA extended transport header.
type RETH struct {
	layers.BaseLayer
	VA     uint64
	RKey   bth.RKey
	DMALen uint32 // bytes of the whole message
}

// LayerType returns LayerTypeRETH.
func (*RETH) LayerType() gopacket.LayerType { return LayerTypeRETH }

func newRETH(b []byte) gopacket.Layer {
	h := bth.RETH(b)
	return &RETH{base(b, bth.RETHLen), h.VA(), h.RKey(), h.DMALen()}
}

// AETH is the ACK extended transport header.
type AETH struct {
	layers.BaseLayer
	Syndrome bth.Syndrome
	MSN      bth.MSN
}

// LayerType returns LayerTypeAETH.
func (*AETH) LayerType() gopacket.LayerType { return LayerTypeAETH }

func newAETH(b []byte) gopacket.Layer {
	h := bth.AETH(b)
	return &AETH{base(b, bth.AETHLen), h.Syndrome(), h.MSN()}
}

// AtomicETH is the extended transport header of an atomic request.
type AtomicETH struct {
	layers.BaseLayer
	VA      uint64
	RKey    bth.RKey
	SwapAdd uint64
	Compare uint64
}

// LayerType returns LayerTypeAtomicETH.
func (*AtomicETH) LayerType() gopacket.LayerType { return LayerTypeAtomicETH }

func newAtomicETH(b []byte) gopacket.Layer {
	h := bth.AtomicETH(b)
	return &AtomicETH{base(b, bth.AtomicETHLen), h.VA(), h.RKey(), h.SwapAdd(), h.Compare()}
}

// AtomicAckETH carries the answer to an atomic request.
type AtomicAckETH struct {
	layers.BaseLayer
	Original uint64
}

// LayerType returns LayerTypeAtomicAckETH.
func (*AtomicAckETH) LayerType() gopacket.LayerType { return LayerTypeAtomicAckETH }

func newAtomicAckETH(b []byte) gopacket.Layer {
	return &AtomicAckETH{base(b, bth.AtomicAckETHLen), bth.AtomicAckETH(b).Original()}
}

// ImmDt is the immediate data.
type ImmDt struct {
	layers.BaseLayer
	Imm uint32
}

// LayerType returns LayerTypeImmDt.
func (*ImmDt) LayerType() gopacket.LayerType { return LayerTypeImmDt }

func newImmDt(b []byte) gopacket.Layer {
	return &ImmDt{base(b, bth.ImmDtLen), bth.ImmDt(b).Imm()}
}

// IETH is the invalidate extended transport header.
type IETH struct {
	layers.BaseLayer
	RKey bth.RKey
}

// LayerType returns LayerTypeIETH.
func (*IETH) LayerType() gopacket.LayerType { return LayerTypeIETH }

func newIETH(b []byte) gopacket.Layer {
	return &IETH{base(b, bth.IETHLen), bth.IETH(b).RKey()}
}

// DETH is the datagram extended transport header.
type DETH struct {
	layers.BaseLayer
	QKey  bth.QKey
	SrcQP bth.QPN
}

// LayerType returns LayerTypeDETH.
func (*DETH) LayerType() gopacket.LayerType { return LayerTypeDETH }

func newDETH(b []byte) gopacket.Layer {
	h := bth.DETH(b)
	return &DETH{base(b, bth.DETHLen), h.QKey(), h.SrcQP()}
}

// FETH is the flush extended transport header.
type FETH struct {
	layers.BaseLayer
	Placement, Selectivity uint8
}

// LayerType returns LayerTypeFETH.
func (*FETH) LayerType() gopacket.LayerType { return LayerTypeFETH }

func newFETH(b []byte) gopacket.Layer {
	h := bth.FETH(b)
	return &FETH{base(b, bth.FETHLen), h.Placement(), h.Selectivity()}
}
