package abi

import "encoding/binary"

// Decoder reads the fields of a structure, in little endian. Beyond the end it returns zeros.
type Decoder struct {
	B []byte // not read yet
}

// Bytes reads n bytes. They are part of B, or zeros if B is shorter.
func (d *Decoder) Bytes(n int) []byte {
	if len(d.B) < n {
		d.B = nil
		return make([]byte, n)
	}
	v := d.B[:n]
	d.B = d.B[n:]
	return v
}

// U8 reads 1 byte.
func (d *Decoder) U8() uint8 { return d.Bytes(1)[0] }

// U16 reads 2 bytes.
func (d *Decoder) U16() uint16 { return binary.LittleEndian.Uint16(d.Bytes(2)) }

// U32 reads 4 bytes.
func (d *Decoder) U32() uint32 { return binary.LittleEndian.Uint32(d.Bytes(4)) }

// U64 reads 8 bytes.
func (d *Decoder) U64() uint64 { return binary.LittleEndian.Uint64(d.Bytes(8)) }

// Skip skips n bytes.
func (d *Decoder) Skip(n int) { d.Bytes(n) }

// Encoder appends the fields of a structure, in little endian.
type Encoder struct {
	B []byte // the structure
}

// Bytes appends bytes.
func (e *Encoder) Bytes(b []byte) { e.B = append(e.B, b...) }

// Zeros appends n zero bytes.
func (e *Encoder) Zeros(n int) { e.B = append(e.B, make([]byte, n)...) }

// U8 appends values of 1 byte.
func (e *Encoder) U8(vs ...uint8) { e.B = append(e.B, vs...) }

// U16 appends 2 bytes.
func (e *Encoder) U16(v uint16) { e.B = binary.LittleEndian.AppendUint16(e.B, v) }

// U32 appends values of 4 bytes.
func (e *Encoder) U32(vs ...uint32) {
	for _, v := range vs {
		e.B = binary.LittleEndian.AppendUint32(e.B, v)
	}
}

// U64 appends 8 bytes.
func (e *Encoder) U64(v uint64) { e.B = binary.LittleEndian.AppendUint64(e.B, v) }
