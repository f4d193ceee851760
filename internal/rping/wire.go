package rping

import (
	"encoding/binary"

	"github.com/gorxe/gorxe/roce"
)

// DefaultPort is rping's.
const DefaultPort = 7174

// infoLen is the length of a message: address 8 bytes, R_Key 4, length 4, each big endian.
const infoLen = 16

// Sizes of the text that goes to and fro, bytes.
const (
	DefaultSize = 64
	MaxSize     = 64 << 10
)

// buffer is a piece of the peer's memory, as a message names it.
type buffer struct {
	addr uint64
	key  roce.RKey
	size uint32
}

func (b buffer) put(p []byte) {
	binary.BigEndian.PutUint64(p, b.addr)
	binary.BigEndian.PutUint32(p[8:], uint32(b.key))
	binary.BigEndian.PutUint32(p[12:], b.size)
}

func parse(p []byte) buffer {
	return buffer{binary.BigEndian.Uint64(p), roce.RKey(binary.BigEndian.Uint32(p[8:])), binary.BigEndian.Uint32(p[12:])}
}
