package core

import "encoding/binary"

// MessageLen is the length of every control message in bytes. Integers are big endian:
//
//	 0  magic and version   32 bits, "GDR1"
//	 4  message type         8
//	 5  flags                8: 1 READ, 2 indirect, 4 valid, 8 abort
//	 6  slot                16: of the indirect buffer; 0xffff none
//	 8  token               32: of the receiver's connection
//	12  TID                 32
//	16  SBA                 64: request: base address at the initiator
//	24  DBA                 64: request: base address at the responder; valid answer: where to WRITE
//	32  LEN                 32: bytes
//	36  R_Key               32: request of a READ: of the initiator's memory; valid answer: of the
//	                            destination
const MessageLen = 40

const magic = 0x47445231

// msgType is the type of a control message.
type msgType uint8

const (
	msgRequest  msgType = 1 + iota // initiator: start, or start again
	msgAnswer                      // responder: valid or invalid
	msgConfirm                     // initiator of a READ: the valid answer has arrived
	msgRelease                     // initiator: all sent and known, or abandoned (abort)
	msgReleased                    // responder: released
)

const (
	flagRead = 1 << iota
	flagIndirect
	flagValid
	flagAbort
	allFlags = flagRead | flagIndirect | flagValid | flagAbort
)

// message is a parsed control message.
type message struct {
	typ   msgType
	flags uint8
	slot  uint16
	tid   TID
	sba   uint64
	dba   uint64
	len   uint32
	rkey  uint32
}

func (m *message) put(b *[MessageLen]byte, token uint32) {
	be := binary.BigEndian
	be.PutUint32(b[0:], magic)
	b[4], b[5] = byte(m.typ), m.flags
	be.PutUint16(b[6:], m.slot)
	be.PutUint32(b[8:], token)
	be.PutUint32(b[12:], uint32(m.tid))
	be.PutUint64(b[16:], m.sba)
	be.PutUint64(b[24:], m.dba)
	be.PutUint32(b[32:], m.len)
	be.PutUint32(b[36:], m.rkey)
}

// Token returns the connection that a control message is for; false if it is not a control message.
func Token(b []byte) (uint32, bool) {
	if len(b) != MessageLen || binary.BigEndian.Uint32(b) != magic {
		return 0, false
	}
	return binary.BigEndian.Uint32(b[8:]), true
}

// parse reads a message and reports whether it is well formed.
func (m *message) parse(b []byte) bool {
	if _, ok := Token(b); !ok {
		return false
	}
	be := binary.BigEndian
	*m = message{
		typ: msgType(b[4]), flags: b[5], slot: be.Uint16(b[6:]), tid: TID(be.Uint32(b[12:])),
		sba: be.Uint64(b[16:]), dba: be.Uint64(b[24:]), len: be.Uint32(b[32:]),
		rkey: be.Uint32(b[36:]),
	}
	if m.typ < msgRequest || m.typ > msgReleased || m.flags&^allFlags != 0 {
		return false
	}
	return m.typ != msgRequest || (m.len >= 1 && m.len <= MaxLength)
}

func (m *message) has(flag uint8) bool { return m.flags&flag != 0 }

// The immediate of a data message. Of an initiator's WRITE into a slot:
//
//	31     0
//	30-16  the low 15 bits of the TID
//	15-8   slot
//	 7-0   number of the segment, modulo 256
//
// Of the last WRITE of a responder that serves a READ: bit 31 set, and the low 31 bits of the TID.
const (
	immRead    = 1 << 31
	immTIDBits = 15
	immTIDMask = 1<<immTIDBits - 1
)

func slotImm(t TID, slot uint16, segment uint32) uint32 {
	return uint32(t)&immTIDMask<<16 | uint32(slot&0xff)<<8 | segment&0xff
}

func readImm(t TID) uint32 { return immRead | uint32(t)&^immRead }
