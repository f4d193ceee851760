package flow

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/gorxe/gorxe/roce"
)

// Both sides agree in the private data of the connection manager's messages. Numbers are big
// endian.
//
//	request:   "GXFL", version 1, class, 0 (2 bytes)
//	reply:     the same, slots (4 bytes), size (4), stride (4), address (8), R_Key (4)
//	rejection: as a reply without address and key
const (
	helloLen   = 8
	replyLen   = 32
	helloMagic = "GXFL"
	version    = 1
)

// memory is what a sender must know about its receiver.
type memory struct {
	slots, size, stride int
	addr                uint64
	rkey                roce.RKey
}

func putHello(class int) []byte { return append([]byte(helloMagic), version, byte(class), 0, 0) }

// parseHello returns the class of a request or reply.
func parseHello(b []byte) (class int, err error) {
	if len(b) < helloLen || string(b[:4]) != helloMagic || b[4] != version || b[5] > MaxClass {
		return 0, ErrPeer
	}
	return int(b[5]), nil
}

func (m *memory) put(class int) []byte {
	b := putHello(class)
	for _, n := range []int{m.slots, m.size, m.stride} {
		b = binary.BigEndian.AppendUint32(b, uint32(n))
	}
	b = binary.BigEndian.AppendUint64(b, m.addr)
	return binary.BigEndian.AppendUint32(b, uint32(m.rkey))
}

func parseReply(b []byte) (m memory, err error) {
	if _, err := parseHello(b); err != nil || len(b) < replyLen {
		return m, ErrPeer
	}
	m.slots = int(binary.BigEndian.Uint32(b[8:]))
	m.size = int(binary.BigEndian.Uint32(b[12:]))
	m.stride = int(binary.BigEndian.Uint32(b[16:]))
	m.addr = binary.BigEndian.Uint64(b[20:])
	m.rkey = roce.RKey(binary.BigEndian.Uint32(b[28:]))
	c := ChannelConfig{Size: m.size, Slots: m.slots}
	if m.slots == 0 || c.check() != nil || m.stride < dataOffset+m.size {
		return m, fmt.Errorf("%w: it offers %d slots of %d bytes with stride %d", ErrPeer, m.slots,
			m.size, m.stride)
	}
	return m, nil
}

// refused adds advice to the rejection of a request.
func refused(err error) error {
	var r *roce.RejectError
	if errors.As(err, &r) && r.Reason == roce.RejectConsumer {
		return fmt.Errorf("%w: %w", ErrPeer, err)
	}
	return err
}

// header is in front of the data of each message. Numbers are big endian: sequence number (8
// bytes), time (8), length (4).
type header struct {
	seq  uint64
	time int64
	n    int
}

func (h *header) put(b []byte) {
	binary.BigEndian.PutUint64(b, h.seq)
	binary.BigEndian.PutUint64(b[8:], uint64(h.time))
	binary.BigEndian.PutUint32(b[16:], uint32(h.n))
}

func parseHeader(b []byte) header {
	return header{seq: binary.BigEndian.Uint64(b), time: int64(binary.BigEndian.Uint64(b[8:])),
		n: int(binary.BigEndian.Uint32(b[16:]))}
}
