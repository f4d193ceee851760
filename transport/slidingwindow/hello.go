package slidingwindow

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/gorxe/gorxe/roce"
)

// Private data of the connection manager's messages, big endian: "GXSW", version 1, 0, blocks (2), block size (4); in the
// reply stride (4), address (8) and R_Key (4) follow.
const (
	version    = 1
	requestLen = 12
	replyLen   = 28
)

var magic = [4]byte{'G', 'X', 'S', 'W'}

type sizes struct{ blocks, size int }

func (s sizes) String() string { return fmt.Sprintf("%d blocks of %d bytes", s.blocks, s.size) }

func (s sizes) put(b []byte) []byte {
	b = append(b, magic[:]...)
	b = append(b, version, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(s.blocks))
	return binary.BigEndian.AppendUint32(b, uint32(s.size))
}

func parseSizes(b []byte) (sizes, error) {
	if len(b) < requestLen || [4]byte(b[:4]) != magic || b[4] != version {
		return sizes{}, ErrPeer
	}
	return sizes{blocks: int(binary.BigEndian.Uint16(b[6:])), size: int(binary.BigEndian.Uint32(b[8:]))}, nil
}

// memory is what the sender has to know of the receiver.
type memory struct {
	sizes
	stride int
	addr   uint64
	rkey   roce.RKey
}

func (m *memory) put(b []byte) []byte {
	b = m.sizes.put(b)
	b = binary.BigEndian.AppendUint32(b, uint32(m.stride))
	b = binary.BigEndian.AppendUint64(b, m.addr)
	return binary.BigEndian.AppendUint32(b, uint32(m.rkey))
}

func parseMemory(b []byte) (m memory, err error) {
	if m.sizes, err = parseSizes(b); err != nil || len(b) < replyLen {
		return m, ErrPeer
	}
	m.stride = int(binary.BigEndian.Uint32(b[12:]))
	m.addr = binary.BigEndian.Uint64(b[16:])
	m.rkey = roce.RKey(binary.BigEndian.Uint32(b[24:]))
	if m.stride < m.size {
		return m, fmt.Errorf("%w: it offers %v, %d bytes apart", ErrPeer, m.sizes, m.stride)
	}
	return m, nil
}

func agree(have, want sizes) error {
	if have == want {
		return nil
	}
	return fmt.Errorf("%w: the receiver has %v, the sender wants %v: start both with the same numbers", ErrMismatch, have, want)
}

// refused makes the receiver's refusal the sender's error.
func refused(err error, want sizes) error {
	var r *roce.RejectError
	if errors.As(err, &r) {
		if have, e := parseSizes(r.PrivateData); e == nil && have != want {
			return agree(have, want)
		}
	}
	return err
}
