package statusbyte

import (
	"encoding/binary"
	"fmt"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/blocks"
)

// Both sides agree in the private data of the connection manager's messages. Numbers are big
// endian.
//
//	request:   "GXSB", version 1, 0, blocks (2), block size (4)
//	reply:     the same of the receiver, stride (4), data address (8), data R_Key (4),
//	           status R_Key (4), status address (8)
//	rejection: the same as in the request, of the receiver
//
// Zeros in the request accept what the receiver has.
const replyLen = 40

var protocol = blocks.Protocol{
	Magic: [4]byte{'G', 'X', 'S', 'B'}, ErrPeer: ErrPeer, ErrMismatch: ErrMismatch,
	Advice: "start both sides with the same sizes, or the sender without any",
}

// memory is what the sender must know about the receiver.
type memory struct {
	blocks.Sizes
	stride           int
	data, status     uint64
	dataKey, statKey roce.RKey
}

func (m *memory) put(b []byte) []byte {
	b = protocol.Put(b, m.Sizes)
	b = binary.BigEndian.AppendUint32(b, uint32(m.stride))
	b = binary.BigEndian.AppendUint64(b, m.data)
	b = binary.BigEndian.AppendUint32(b, uint32(m.dataKey))
	b = binary.BigEndian.AppendUint32(b, uint32(m.statKey))
	return binary.BigEndian.AppendUint64(b, m.status)
}

// parseMemory reads a reply and checks that its values are consistent.
func parseMemory(b []byte) (m memory, err error) {
	if m.Sizes, err = protocol.Parse(b); err != nil || len(b) < replyLen {
		return m, ErrPeer
	}
	m.stride = int(binary.BigEndian.Uint32(b[12:]))
	m.data = binary.BigEndian.Uint64(b[16:])
	m.dataKey = roce.RKey(binary.BigEndian.Uint32(b[24:]))
	m.statKey = roce.RKey(binary.BigEndian.Uint32(b[28:]))
	m.status = binary.BigEndian.Uint64(b[32:])
	c := Config{Blocks: m.Blocks, BlockSize: m.Size}
	if err := c.check(); err != nil || m.stride < HeaderLen+m.Size {
		return m, fmt.Errorf("%w: it offers %v with stride %d", ErrPeer, m.Sizes, m.stride)
	}
	return m, nil
}
