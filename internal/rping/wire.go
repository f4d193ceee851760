package rping

import (
	"encoding/binary"

	"github.com/gorxe/gorxe/roce"
)

// DefaultPort is the RDMA port of rping.
const DefaultPort = 7174

// infoLen is the length of a message: an address of 8 bytes, an R_Key of 4 bytes and a length of
// 4 bytes, all big endian.
const infoLen = 16

// MaxSize is the largest size of a text in bytes.
const MaxSize = 64 << 10

// buffer is a buffer of the peer that a message announces.
type buffer struct {
	addr uint64
	key  roce.RKey
	size uint32
}

func (b buffer) marshal() []byte {
	p := make([]byte, 0, infoLen)
	p = binary.BigEndian.AppendUint64(p, b.addr)
	p = binary.BigEndian.AppendUint32(p, uint32(b.key))
	return binary.BigEndian.AppendUint32(p, b.size)
}

func parse(p []byte) buffer {
	return buffer{
		binary.BigEndian.Uint64(p), roce.RKey(binary.BigEndian.Uint32(p[8:])),
		binary.BigEndian.Uint32(p[12:]),
	}
}
