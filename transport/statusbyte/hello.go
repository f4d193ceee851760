package statusbyte

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/gorxe/gorxe/roce"
)

// The two ends agree in the private data of the connection manager's messages. All numbers are big endian.
//
//	request:  "GXSB", version 1, 0, blocks (2), block size (4)
//	reply:    the same of the receiver, stride (4), data address (8), data R_Key (4), status R_Key (4), status address (8)
//	refusal:  the same as in the request, of the receiver
//
// Zeros in the request ask for whatever the receiver has.
const (
	version    = 1
	requestLen = 12
	replyLen   = 40
)

var magic = [4]byte{'G', 'X', 'S', 'B'}

// sizes are what both ends have to have in common.
type sizes struct{ blocks, size int }

// String leaves out what is 0, and so of no matter.
func (s sizes) String() string {
	switch {
	case s.size == 0:
		return fmt.Sprintf("%d blocks", s.blocks)
	case s.blocks == 0:
		return fmt.Sprintf("blocks of %d bytes", s.size)
	}
	return fmt.Sprintf("%d blocks of %d bytes", s.blocks, s.size)
}

func (s sizes) put(b []byte) []byte {
	b = append(b, magic[:]...)
	b = append(b, version, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(s.blocks))
	return binary.BigEndian.AppendUint32(b, uint32(s.size))
}

// parseSizes reads a request, or what a reply or refusal begins with.
func parseSizes(b []byte) (sizes, error) {
	if len(b) < requestLen || [4]byte(b[:4]) != magic || b[4] != version {
		return sizes{}, ErrPeer
	}
	return sizes{blocks: int(binary.BigEndian.Uint16(b[6:])), size: int(binary.BigEndian.Uint32(b[8:]))}, nil
}

// memory is what the sender has to know of the receiver.
type memory struct {
	sizes
	stride           int
	data, status     uint64
	dataKey, statKey roce.RKey
}

func (m *memory) put(b []byte) []byte {
	b = m.sizes.put(b)
	b = binary.BigEndian.AppendUint32(b, uint32(m.stride))
	b = binary.BigEndian.AppendUint64(b, m.data)
	b = binary.BigEndian.AppendUint32(b, uint32(m.dataKey))
	b = binary.BigEndian.AppendUint32(b, uint32(m.statKey))
	return binary.BigEndian.AppendUint64(b, m.status)
}

// parseMemory reads a reply. What it says has to fit together.
func parseMemory(b []byte) (m memory, err error) {
	if m.sizes, err = parseSizes(b); err != nil || len(b) < replyLen {
		return m, ErrPeer
	}
	m.stride = int(binary.BigEndian.Uint32(b[12:]))
	m.data = binary.BigEndian.Uint64(b[16:])
	m.dataKey = roce.RKey(binary.BigEndian.Uint32(b[24:]))
	m.statKey = roce.RKey(binary.BigEndian.Uint32(b[28:]))
	m.status = binary.BigEndian.Uint64(b[32:])
	c := Config{Blocks: m.blocks, BlockSize: m.size}
	if err := c.check(); err != nil || m.stride < HeaderLen+m.size {
		return m, fmt.Errorf("%w: it offers %v, %d bytes apart", ErrPeer, m.sizes, m.stride)
	}
	return m, nil
}

// agree tells whether a sender's wish is what the receiver has.
func (have sizes) agree(want sizes) error {
	if (want.blocks == 0 || want.blocks == have.blocks) && (want.size == 0 || want.size == have.size) {
		return nil
	}
	return fmt.Errorf("%w: the receiver has %v, the sender wants %v: start both with the same numbers, or the sender with none", ErrMismatch, have, want)
}

// refused makes the receiver's refusal the sender's error.
func refused(err error, want sizes) error {
	var r *roce.RejectError
	if !errors.As(err, &r) {
		return err
	}
	have, e := parseSizes(r.PrivateData)
	if e != nil {
		return err
	}
	if e := have.agree(want); e != nil {
		return e
	}
	return err
}
