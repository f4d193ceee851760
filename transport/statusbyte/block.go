package statusbyte

import "encoding/binary"

// HeaderLen is the length of a block's header: device number (1 byte), packet number (2), flags
// (1), data length (4). Numbers are big endian.
const HeaderLen = 8

// FlagLast marks the last packet of a device's stream.
const FlagLast = 1 << 0

// The values of a status byte.
const (
	Empty       = 0
	HasData     = 1
	Unavailable = 2 // receive blocks only: the receiver keeps it
)

// header is the beginning of a block.
type header struct {
	device uint8
	packet uint16
	flags  uint8
	length uint32
}

// put writes the header to the first HeaderLen bytes of b.
func (h *header) put(b []byte) {
	_ = b[HeaderLen-1]
	b[0] = h.device
	binary.BigEndian.PutUint16(b[1:], h.packet)
	b[3] = h.flags
	binary.BigEndian.PutUint32(b[4:], h.length)
}

// parse reads a header.
func parse(b []byte) (h header) {
	_ = b[HeaderLen-1]
	return header{device: b[0], packet: binary.BigEndian.Uint16(b[1:]), flags: b[3],
		length: binary.BigEndian.Uint32(b[4:])}
}

// after returns how far packet number a is behind b in a stream that wraps around; negative if a
// comes before b.
func after(a, b uint16) int { return int(int16(a - b)) }
