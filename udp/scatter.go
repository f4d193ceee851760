package udp

import (
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/udpmsg"
)

// Packets of long runs are not copied. If the latest run had packets of a length, the next one
// probably has them, too. So the kernel gets a buffer for each packet of that length instead of one
// buffer for the whole run. If the guess is wrong, the packets are copied.

// scatter has buffers in which the kernel puts the packets of runs.
type scatter struct {
	length int // of each packet, bytes; 0: there are no buffers
	count  int // of buffers per message
	quiet  int // calls without a packet
	slots  [longRuns][udpmsg.MaxRun]uint32
	used   [longRuns]int // buffers that were passed on
	linear []byte        // a run after a wrong guess
}

// prepare sets the memory of the next messages for packets of a length. It returns false if there
// are not enough buffers.
func (p *Port) prepare(length int) bool {
	c := &p.scatter
	if c.length != length {
		p.unscatter()
		c.count = min(udpmsg.MaxRun-1, len(p.long[0])/length)
		if len(p.rx.free) < longRuns*c.count+maxGRO {
			return false
		}
		c.length, c.quiet = length, 0
		for i := range c.used {
			c.used[i] = c.count
		}
	}
	most := 0
	for _, n := range c.used {
		most += n
	}
	if len(p.rx.free) < most {
		return false
	}
	for i, n := range c.used {
		for k := range n {
			slot := p.rx.free[len(p.rx.free)-1]
			p.rx.free = p.rx.free[:len(p.rx.free)-1]
			c.slots[i][k] = slot
			p.in.SetMemory(i, k, p.rx.slot(slot)[headroom:headroom+length])
		}
		p.in.SetMemory(i, c.count, p.long[i])
		c.used[i] = 0
	}
	return true
}

// unscatter returns the buffers.
func (p *Port) unscatter() {
	c := &p.scatter
	if c.length == 0 {
		return
	}
	for i, n := range c.used {
		p.rx.free = append(p.rx.free, c.slots[i][n:c.count]...)
	}
	c.length = 0
}

// receiveRuns is receiveFrom while runs arrive. It returns false if receiveFrom must receive in its
// own way.
func (p *Port) receiveRuns(s *socket) bool {
	if p.lines.on {
		return p.receiveLines(s)
	}
	if !p.prepare(s.segment) {
		s.segment = 0
		p.unscatter()
		return false
	}
	c := &p.scatter
	got, err := p.in.Receive(s.fd, longRuns, s.named())
	if err != nil {
		s.emptied()
		if c.quiet++; c.quiet == longQuiet {
			s.segment = 0
			p.unscatter()
		}
		return true
	}
	c.quiet = 0
	for i := range got {
		p.place(s, i)
	}
	return true
}

// place makes frames of received message i, whose parts are in the buffers and in p.long[i].
func (p *Port) place(s *socket, i int) {
	m, ok := p.inspect(i)
	if !ok {
		return
	}
	c := &p.scatter
	switch {
	case m.size == c.length && m.count <= c.count || m.count == 1 && m.n <= c.length:
		c.used[i] = m.count
	case m.count == 1:
		// The rest follows in other buffers.
		first := p.rx.slot(c.slots[i][0])[headroom:]
		p.gather(i, first[c.length:m.n], c.length)
		c.used[i] = 1
	default:
		c.linear = c.linear[:m.n]
		p.gather(i, c.linear, 0)
		p.copyRun(s, i, &m, nil, c.linear)
		s.noteRun(&m)
		return
	}
	for k := range m.count {
		slot := c.slots[i][k]
		p.deliver(s, i, slot, min(m.size, m.n-k*m.size), &m, k)
	}
	s.noteRun(&m)
}

// gather copies the bytes of message i from offset at on.
func (p *Port) gather(i int, to []byte, at int) {
	c := &p.scatter
	for len(to) > 0 {
		from := p.long[i]
		if k := at / c.length; k < c.count {
			from = p.rx.slot(c.slots[i][k])[headroom+at%c.length : headroom+c.length]
		} else {
			from = from[at-c.count*c.length:]
		}
		n := copy(to, from)
		to, at = to[n:], at+n
	}
}

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
	if truncated || m.size < minPacket || m.size > slotLen-headroom || m.count > maxGRO ||
		m.count > 1 && m.count > len(p.rx.free) {
		p.stats.RxDropped += uint64(max(m.count, 1))
		return m, false
	}
	return m, true
}

// copyRun copies the packets of message i from two pieces of memory, which contain it in this
// order.
func (p *Port) copyRun(s *socket, i int, m *incoming, first, rest []byte) {
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
	p.ready = append(p.ready, driver.Buf{B: b, Token: uint64(slot)})
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

// noteRun remembers the length of the packets of a run.
func (s *socket) noteRun(m *incoming) {
	if m.count > 1 && m.n >= longFrom {
		s.segment = m.size
	}
}
