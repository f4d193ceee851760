package pcap

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"time"
)

// A pcapng file consists of blocks. Each begins with its type and its length, and ends with its
// length once more. The first block of a section has the byte order. Packets name an interface,
// which a block of the section has described before.

// Types of blocks. Others are skipped.
const (
	blockInterface = 1
	blockOldPacket = 2 // obsolete
	blockSimple    = 3
	blockPacket    = 6
)

const (
	byteOrderMagic = 0x1a2b3c4d

	optName       = 2  // of an interface
	optResolution = 9  // of an interface: of its time stamps
	optOffset     = 14 // of an interface: seconds to be added to its time stamps

	maxInterfaces = 1 << 12 // of a section
)

// iface is an interface of a section.
type iface struct {
	link   linkType
	snap   uint32 // 0: no limit
	offset int64  // s
	units  uint64 // per second
}

// startNG reads the first block.
func (p *Reader) startNG() error {
	p.next = p.nextNG
	return p.section()
}

// nextNG reads blocks up to the next frame.
func (p *Reader) nextNG() ([]byte, Info, error) {
	for {
		head, err := p.r.Peek(8)
		if len(head) == 0 {
			return nil, Info{}, err // io.EOF after the last block
		}
		if err != nil {
			return nil, Info{}, within(err)
		}
		kind, n := p.order.Uint32(head), p.order.Uint32(head[4:])
		if kind == blockHeader { // the same in both byte orders
			if err := p.section(); err != nil {
				return nil, Info{}, err
			}
			continue
		}
		b, err := p.block(n)
		if err != nil {
			return nil, Info{}, err
		}
		switch kind {
		case blockInterface:
			if err := p.addInterface(b); err != nil {
				return nil, Info{}, err
			}
		case blockOldPacket, blockSimple, blockPacket:
			return p.frame(kind, b)
		}
	}
}

// section reads the block at the start of a section.
func (p *Reader) section() error {
	head, err := p.r.Peek(12)
	if err != nil {
		return within(err)
	}
	switch {
	case binary.LittleEndian.Uint32(head[8:]) == byteOrderMagic:
		p.order = binary.LittleEndian
	case binary.BigEndian.Uint32(head[8:]) == byteOrderMagic:
		p.order = binary.BigEndian
	default:
		return fmt.Errorf("%w: no byte order", ErrCorrupt)
	}
	b, err := p.block(p.order.Uint32(head[4:]))
	if err != nil {
		return err
	}
	if len(b) < 16 {
		return fmt.Errorf("%w: short section header", ErrCorrupt)
	}
	if major := p.order.Uint16(b[4:]); major != 1 {
		return fmt.Errorf("version %d of pcapng is not supported", major)
	}
	p.ifaces = p.ifaces[:0]
	return nil
}

// block reads a block of n bytes and returns its body.
func (p *Reader) block(n uint32) ([]byte, error) {
	if n < 12 || n%4 != 0 {
		return nil, fmt.Errorf("%w: a block of %d bytes", ErrCorrupt, n)
	}
	b, err := p.read(int(n))
	if err != nil {
		return nil, within(err)
	}
	if p.order.Uint32(b[n-4:]) != n {
		return nil, fmt.Errorf("%w: the two lengths of a block differ", ErrCorrupt)
	}
	return b[8 : n-4], nil
}

// addInterface adds the interface that a block describes.
func (p *Reader) addInterface(b []byte) error {
	if len(b) < 8 || len(p.ifaces) == maxInterfaces {
		return fmt.Errorf("%w: short description of an interface, or more than %d interfaces",
			ErrCorrupt, maxInterfaces)
	}
	f := iface{link: linkType(p.order.Uint16(b)), snap: p.order.Uint32(b[4:]), units: 1e6}
	for b = b[8:]; len(b) >= 4; {
		code, n := p.order.Uint16(b), int(p.order.Uint16(b[2:]))
		padded := 4 + (n+3)&^3
		if code == 0 || padded > len(b) {
			break
		}
		switch v := b[4 : 4+n]; {
		case code == optResolution && n == 1:
			if f.units = unitsOf(v[0]); f.units == 0 {
				return fmt.Errorf("%w: resolution %#x of time stamps", ErrCorrupt, v[0])
			}
		case code == optOffset && n == 8:
			f.offset = int64(p.order.Uint64(v))
		}
		b = b[padded:]
	}
	p.ifaces = append(p.ifaces, f)
	return nil
}

// unitsOf returns the units per second of a resolution: a negative power of 10, or of 2 if the
// highest bit is set. It returns 0 if that does not fit into 64 bits.
func unitsOf(resolution byte) uint64 {
	exp := int(resolution & 0x7f)
	switch {
	case resolution&0x80 == 0 && exp <= 19:
		return uint64(math.Pow10(exp))
	case resolution&0x80 != 0 && exp <= 63:
		return 1 << exp
	}
	return 0
}

// frame returns the frame in the body of a block.
func (p *Reader) frame(kind uint32, b []byte) ([]byte, Info, error) {
	const packetLen, simpleLen = 20, 4 // before the bytes of the frame
	if len(b) < simpleLen || kind != blockSimple && len(b) < packetLen {
		return nil, Info{}, fmt.Errorf("%w: short packet block", ErrCorrupt)
	}
	id := uint32(0)
	switch kind {
	case blockPacket:
		id = p.order.Uint32(b)
	case blockOldPacket:
		id = uint32(p.order.Uint16(b))
	}
	if uint64(id) >= uint64(len(p.ifaces)) {
		return nil, Info{}, fmt.Errorf("%w: a packet of the unknown interface %d", ErrCorrupt, id)
	}
	f := &p.ifaces[id]
	if err := f.link.check(); err != nil {
		return nil, Info{}, err
	}
	var info Info
	var captured uint32
	if kind == blockSimple { // it has no time stamp
		captured, b = p.order.Uint32(b), b[simpleLen:]
		info.Length = int(captured)
		if f.snap > 0 {
			captured = min(captured, f.snap)
		}
	} else {
		info.Time = f.time(p.order.Uint32(b[4:]), p.order.Uint32(b[8:]))
		captured, info.Length = p.order.Uint32(b[12:]), int(p.order.Uint32(b[16:]))
		b = b[packetLen:]
	}
	if uint64(captured) > uint64(len(b)) {
		return nil, Info{}, fmt.Errorf("%w: a packet is longer than its block", ErrCorrupt)
	}
	return b[:captured], info, nil
}

// time returns the time of a time stamp, whose upper and lower half are given.
func (f *iface) time(high, low uint32) time.Time {
	stamp := uint64(high)<<32 | uint64(low)
	hi, lo := bits.Mul64(stamp%f.units, 1e9)
	ns, _ := bits.Div64(hi, lo, f.units) // less than 1e9
	return time.Unix(f.offset+int64(stamp/f.units), int64(ns))
}
