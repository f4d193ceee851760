package udp

import (
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/udpmsg"
)

// incoming describes a received message.
type incoming struct {
	n     int    // bytes
	size  int    // of each packet but the last
	count int    // packets
	sum   uint32 // of the words of the IPv4 header without length and identification; 0: unknown
	udpmsg.Ancillary
}

// inspect describes message i. It returns false, and counts the packets as dropped, if the message
// is forged: its packets are too short, too long or too many.
func (p *Port) inspect(i int) (m incoming, ok bool) {
	n, truncated := p.in.Length(i)
	m = incoming{n: n, size: n, Ancillary: p.in.Ancillary(i)}
	if m.Segment > 0 {
		m.size = min(m.Segment, n)
	}
	if m.size > 0 {
		m.count = (n + m.size - 1) / m.size
	}
	if truncated || m.size < minPacket || m.size > slotLen-headroom || m.count > maxGRO {
		p.stats.RxDropped += uint64(max(m.count, 1))
		return m, false
	}
	return m, true
}

// copyRun copies the packets of message i from two pieces of memory, which contain it in this
// order. It drops them if there are too few buffers.
func (p *Port) copyRun(s *socket, i int, m *incoming, first, rest []byte) {
	if m.count > len(p.rx.free) {
		p.stats.RxDropped += uint64(m.count)
		return
	}
	for k := range m.count {
		at := k * m.size
		length := min(m.size, m.n-at)
		slot := p.rx.free[len(p.rx.free)-1]
		p.rx.free = p.rx.free[:len(p.rx.free)-1]
		packet := p.rx.slot(slot)[headroom : headroom+length]
		done := 0
		if at < len(first) {
			done = copy(packet, first[at:])
		}
		if done < length {
			copy(packet[done:], rest[at+done-len(first):])
		}
		p.deliver(s, i, slot, length, m, k)
	}
}

// deliver makes a frame of packet k of message i, which is in a buffer, and appends it to p.ready.
func (p *Port) deliver(s *socket, i int, slot uint32, length int, m *incoming, k int) {
	if p.isForeign(s, p.rx.slot(slot)) {
		p.rx.free = append(p.rx.free, slot)
		return
	}
	b := p.frame(s, i, p.rx.slot(slot)[:headroom+length], m, uint16(k))
	p.pass(b, uint64(slot))
}

// pass appends a frame to p.ready.
func (p *Port) pass(b []byte, token uint64) {
	p.ready = append(p.ready, driver.Buf{B: b, Token: token})
	p.stats.RxFrames++
	p.stats.RxBytes += uint64(len(b))
}

// isForeign reports whether a packet is for another program, and counts it as dropped. The packet
// follows the headroom.
func (p *Port) isForeign(s *socket, b []byte) bool {
	if p.slot == 0 || s.group || b[headroom+destSlot] == p.slot {
		return false
	}
	p.stats.RxDropped++
	if p.foreign++; p.foreign%reportMixed == 0 {
		p.net.from.Mixed()
	}
	return true
}

// reportMixed is the number of lost packets of other slots after which the Provider should act.
const reportMixed = 16

// destSlot is the offset of the top byte of the destination QPN in the BTH.
const destSlot = 5

// noteRun remembers that there are long runs.
func (s *socket) noteRun(m *incoming) {
	if m.count > 1 && m.n >= longFrom {
		s.long = true
	}
}
