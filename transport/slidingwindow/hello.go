package slidingwindow

import (
	"encoding/binary"
	"fmt"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/blocks"
)

// Both sides agree on sizes as package blocks describes. The reply continues with stride (4 bytes),
// address (8) and R_Key (4), big endian.
const replyLen = blocks.SizesLen + 16

var protocol = blocks.Protocol{Magic: [4]byte{'G', 'X', 'S', 'W'}, ErrPeer: ErrPeer,
	ErrMismatch: ErrMismatch, Advice: "start both sides with the same sizes"}

// memory is what the sender must know about the receiver.
type memory struct {
	blocks.Sizes
	stride int
	addr   uint64
	rkey   roce.RKey
}

func (m *memory) put(b []byte) []byte {
	b = protocol.Put(b, m.Sizes)
	b = binary.BigEndian.AppendUint32(b, uint32(m.stride))
	b = binary.BigEndian.AppendUint64(b, m.addr)
	return binary.BigEndian.AppendUint32(b, uint32(m.rkey))
}

func parseMemory(b []byte) (m memory, err error) {
	if m.Sizes, err = protocol.Parse(b); err != nil || len(b) < replyLen {
		return m, ErrPeer
	}
	m.stride = int(binary.BigEndian.Uint32(b[12:]))
	m.addr = binary.BigEndian.Uint64(b[16:])
	m.rkey = roce.RKey(binary.BigEndian.Uint32(b[24:]))
	if m.stride < m.Size {
		return m, fmt.Errorf("%w: it offers %v with stride %d", ErrPeer, m.Sizes, m.stride)
	}
	return m, nil
}
