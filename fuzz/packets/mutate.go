package packets

import (
	"encoding/binary"
	"math"

	"github.com/gorxe/gorxe/bth"
)

// mutations are the errors of packets. Each changes the packet before it is written, so lengths and
// the ICRC stay correct unless they are the error.
var mutations = []func(*Generator, *packet){
	opcodeAny, opcodeNear, psnNear, psnAny, qpn, padCount, version, pkey, address, addressWrap,
	key, dmaLength, payloadLength, truncated, longer, killer, qkey, otherRegion,
}

func (g *Generator) mutate() { mutations[g.r.IntN(len(mutations))](g, &g.pkt) }

// setOpcode changes the opcode only.
func (g *Generator) setOpcode(p *packet, o bth.Opcode) {
	g.note("opcode %#02x instead", uint8(o))
	p.f.Opcode, p.info = o, o.Info()
}

func opcodeAny(g *Generator, p *packet) { g.setOpcode(p, bth.Opcode(g.r.Uint32())) }

// opcodeNear draws another opcode of the same transport: MIDDLE without FIRST, an answer instead of
// a request.
func opcodeNear(g *Generator, p *packet) {
	g.setOpcode(p, p.f.Opcode&0xe0|bth.Opcode(g.r.IntN(32)))
}

func psnNear(g *Generator, p *packet) {
	d := uint32(g.r.IntN(9)) - 4
	if g.r.IntN(3) == 0 {
		d = uint32(g.r.IntN(400)) - 200
	}
	g.note("PSN %+d", int32(d))
	p.f.PSN = p.f.PSN.Add(d & 0xffffff)
	p.next = g.t.PSN
}

func psnAny(g *Generator, p *packet) {
	p.f.PSN = bth.PSN(g.r.Uint32() & 0xffffff)
	if g.r.IntN(2) == 0 { // about half the PSN space away
		p.f.PSN = g.t.PSN.Add(1<<23 - 2 + uint32(g.r.IntN(4)))
	}
	g.note("PSN %#x", uint32(p.f.PSN))
	p.next = g.t.PSN
}

func qpn(g *Generator, p *packet) {
	p.f.DestQP = []bth.QPN{0, bth.QPNGSI, bth.QPNMulticast, bth.QPN(g.r.Uint32() & 0xffffff),
		p.f.DestQP ^ 1}[g.r.IntN(5)]
	g.note("QPN %#x", uint32(p.f.DestQP))
	p.next = g.t.PSN
}

// padCount sets a pad count that does not match the payload or exceeds it.
func padCount(g *Generator, p *packet) {
	p.f.PadCount = uint8(g.r.IntN(4))
	if g.r.IntN(2) == 0 {
		p.payload = g.r.IntN(3)
		p.cut += int(p.f.PadCount)
	}
	g.note("pad count %d with %d bytes", p.f.PadCount, p.payload)
}

func version(g *Generator, p *packet) {
	p.version = uint8(1 + g.r.IntN(15))
	g.note("version %d", p.version)
	p.next = g.t.PSN
}

func pkey(g *Generator, p *packet) {
	p.f.PKey = []bth.PKey{0, 0x7fff, 0x8000, 0x8001, bth.PKey(g.r.Uint32())}[g.r.IntN(5)]
	g.note("P_Key %#x", uint16(p.f.PKey))
}

// address sets an address at the limits of the region.
func address(g *Generator, p *packet) {
	p.va = g.t.Addr + []uint64{math.MaxUint64, 1, uint64(g.t.Len), uint64(g.t.Len) - 1, 1 << 32,
		g.r.Uint64()}[g.r.IntN(6)]
	g.note("address %#x", p.va)
}

// addressWrap makes address plus length exceed 64 bits.
func addressWrap(g *Generator, p *packet) {
	p.va = -uint64(g.r.IntN(16))
	if g.r.IntN(2) == 0 {
		p.va = g.t.Addr
		p.dma = math.MaxUint32 - uint32(g.r.IntN(8))
	}
	g.note("address %#x with length %#x", p.va, p.dma)
}

func key(g *Generator, p *packet) {
	p.key = g.anyKey()
	if g.r.IntN(3) == 0 {
		p.key = g.t.RKey ^ 1<<g.r.IntN(32)
	}
	g.note("key %#x", uint32(p.key))
}

// otherRegion names memory by the right key and range that the peer must not access.
func otherRegion(g *Generator, p *packet) {
	if len(g.t.Others) == 0 {
		return
	}
	o := g.t.Others[g.r.IntN(len(g.t.Others))]
	p.va, p.key = o.Addr, o.RKey
	if o.Len > p.dma {
		p.va += uint64(g.r.IntN(int(o.Len-p.dma))) &^ 7
	}
	g.note("address %#x with key %#x", p.va, uint32(p.key))
}

func qkey(g *Generator, p *packet) {
	p.qkey = []bth.QKey{0, 1 << 31, p.qkey ^ 1<<g.r.IntN(32), bth.QKey(g.r.Uint32())}[g.r.IntN(4)]
	p.srcQPN = bth.QPN(g.r.Uint32() & 0xffffff)
	g.note("Q_Key %#x from QPN %#x", uint32(p.qkey), uint32(p.srcQPN))
}

func dmaLength(g *Generator, p *packet) {
	p.dma = []uint32{0, 1, p.dma + 1, p.dma - 1, 1 << 31, 1<<31 + 1, math.MaxUint32,
		g.r.Uint32()}[g.r.IntN(8)]
	g.note("length %#x", p.dma)
}

func payloadLength(g *Generator, p *packet) {
	mtu := int(g.t.MTU)
	p.payload = min(maxPayload,
		[]int{0, 1, mtu - 1, mtu, mtu + 1, mtu + 4, g.r.IntN(maxPayload)}[g.r.IntN(7)])
	if g.r.IntN(2) == 0 {
		p.f.PadCount = uint8(-p.payload & 3)
	}
	g.note("%d bytes of payload", p.payload)
}

func truncated(g *Generator, p *packet) {
	p.cut += g.r.IntN(int(p.info.HeaderLen) + p.payload + 1)
	g.note("%d bytes missing", p.cut)
	p.next = g.t.PSN
}

func longer(g *Generator, p *packet) {
	n := 1 + g.r.IntN(16)
	p.payload = min(p.payload+n, maxPayload)
	g.note("%d bytes too many", n)
}

// killer makes a packet similar to those that crashed RoCE stacks.
func killer(g *Generator, p *packet) {
	switch g.r.IntN(5) {
	case 0: // an unknown opcode to the multicast QPN in an IP packet of 48 bytes
		g.setOpcode(p, 0xff)
		p.f.DestQP, p.payload, p.f.PadCount = bth.QPNMulticast, 4, 0
	case 1:
		g.setOpcode(p, bth.RCAtomicWrite)
		p.payload, p.f.PadCount, p.dma = 0, 0, 8
	case 2:
		p.payload, p.f.PadCount, p.cut = 0, 3, 3
	case 3:
		p.va, p.dma = math.MaxUint64-3, 16
	case 4:
		g.setOpcode(p, bth.RCFlush)
	}
	g.note("a known killer")
}

// damage breaks the frame around a packet. b is a whole frame, n the length of its headers.
func (g *Generator) damage(b []byte, n int) []byte {
	r := g.r
	ip := b[14:]
	switch r.IntN(24) {
	case 0:
		b[len(b)-1-r.IntN(bth.ICRCLen)] ^= 1 << r.IntN(8)
		g.note("ICRC wrong")
	case 1:
		for range 1 + r.IntN(4) {
			b[r.IntN(len(b))] ^= 1 << r.IntN(8)
		}
		g.note("bits flipped")
	case 2:
		b = b[:r.IntN(len(b))]
		g.note("frame of %d bytes", len(b))
	case 3:
		b = b[:min(cap(b), len(b)+1+r.IntN(maxTail))]
		g.note("Ethernet padding")
	case 4:
		// total length or identification; in IPv6 flow label or payload length
		at := 2 + r.IntN(2)*2
		binary.BigEndian.PutUint16(ip[at:], uint16(r.Uint32()))
		g.note("IP length")
	case 5:
		ip[6] ^= 1 << r.IntN(8) // fragment bits; in IPv6 the next header
		g.note("IP fragment or next header")
	case 6:
		ip[0] ^= 1 << r.IntN(8)
		g.note("IP version or header length")
	case 7:
		binary.BigEndian.PutUint16(b[n-4:], uint16(r.Uint32()))
		g.note("UDP length")
	case 8:
		binary.BigEndian.PutUint16(b[n-2:], uint16(r.Uint32()))
		g.note("UDP checksum")
	}
	return b
}
