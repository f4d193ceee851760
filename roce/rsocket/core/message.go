package core

import "encoding/binary"

// A message is the immediate of an RDMA WRITE: its kind in the upper 3 bits, a value below.
const (
	kindShift = 29
	valueMask = 1<<kindShift - 1

	kindData    = 0 // value: bytes written into the target buffer
	kindGrant   = 4 // value: data messages that the peer may send, counted from the first one
	kindMap     = 6 // value: index of the entry of the map table that was written
	kindControl = 7 // value: one of the following

	controlDisconnect = 0 // the peer neither sends nor receives anymore
	controlKeepalive  = 1
	controlShutdown   = 2 // the peer sends no more data
)

func message(kind, value uint32) uint32 { return kind<<kindShift | value&valueMask }

// Lengths of the entries that a side writes into memory of the other, and the number of entries of
// the list.
const (
	entryLen    = 16
	mapEntryLen = 24
	listEntries = 2
)

// InlineLen is the maximum length of Write.Inline.
const InlineLen = mapEntryLen

// ListLen returns the bytes of memory that a list and a map table of the given number of entries
// take.
func ListLen(maps int) int { return listEntries*entryLen + maps*mapEntryLen }

// Memory is the memory that the peer writes its entries into: the list and then the map table. An
// MR of package roce is a Memory.
type Memory interface {
	// Load64 loads the 8 bytes at an offset in host byte order.
	Load64(off int) uint64
}

// load copies memory, whose length is a multiple of 8, to b.
func load(b []byte, m Memory, off int) {
	for i := 0; i < len(b); i += 8 {
		binary.NativeEndian.PutUint64(b[i:], m.Load64(off+i))
	}
}

// order is a byte order. Unlike those of encoding/binary it is no interface, through which buffers
// would escape to the heap.
type order bool

const (
	bigEndian    order = true
	littleEndian order = false // of the entries in local memory, as the local Hello says
)

func (o order) uint32(b []byte) uint32 {
	if o == bigEndian {
		return binary.BigEndian.Uint32(b)
	}
	return binary.LittleEndian.Uint32(b)
}

func (o order) uint64(b []byte) uint64 {
	if o == bigEndian {
		return binary.BigEndian.Uint64(b)
	}
	return binary.LittleEndian.Uint64(b)
}

func (o order) append32(b []byte, v uint32) []byte {
	if o == bigEndian {
		return binary.BigEndian.AppendUint32(b, v)
	}
	return binary.LittleEndian.AppendUint32(b, v)
}

func (o order) append64(b []byte, v uint64) []byte {
	if o == bigEndian {
		return binary.BigEndian.AppendUint64(b, v)
	}
	return binary.LittleEndian.AppendUint64(b, v)
}

// appendTo appends the 16 bytes of an entry.
func (u *Buffer) appendTo(b []byte, o order) []byte {
	b = o.append64(b, u.Addr)
	b = o.append32(b, u.Key)
	return o.append32(b, u.Len)
}

func parseBuffer(b []byte, o order) Buffer {
	return Buffer{Addr: o.uint64(b), Key: o.uint32(b[8:]), Len: o.uint32(b[12:])}
}

// Write is an RDMA WRITE that is due.
type Write struct {
	ID       uint64 // of the completion
	Signaled bool   // a completion is wanted
	HasImm   bool
	Imm      uint32
	Addr     uint64 // of the peer's memory; with Len 0 it means nothing
	Key      uint32
	Off      int // in the send buffer
	Len      int // bytes
	Inline   [InlineLen]byte
	IsInline bool // the Len bytes are those of Inline, not of the send buffer
}
