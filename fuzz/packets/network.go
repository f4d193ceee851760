package packets

import (
	"encoding/binary"
	"slices"

	"github.com/gorxe/gorxe/bth"
)

const (
	etherLen = 14
	ipv4Len  = 20
	ipv6Len  = 40
	udpLen   = 8
	// Protocol numbers of IPv6 extension headers.
	hopByHop, routing, fragment, noNext, destination = 0, 43, 44, 59, 60
)

// ipAt returns the offset of the IP header in a frame whose headers have n bytes.
func ipAt(b []byte, n int) int {
	if at := n - udpLen - ipv6Len; at >= etherLen && b[at]>>4 == 6 {
		return at
	}
	return n - udpLen - ipv4Len
}

// setLengths makes the IP and UDP lengths and the IPv4 checksum agree with the frame. It sets no
// UDP checksum.
func setLengths(b []byte, n int) {
	at := ipAt(b, n)
	if b[at]>>4 == 6 {
		binary.BigEndian.PutUint16(b[at+4:], uint16(len(b)-at-ipv6Len))
	} else {
		binary.BigEndian.PutUint16(b[at+2:], uint16(len(b)-at))
		sumIPv4(b[at:])
	}
	binary.BigEndian.PutUint16(b[n-4:], uint16(len(b)-n+udpLen))
}

// sumIPv4 sets the checksum of the header at the start of b.
func sumIPv4(b []byte) {
	h := b[:int(b[0]&15)*4]
	h[10], h[11] = 0, 0
	sum := uint32(0)
	for i := 0; i < len(h); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(h[10:], ^uint16(sum))
}

// udpLength are frames whose IP and UDP lengths disagree, or are too small.
func udpLength(g *Generator, emit func([]byte)) {
	p := g.begin(g.request())
	p.sized(g.r.IntN(64))
	p.next = g.t.PSN
	b, n, _ := g.whole()
	v := pick(g, 0, 1, 7, 8, 11, 12, 20, uint16(len(b)), uint16(len(b)-n+udpLen+4), 0xffff)
	if g.r.IntN(2) == 0 {
		binary.BigEndian.PutUint16(b[n-4:], v)
		g.note("UDP length %d", v)
	} else {
		at := ipAt(b, n)
		if b[at]>>4 == 6 {
			binary.BigEndian.PutUint16(b[at+4:], v)
		} else {
			binary.BigEndian.PutUint16(b[at+2:], v)
			sumIPv4(b[at:])
		}
		g.note("IP length %d", v)
	}
	emit(b)
}

// fragments cuts a valid packet into fragments, of which some are missing, overlap or come late.
func fragments(g *Generator, emit func([]byte)) {
	p := g.begin(g.request())
	p.sized(min(512, int(g.t.MTU)))
	b, n, _ := g.whole()
	at := ipAt(b, n)
	six := b[at]>>4 == 6
	head := ipv4Len
	if six {
		head = ipv6Len
	}
	data := slices.Clone(b[at+head:])
	cut := 8 * (1 + g.r.IntN(max(1, len(data)/8-1)))
	id := g.r.Uint32()
	parts := [][2]int{{0, cut}, {cut, len(data)}}
	switch g.r.IntN(4) {
	case 0:
		parts[0], parts[1] = parts[1], parts[0]
	case 1:
		parts = parts[:1]
	case 2:
		parts = parts[1:]
	case 3:
		parts[1][0] = max(8, cut-8)
	}
	g.note("%d fragments of %d bytes, cut at %d", len(parts), len(data), cut)
	for _, part := range parts {
		more := uint16(0)
		if part[1] < len(data) {
			more = 1
		}
		f := slices.Clone(b[:at+head])
		offset := uint16(part[0] / 8)
		if six {
			f = append(f, f[at+6], 0, 0, 0)
			binary.BigEndian.PutUint16(f[len(f)-2:], offset<<3|more)
			f = binary.BigEndian.AppendUint32(f, id)
			f[at+6] = fragment
		} else {
			binary.BigEndian.PutUint16(f[at+4:], uint16(id))
			binary.BigEndian.PutUint16(f[at+6:], more<<13|offset)
		}
		f = append(f, data[part[0]:part[1]]...)
		if six {
			binary.BigEndian.PutUint16(f[at+4:], uint16(len(f)-at-ipv6Len))
		} else {
			binary.BigEndian.PutUint16(f[at+2:], uint16(len(f)-at))
			sumIPv4(f[at:])
		}
		emit(f)
	}
}

// extensionHeaders puts IPv4 options or IPv6 extension headers in front of UDP.
func extensionHeaders(g *Generator, emit func([]byte)) {
	p := g.begin(g.request())
	p.sized(g.r.IntN(64))
	b, n, _ := g.whole()
	at := ipAt(b, n)
	if b[at]>>4 != 6 {
		words := 1 + g.r.IntN(10)
		f := slices.Clone(b[:at+ipv4Len])
		for range 4 * words {
			f = append(f, byte(pick(g, 1, 1, 1, 0, 7, 68, int(g.r.Uint32()))))
		}
		f = append(f, b[at+ipv4Len:]...)
		f[at] = 4<<4 | byte(5+words)
		if g.r.IntN(8) == 0 {
			f[at] = 4<<4 | byte(g.r.IntN(16))
		}
		binary.BigEndian.PutUint16(f[at+2:], uint16(len(f)-at))
		if ihl := int(f[at]&15) * 4; ihl >= ipv4Len && at+ihl <= len(f) {
			sumIPv4(f[at:])
		}
		g.note("%d bytes of IP options", 4*words)
		emit(f)
		return
	}
	f := slices.Clone(b[:at+ipv6Len])
	link := at + 6
	headers := 1 + g.r.IntN(6)
	for range headers {
		next := f[link]
		f[link] = byte(pick(g, hopByHop, routing, destination, fragment, noNext,
			int(g.r.Uint32()&0xff)))
		link = len(f)
		f = append(f, next, byte(pick(g, 0, 0, 0, 1, 255)), byte(g.r.Uint32()), 0, 0, 0, 0, 0)
	}
	f = append(f, b[at+ipv6Len:]...)
	binary.BigEndian.PutUint16(f[at+4:], uint16(len(f)-at-ipv6Len))
	g.note("%d extension headers", headers)
	emit(f)
}

// vlanTags puts priority tags, tags of other VLANs and double tags in front of IP.
func vlanTags(g *Generator, emit func([]byte)) {
	p := g.begin(g.request())
	p.sized(g.r.IntN(64))
	b, _, _ := g.whole()
	f := slices.Clone(b[:etherLen-2])
	tags := 1 + g.r.IntN(3)
	for range tags {
		f = binary.BigEndian.AppendUint16(f, pick[uint16](g, 0x8100, 0x88a8))
		f = binary.BigEndian.AppendUint16(f, pick[uint16](g, 0, 1, 0xfff, uint16(g.r.Uint32())))
	}
	g.note("%d VLAN tags", tags)
	emit(append(f, b[etherLen-2:]...))
}

// Values of a MAD header (IBA 13.4.2).
const (
	madLen     = 256
	madBase    = 1
	madClassCM = 7
	madCMClass = 2 // class version of CM
	madSend    = 3 // method
)

// mad makes a packet to QP1 with a MAD of n bytes. edit changes the MAD.
func (g *Generator) mad(n int, emit func([]byte), edit func(m []byte)) {
	p := g.begin(bth.UDSendOnly)
	p.f.DestQP, p.qkey, p.srcQPN = bth.QPNGSI, bth.QKeyGSI, bth.QPNGSI
	p.next = g.t.PSN
	p.sized(n)
	at := int(p.info.HeaderLen)
	g.end(emit, func(b []byte) {
		m := b[at : at+n]
		for i := range m {
			m[i] = byte(g.r.Uint32())
		}
		if n < 24 {
			return
		}
		copy(m, []byte{madBase, madClassCM, madCMClass, madSend, 0, 0, 0, 0})
		// the attribute of a CM message, 0x10 (REQ) to 0x1a (APR); 0x17 and up are SIDR and LAP
		binary.BigEndian.PutUint16(m[16:], 0x10+uint16(g.r.IntN(11)))
		binary.BigEndian.PutUint32(m[20:], 0)
		edit(m)
	})
}

func madHeader(g *Generator, emit func([]byte)) {
	g.mad(madLen, emit, func(m []byte) {
		at := g.r.IntN(8)
		m[at] = pick(g, 0, 1, 0x81, 0xff, byte(g.r.Uint32()))
		g.note("byte %d of the MAD is %#x", at, m[at])
		if g.r.IntN(4) == 0 {
			binary.BigEndian.PutUint16(m[16:], uint16(g.r.Uint32()))
		}
	})
}

func madLength(g *Generator, emit func([]byte)) {
	n := pick(g, 0, 1, 23, 24, 25, 64, madLen-1, madLen+1, madLen+4, 512, g.r.IntN(madLen))
	g.note("MAD of %d bytes", n)
	g.mad(n, emit, func([]byte) {})
}

// madFields are CM messages of the right form with random contents. Some fields are 0, and most
// REQs ask for an RC or UC connection over RoCE.
func madFields(g *Generator, emit func([]byte)) {
	for range 1 + g.r.IntN(3) {
		g.mad(madLen, emit, func(m []byte) {
			for range g.r.IntN(8) {
				at := 24 + g.r.IntN(len(m)-24)
				clear(m[at:min(len(m), at+g.r.IntN(32))])
			}
			g.note("attribute %#x", binary.BigEndian.Uint16(m[16:]))
		})
	}
}
