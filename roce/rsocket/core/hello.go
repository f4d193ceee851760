package core

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrProtocol means that the peer broke the protocol.
var ErrProtocol = errors.New("rsocket: the peer broke the protocol of rsockets")

// Limits of a Hello.
const (
	HelloLen   = 40 // bytes
	version    = 1
	MaxCredits = 0xfffe
	MaxMaps    = 128     // larger numbers have another encoding, which only librdmacm uses
	maxEntries = 1 << 16 // of the peer's list

	flagBigEndian = 1 << 0
	flagMaps      = 1 << 1

	flagLeaves = 1 << 0 // in byte 4, in which librdmacm has 0 and which it ignores
)

// Buffer is memory to which a side may write.
type Buffer struct {
	Addr uint64
	Key  uint32
	Len  uint32 // bytes
}

// Hello is what each side tells the other when they connect: as private data of the REQ and of the
// REP of the connection manager.
type Hello struct {
	BigEndian bool   // byte order of the entries that the peer writes into List
	Credits   uint16 // data messages that the peer may send first
	Maps      int    // entries of the map table, which follows List in memory
	List      Buffer // where the peer writes its grants; Len is the number of entries
	Ring      Buffer // the first target buffer for the peer's data
	// Leaves means that this side does not wait for the acknowledgment of its disconnect message
	// after it has received the peer's. librdmacm does.
	Leaves bool
}

// Append appends the HelloLen bytes of h.
func (h *Hello) Append(b []byte) []byte {
	flags := byte(flagMaps)
	if h.BigEndian {
		flags |= flagBigEndian
	}
	b = append(b, version, flags)
	b = binary.BigEndian.AppendUint16(b, h.Credits)
	var leaves byte
	if h.Leaves {
		leaves = flagLeaves
	}
	b = append(b, leaves, 0, 0, byte(h.Maps))
	b = h.List.appendTo(b, bigEndian)
	return h.Ring.appendTo(b, bigEndian)
}

// ParseHello decodes and checks a peer's Hello. Further bytes may follow it.
func ParseHello(b []byte) (Hello, error) {
	if len(b) < HelloLen || b[0] != version {
		return Hello{}, fmt.Errorf("%w: no connection data of version %d: "+
			"check that the program on this port uses rsockets", ErrProtocol, version)
	}
	h := Hello{
		BigEndian: b[1]&flagBigEndian != 0,
		Credits:   binary.BigEndian.Uint16(b[2:]),
		List:      parseBuffer(b[8:], bigEndian),
		Ring:      parseBuffer(b[24:], bigEndian),
		Leaves:    b[4]&flagLeaves != 0,
	}
	if b[1]&flagMaps != 0 {
		h.Maps = min(int(b[7]), MaxMaps)
	}
	switch {
	case h.Credits == 0:
		return Hello{}, fmt.Errorf("%w: it accepts no messages", ErrProtocol)
	case h.List.Len < listEntries || h.List.Len > maxEntries:
		return Hello{}, fmt.Errorf("%w: its list has %d entries", ErrProtocol, h.List.Len)
	case h.Ring.Len == 0:
		return Hello{}, fmt.Errorf("%w: its receive buffer is empty", ErrProtocol)
	}
	return h, nil
}
