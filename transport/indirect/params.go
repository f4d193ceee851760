package indirect

import (
	"encoding/binary"
	"fmt"

	"github.com/gorxe/gorxe/roce"
)

// Params are what each side tells the other when a connection is made. In rdma_cm's private data
// they are 40 bytes, big endian:
//
//	 0  magic and version  32 bits, "GDP1"
//	 4  QPN                32: of the QP for requests and answers (UD)
//	 8  Q_Key              32: of that QP
//	12  token              32: in control messages to this side
//	16  base               64: address of the slots granted to the peer
//	24  R_Key              32: of the slots
//	28  slots              16
//	30  entries            16
//	32  slot size          32: bytes
//	36  segment            32: bytes
type Params struct {
	QPN     roce.QPN  `json:"qpn"`
	QKey    roce.QKey `json:"qkey"`
	Token   uint32    `json:"token"`
	Base    uint64    `json:"base"`
	RKey    roce.RKey `json:"rkey"`
	Slots   uint16    `json:"slots"`
	Entries uint16    `json:"entries"`
	Slot    uint32    `json:"slot"`
	Segment uint32    `json:"segment"`
}

const (
	paramsMagic = 0x47445031
	paramsLen   = 40
)

func (p *Params) append(b []byte) []byte {
	be := binary.BigEndian
	b = be.AppendUint32(b, paramsMagic)
	b = be.AppendUint32(b, uint32(p.QPN))
	b = be.AppendUint32(b, uint32(p.QKey))
	b = be.AppendUint32(b, p.Token)
	b = be.AppendUint64(b, p.Base)
	b = be.AppendUint32(b, uint32(p.RKey))
	b = be.AppendUint16(b, p.Slots)
	b = be.AppendUint16(b, p.Entries)
	b = be.AppendUint32(b, p.Slot)
	return be.AppendUint32(b, p.Segment)
}

// parse reads the peer's parameters. Errors: ErrPeer.
func (p *Params) parse(b []byte) error {
	be := binary.BigEndian
	if len(b) < paramsLen || be.Uint32(b) != paramsMagic {
		return ErrPeer
	}
	*p = Params{
		QPN: roce.QPN(be.Uint32(b[4:])), QKey: roce.QKey(be.Uint32(b[8:])),
		Token: be.Uint32(b[12:]), Base: be.Uint64(b[16:]),
		RKey: roce.RKey(be.Uint32(b[24:])), Slots: be.Uint16(b[28:]), Entries: be.Uint16(b[30:]),
		Slot: be.Uint32(b[32:]), Segment: be.Uint32(b[36:]),
	}
	return nil
}

// fits checks the peer's parameters against our own. Errors: ErrMismatch.
func (p *Params) fits(own *Params) error {
	if p.Entries != own.Entries || p.Segment != own.Segment {
		return fmt.Errorf("%w (entries %d here, %d there; segments of %d bytes here, %d there)",
			ErrMismatch, own.Entries, p.Entries, own.Segment, p.Segment)
	}
	return nil
}
