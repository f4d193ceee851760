package nldev

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// header is struct nlmsghdr.
type header struct {
	length uint32
	kind   uint16
	flags  uint16
	seq    uint32
	pid    uint32
}

const (
	headerSize = 16
	attrSize   = 4 // header of an attribute
	align      = 4
	typeMask   = 0x3fff // type of an attribute, without its flags
)

var order = binary.NativeEndian

// parseHeader decodes the header of the first message in b.
func parseHeader(b []byte) (h header, ok bool) {
	if len(b) < headerSize {
		return h, false
	}
	h = header{order.Uint32(b), order.Uint16(b[4:]), order.Uint16(b[6:]), order.Uint32(b[8:]),
		order.Uint32(b[12:])}
	return h, h.length >= headerSize && int64(h.length) <= int64(len(b))
}

// attrs decodes attributes without nesting. It ignores what follows a malformed attribute.
func attrs(b []byte) map[uint16][]byte {
	m := map[uint16][]byte{}
	for len(b) >= attrSize {
		n := int(order.Uint16(b))
		if n < attrSize || n > len(b) {
			break
		}
		m[order.Uint16(b[2:])&typeMask] = b[attrSize:n]
		b = b[min(len(b), aligned(n)):]
	}
	return m
}

func aligned(n int) int { return (n + align - 1) &^ (align - 1) }

// message builds a message.
type message struct{ b []byte }

// newMessage starts a message.
func newMessage(h header) *message {
	b := make([]byte, headerSize, 256)
	order.PutUint16(b[4:], h.kind)
	order.PutUint16(b[6:], h.flags)
	order.PutUint32(b[8:], h.seq)
	order.PutUint32(b[12:], h.pid)
	return &message{b}
}

// bytes returns the message with its length.
func (m *message) bytes() []byte {
	order.PutUint32(m.b, uint32(len(m.b)))
	return m.b
}

func (m *message) raw(kind uint16, data []byte) {
	m.b = order.AppendUint16(m.b, uint16(attrSize+len(data)))
	m.b = order.AppendUint16(m.b, kind)
	m.b = append(m.b, data...)
	m.b = append(m.b, make([]byte, aligned(len(m.b))-len(m.b))...)
}

func (m *message) u8(kind uint16, v uint8) { m.raw(kind, []byte{v}) }

func (m *message) u32(kind uint16, v uint32) { m.raw(kind, order.AppendUint32(nil, v)) }

func (m *message) u64(kind uint16, v uint64) { m.raw(kind, order.AppendUint64(nil, v)) }

func (m *message) text(kind uint16, s string) { m.raw(kind, append([]byte(s), 0)) }

// nested adds an attribute that contains those that f adds.
func (m *message) nested(kind uint16, f func()) {
	at := len(m.b)
	m.b = append(m.b, make([]byte, attrSize)...)
	f()
	order.PutUint16(m.b[at:], uint16(len(m.b)-at))
	order.PutUint16(m.b[at+2:], kind|unix.NLA_F_NESTED)
}
