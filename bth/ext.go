package bth

import "encoding/binary"

// Lengths of the extension headers in bytes (IBA 9.3; FETH: IBA annex A19).
const (
	RETHLen         = 16
	AETHLen         = 4
	AtomicETHLen    = 28
	AtomicAckETHLen = 8
	ImmDtLen        = 4
	IETHLen         = 4
	DETHLen         = 8
	FETHLen         = 4
)

// RETH is the RDMA extended transport header. It names the remote memory.
type RETH []byte

// VA returns the remote virtual address.
func (h RETH) VA() uint64 { return binary.BigEndian.Uint64(h[0:8]) }

// RKey returns the key of the remote memory region.
func (h RETH) RKey() RKey { return RKey(binary.BigEndian.Uint32(h[8:12])) }

// DMALen returns the length of the whole message in bytes.
func (h RETH) DMALen() uint32 { return binary.BigEndian.Uint32(h[12:16]) }

// PutRETH writes the 16 bytes of a RETH to b.
func PutRETH(b []byte, va uint64, key RKey, n uint32) {
	_ = b[RETHLen-1]
	binary.BigEndian.PutUint64(b[0:8], va)
	binary.BigEndian.PutUint64(b[8:16], uint64(key)<<32|uint64(n))
}

// AETH is the ACK extended transport header.
type AETH []byte

// Syndrome returns the kind of acknowledgment and its parameter.
func (h AETH) Syndrome() Syndrome { return Syndrome(h[0]) }

// MSN returns the responder's count of completed messages.
func (h AETH) MSN() MSN { return MSN(binary.BigEndian.Uint32(h[0:4]) & mask24) }

// PutAETH writes the 4 bytes of an AETH to b.
func PutAETH(b []byte, s Syndrome, m MSN) {
	binary.BigEndian.PutUint32(b[0:4], uint32(s)<<24|uint32(m&mask24))
}

// AtomicETH is the extended transport header of an atomic request.
type AtomicETH []byte

// VA returns the remote virtual address of the 8 bytes.
func (h AtomicETH) VA() uint64 { return binary.BigEndian.Uint64(h[0:8]) }

// RKey returns the key of the remote memory region.
func (h AtomicETH) RKey() RKey { return RKey(binary.BigEndian.Uint32(h[8:12])) }

// SwapAdd returns the value to swap in or to add.
func (h AtomicETH) SwapAdd() uint64 { return binary.BigEndian.Uint64(h[12:20]) }

// Compare returns the value to compare with. FETCH_ADD ignores it.
func (h AtomicETH) Compare() uint64 { return binary.BigEndian.Uint64(h[20:28]) }

// PutAtomicETH writes the 28 bytes of an AtomicETH to b.
func PutAtomicETH(b []byte, va uint64, key RKey, swapAdd, compare uint64) {
	_ = b[AtomicETHLen-1]
	binary.BigEndian.PutUint64(b[0:8], va)
	binary.BigEndian.PutUint32(b[8:12], uint32(key))
	binary.BigEndian.PutUint64(b[12:20], swapAdd)
	binary.BigEndian.PutUint64(b[20:28], compare)
}

// AtomicAckETH carries the result of an atomic request.
type AtomicAckETH []byte

// Original returns the remote value from before the operation.
func (h AtomicAckETH) Original() uint64 { return binary.BigEndian.Uint64(h[0:8]) }

// PutAtomicAckETH writes the 8 bytes of an AtomicAckETH to b.
func PutAtomicAckETH(b []byte, v uint64) { binary.BigEndian.PutUint64(b[0:8], v) }

// ImmDt is the immediate data header.
type ImmDt []byte

// Imm returns the immediate value as a big-endian number. The C verbs API shows the same four bytes
// unswapped, as a __be32.
func (h ImmDt) Imm() uint32 { return binary.BigEndian.Uint32(h[0:4]) }

// PutImmDt writes the 4 bytes of immediate data to b.
func PutImmDt(b []byte, v uint32) { binary.BigEndian.PutUint32(b[0:4], v) }

// IETH is the invalidate extended transport header.
type IETH []byte

// RKey returns the key that the responder must invalidate.
func (h IETH) RKey() RKey { return RKey(binary.BigEndian.Uint32(h[0:4])) }

// PutIETH writes the 4 bytes of an IETH to b.
func PutIETH(b []byte, key RKey) { binary.BigEndian.PutUint32(b[0:4], uint32(key)) }

// DETH is the datagram extended transport header.
type DETH []byte

// QKey returns the Q_Key, which must equal the Q_Key of the destination QP.
func (h DETH) QKey() QKey { return QKey(binary.BigEndian.Uint32(h[0:4])) }

// SrcQP returns the QP that sent the datagram.
func (h DETH) SrcQP() QPN { return QPN(binary.BigEndian.Uint32(h[4:8]) & mask24) }

// PutDETH writes the 8 bytes of a DETH to b.
func PutDETH(b []byte, q QKey, src QPN) {
	_ = b[DETHLen-1]
	binary.BigEndian.PutUint32(b[0:4], uint32(q))
	binary.BigEndian.PutUint32(b[4:8], uint32(src&mask24))
}

// FETH is the flush extended transport header (IBA annex A19). It says what a FLUSH makes visible
// or persistent, and precedes the RETH.
type FETH []byte

// Placement returns the placement type: bit 0 is global visibility, bit 1 persistence.
func (h FETH) Placement() uint8 { return h[3] & 0x0f }

// Selectivity returns how much to flush: 0 for the range of the RETH, 1 for the whole region.
func (h FETH) Selectivity() uint8 { return h[3] >> 4 & 3 }

// PutFETH writes the 4 bytes of a FETH to b.
func PutFETH(b []byte, placement, selectivity uint8) {
	binary.BigEndian.PutUint32(b[0:4], uint32(selectivity&3)<<4|uint32(placement&0x0f))
}
