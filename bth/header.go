package bth

import "encoding/binary"

// BTH is a view of a Base Transport Header and the bytes that follow it (IBA 9.2). Its accessors
// need 12 bytes, which Packet.Parse guarantees.
type BTH []byte

// Bits of the header.
const (
	bitSolicited = 0x80 // byte 1
	bitMigReq    = 0x40 // byte 1
	shiftPad     = 4    // byte 1, two bits
	maskVersion  = 0x0f // byte 1
	bitFECN      = 0x80 // byte 4
	bitBECN      = 0x40 // byte 4
	bitAckReq    = 0x80 // byte 8
)

// Opcode returns the packet's opcode.
func (b BTH) Opcode() Opcode { return Opcode(b[0]) }

// Solicited reports whether the packet asks the receiver to raise a solicited event.
func (b BTH) Solicited() bool { return b[1]&bitSolicited != 0 }

// MigReq returns the path migration bit.
func (b BTH) MigReq() bool { return b[1]&bitMigReq != 0 }

// PadCount returns the number of pad bytes after the payload, 0 to 3.
func (b BTH) PadCount() int { return int(b[1] >> shiftPad & 3) }

// Version returns the transport header version. Only version 0 is defined.
func (b BTH) Version() uint8 { return b[1] & maskVersion }

// PKey returns the partition key.
func (b BTH) PKey() PKey { return PKey(binary.BigEndian.Uint16(b[2:4])) }

// FECN returns the forward congestion notification bit.
func (b BTH) FECN() bool { return b[4]&bitFECN != 0 }

// BECN returns the backward congestion notification bit, which is set in a CNP.
func (b BTH) BECN() bool { return b[4]&bitBECN != 0 }

// DestQP returns the destination QP.
func (b BTH) DestQP() QPN { return QPN(binary.BigEndian.Uint32(b[4:8]) & mask24) }

// AckReq reports whether the packet asks the responder for an acknowledgment.
func (b BTH) AckReq() bool { return b[8]&bitAckReq != 0 }

// PSN returns the packet sequence number.
func (b BTH) PSN() PSN { return PSN(binary.BigEndian.Uint32(b[8:12]) & mask24) }

// Fields returns the fields of the header. PutBTH writes the same 12 bytes from them, except for
// reserved bits, which it clears.
func (b BTH) Fields() BTHFields {
	return BTHFields{
		Opcode: b.Opcode(), Solicited: b.Solicited(), MigReq: b.MigReq(), AckReq: b.AckReq(),
		PadCount: uint8(b.PadCount()), PKey: b.PKey(), DestQP: b.DestQP(), PSN: b.PSN(),
		FECN: b.FECN(), BECN: b.BECN(),
	}
}

// BTHFields are the values that PutBTH writes. The version is always 0.
type BTHFields struct {
	Opcode                    Opcode
	Solicited, MigReq, AckReq bool
	PadCount                  uint8 // 0 to 3
	PKey                      PKey
	DestQP                    QPN
	PSN                       PSN
	FECN, BECN                bool
}

// PutBTH writes the 12 bytes of the header to b. It truncates DestQP, PSN and PadCount to their
// widths and clears reserved bits.
func PutBTH(b []byte, f *BTHFields) {
	PutPlain(b, f.Opcode, f.Solicited, f.AckReq, f.PadCount, f.PKey, f.DestQP, f.PSN)
	if f.MigReq {
		b[1] |= bitMigReq
	}
	if f.FECN {
		b[4] |= bitFECN
	}
	if f.BECN {
		b[4] |= bitBECN
	}
}

// PutPlain is PutBTH for a packet without migration and congestion bits. It is small enough to be
// inlined.
func PutPlain(b []byte, op Opcode, solicited, ackReq bool, pad uint8, pkey PKey, dest QPN,
	psn PSN) {
	_ = b[HeaderLen-1]
	w0 := uint32(op)<<24 | uint32(pad&3)<<20 | uint32(pkey)
	if solicited {
		w0 |= bitSolicited << 16
	}
	w2 := uint32(psn & mask24)
	if ackReq {
		w2 |= bitAckReq << 24
	}
	binary.BigEndian.PutUint64(b[0:8], uint64(w0)<<32|uint64(dest&mask24))
	binary.BigEndian.PutUint32(b[8:12], w2)
}
