package udp

import "github.com/gorxe/gorxe/driver"

// A long run arrives in one buffer if the owner permits it, because each piece of memory costs the
// kernel time. The packets then have no room for headers between them. The headers of the first
// packet are in front of it. Those of each other packet overwrite the end of the packet before it,
// once the owner has handled that one.
const (
	lineCount = 8 // buffers for runs
	// lineMin is the length of the shortest packets whose headers overlap only one other packet.
	lineMin = headroom
	lineLen = headroom + 1<<16 // longer than any run

	// lineToken marks tokens of packets in these buffers. The bits from lineShift on are the
	// number of the buffer, those below that of the packet.
	lineToken = 1 << 61
	lineShift = 8
)

// lines has buffers for whole runs.
type lines struct {
	on    bool // the owner permits it
	free  []uint8
	quiet int // calls without a packet
	line  [lineCount]line
}

// line is a buffer with a run. The first packet is behind the headroom.
type line struct {
	b       []byte
	run     incoming
	headers int // length of those of a packet
	left    int // packets that the owner has not released
}

// OverlapHeaders implements driver.Overlapper.
func (p *Port) OverlapHeaders() (send bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := &p.lines
	if c.on {
		return true
	}
	c.on = true
	slab := make([]byte, lineCount*lineLen)
	for i := range c.line {
		c.line[i].b, slab = slab[:lineLen:lineLen], slab[lineLen:]
		c.free = append(c.free, uint8(i))
	}
	return true
}

// receiveLines is receiveFrom while runs arrive. It returns false if there is no buffer.
func (p *Port) receiveLines(s *socket) bool {
	c := &p.lines
	most := min(longRuns, len(c.free))
	if most == 0 {
		return false
	}
	free := c.free[len(c.free)-most:]
	for i, k := range free {
		p.in.SetMemory(i, 0, c.line[k].b[headroom:])
	}
	got, err := p.in.Receive(s.fd, most, s.named())
	if err != nil {
		s.emptied()
		if c.quiet++; c.quiet == longQuiet {
			c.quiet, s.long = 0, false
		}
		return true
	}
	c.quiet = 0
	var used [longRuns]uint8
	copy(used[:], free[:got])
	c.free = append(c.free[:len(c.free)-most], free[got:]...)
	for i, k := range used[:got] {
		p.deliverLine(s, i, k)
	}
	return true
}

// deliverLine appends the packets of message i, which is in buffer k, to p.ready.
func (p *Port) deliverLine(s *socket, i int, k uint8) {
	c := &p.lines
	l := &c.line[k]
	var ok bool
	if l.run, ok = p.inspect(i); !ok {
		c.free = append(c.free, k)
		return
	}
	m := &l.run
	l.headers, l.left = len(s.header), m.count
	if m.count > 1 && m.size < lineMin {
		p.copyRun(s, i, m, nil, l.b[headroom:][:m.n])
		c.free = append(c.free, k)
		return
	}
	for n := range m.count {
		at := n * m.size
		packet := l.b[at:][:headroom+min(m.size, m.n-at)]
		b := packet[headroom-l.headers:]
		token := uint64(lineToken | int(k)<<lineShift | n)
		if n == 0 {
			p.frame(s, i, packet, m, 0) // the others need the headers
		} else {
			token |= driver.NoHeaders
			if s.parent != nil {
				m.HopLimit = s.hopLimit(m.HopLimit, packet[headroom:])
			}
		}
		if p.isForeign(s, l.b[at:]) {
			p.dropLine(k)
			continue
		}
		p.pass(b, token)
	}
}

// WriteHeaders implements driver.Overlapper.
func (p *Port) WriteHeaders(f *driver.Buf) {
	id := uint16(f.Token & (1<<lineShift - 1))
	l := &p.lines.line[lineOf(f.Token)]
	b := f.B
	copy(b, l.b[headroom-l.headers:headroom])
	l.run.setLength(b[:l.headers], len(b), id)
}

// lineOf returns the number of the buffer in a token.
func lineOf(token uint64) uint8 { return uint8(token >> lineShift % lineCount) }

// dropLine returns a packet in buffer k, which is free after the last one.
func (p *Port) dropLine(k uint8) {
	l := &p.lines.line[k]
	if l.left--; l.left == 0 {
		p.lines.free = append(p.lines.free, k)
	}
}
