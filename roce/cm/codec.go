package cm

import "encoding/binary"

// coder copies the fields of a message from a MAD to a struct, or back if write is set. So one
// description of a message serves both directions. Offsets count from the end of the MAD header, as
// in the tables of the architecture. They are constants and lie within the MAD.
type coder struct {
	m     *MAD
	write bool
}

func (c coder) at(off int) []byte { return c.m[MADHeaderLen+off:] }

// bits copies width bits, shifted left by shift within the byte.
func (c coder) bits(off int, shift, width uint8, p *uint8) {
	b, mask := &c.m[MADHeaderLen+off], uint8(1)<<width-1
	if c.write {
		*b = *b&^(mask<<shift) | *p&mask<<shift
	} else {
		*p = *b >> shift & mask
	}
}

func (c coder) flag(off int, bit uint8, p *bool) {
	v := uint8(0)
	if *p {
		v = 1
	}
	c.bits(off, bit, 1, &v)
	*p = v != 0
}

func (c coder) u8(off int, p *uint8) { c.bits(off, 0, 8, p) }

func (c coder) u16(off int, p *uint16) {
	if c.write {
		binary.BigEndian.PutUint16(c.at(off), *p)
	} else {
		*p = binary.BigEndian.Uint16(c.at(off))
	}
}

// u20 copies the 20 bits of a flow label. The other 12 bits are not changed.
func (c coder) u20(off int, p *uint32) {
	b := c.at(off)
	if c.write {
		b[0], b[1], b[2] = byte(*p>>12), byte(*p>>4), b[2]&0x0f|byte(*p<<4)
	} else {
		*p = uint32(b[0])<<12 | uint32(b[1])<<4 | uint32(b[2])>>4
	}
}

func (c coder) u24(off int, p *uint32) {
	b := c.at(off)
	if c.write {
		b[0], b[1], b[2] = byte(*p>>16), byte(*p>>8), byte(*p)
	} else {
		*p = uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2])
	}
}

func (c coder) u32(off int, p *uint32) {
	if c.write {
		binary.BigEndian.PutUint32(c.at(off), *p)
	} else {
		*p = binary.BigEndian.Uint32(c.at(off))
	}
}

func (c coder) u64(off int, p *uint64) {
	if c.write {
		binary.BigEndian.PutUint64(c.at(off), *p)
	} else {
		*p = binary.BigEndian.Uint64(c.at(off))
	}
}

func (c coder) bytes(off int, p []byte) {
	if c.write {
		copy(c.at(off), p)
	} else {
		copy(p, c.at(off))
	}
}

func (c coder) ids(local, remote *CommID) {
	c.u32(0, (*uint32)(local))
	c.u32(4, (*uint32)(remote))
}
