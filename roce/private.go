package roce

import (
	"encoding/binary"
	"fmt"
	"math"
)

// EncodePrivateData prepends the length of data, one byte, for DecodePrivateData. The messages of
// the connection manager have private data of a fixed length and say nothing about how much of it
// was set, so a receiver cannot tell the zeros at the end of the data from padding. Use it if the
// length varies and both sides expect it; one byte less fits then, for example 55 in a request.
// Dial and the other calls return ErrPrivateData for data that is too long.
func EncodePrivateData(data []byte) []byte {
	return append([]byte{byte(min(len(data), math.MaxUint8))}, data...)
}

// DecodePrivateData returns the data that the peer passed to EncodePrivateData, a part of private.
// It returns an error that wraps ErrInvalid if private has another form.
func DecodePrivateData(private []byte) ([]byte, error) {
	if len(private) > 0 {
		if end := 1 + int(private[0]); end <= len(private) && padded(private, end) {
			return private[1:end], nil
		}
	}
	return nil, fmt.Errorf("%w: the private data is not what EncodePrivateData returns", ErrInvalid)
}

// padded reports whether b has only zeros from n on.
func padded(b []byte, n int) bool {
	for _, v := range b[n:] {
		if v != 0 {
			return false
		}
	}
	return true
}

// RemoteBufferLen is the number of bytes of the binary form of a RemoteBuffer.
const RemoteBufferLen = 20

// AppendBinary appends the binary form, which fits in private data: 8 bytes Addr, 8 bytes Len and 4
// bytes RKey, big-endian. It never returns an error.
func (r RemoteBuffer) AppendBinary(b []byte) ([]byte, error) {
	b = binary.BigEndian.AppendUint64(b, r.Addr)
	b = binary.BigEndian.AppendUint64(b, r.Len)
	return binary.BigEndian.AppendUint32(b, uint32(r.RKey)), nil
}

// MarshalBinary returns the binary form; see AppendBinary.
func (r RemoteBuffer) MarshalBinary() ([]byte, error) {
	return r.AppendBinary(make([]byte, 0, RemoteBufferLen))
}

// UnmarshalBinary reads the binary form. Zeros may follow it, as in received private data. It
// returns an error that wraps ErrInvalid, and leaves r unchanged, if b is shorter or contains
// something else, or if the buffer is empty or exceeds the address space.
func (r *RemoteBuffer) UnmarshalBinary(b []byte) error {
	if len(b) < RemoteBufferLen || !padded(b, RemoteBufferLen) {
		return fmt.Errorf("%w: %d bytes are not the binary form of a RemoteBuffer", ErrInvalid,
			len(b))
	}
	v := RemoteBuffer{
		Addr: binary.BigEndian.Uint64(b), Len: binary.BigEndian.Uint64(b[8:]),
		RKey: RKey(binary.BigEndian.Uint32(b[16:])),
	}
	if v.Len == 0 || v.Addr > math.MaxUint64-(v.Len-1) {
		return fmt.Errorf("%w: RemoteBuffer of %d bytes at %#x", ErrInvalid, v.Len, v.Addr)
	}
	*r = v
	return nil
}
