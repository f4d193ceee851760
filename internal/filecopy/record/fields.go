package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// ErrFormat means that a peer has sent bytes that are not valid in this protocol.
var ErrFormat = errors.New("invalid data from the peer")

func formatError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrFormat, fmt.Sprintf(format, args...))
}

// fields decodes the fields of a record or message one after the other. After a field that is not
// complete, all are zero and short is true.
type fields struct {
	data  []byte
	short bool
}

// take returns the next n bytes, without copying them.
func (f *fields) take(n int) []byte {
	if f.short || n < 0 || n > len(f.data) {
		f.short = true
		return nil
	}
	b := f.data[:n:n]
	f.data = f.data[n:]
	return b
}

func (f *fields) u8() uint8 {
	if b := f.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (f *fields) u16() uint16 {
	if b := f.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (f *fields) u32() uint32 {
	if b := f.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (f *fields) u64() uint64 {
	if b := f.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// number decodes an unsigned varint.
func (f *fields) number() uint64 {
	if f.short {
		return 0
	}
	v, n := binary.Uvarint(f.data)
	if n <= 0 {
		f.short = true
		return 0
	}
	f.data = f.data[n:]
	return v
}

// text decodes a string with its length as a varint. A string longer than limit is invalid.
func (f *fields) text(limit int) string {
	n := f.number()
	if n > uint64(limit) {
		f.short = true
		return ""
	}
	return string(f.take(int(n)))
}

// Attributes are those of a file or directory that a copy preserves.
type Attributes struct {
	Perm  uint16 // permission bits
	Mtime time.Time
}

// Limits of times, in seconds: years 1 to 9999.
const minTime, maxTime = -62135596800, 253402300799

func (f *fields) attributes() (a Attributes) {
	a.Perm = f.u16() & 0o777
	sec, nsec := int64(f.u64()), f.u32()
	a.Mtime = time.Unix(min(max(sec, minTime), maxTime), int64(nsec%1e9))
	return a
}

func appendAttributes(b []byte, a *Attributes) []byte {
	b = binary.BigEndian.AppendUint16(b, a.Perm)
	b = binary.BigEndian.AppendUint64(b, uint64(a.Mtime.Unix()))
	return binary.BigEndian.AppendUint32(b, uint32(a.Mtime.Nanosecond()))
}

// optional decodes attributes that may be missing: nil.
func (f *fields) optional(present bool) *Attributes {
	if !present {
		return nil
	}
	a := f.attributes()
	return &a
}

func appendOptional(b []byte, a *Attributes) []byte {
	if a == nil {
		return b
	}
	return appendAttributes(b, a)
}

// end returns an error if the fields were not complete or if something follows them.
func (f *fields) end(what string) error {
	if f.short || len(f.data) > 0 {
		return formatError("%s has the wrong length", what)
	}
	return nil
}

func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// cut shortens a text to limit bytes.
func cut(text string, limit int) string { return text[:min(len(text), limit)] }
