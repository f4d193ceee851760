package udp

import (
	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
)

// A long run arrives in one buffer if the owner permits it, because each piece of memory costs the
// kernel time. The packets then have no room for headers between them. The headers of the first
// packet are in front of it. Those of another packet overwrite the end of the packet before it when
// the owner asks for the frame.
const (
	lineCount = 8 // buffers for runs
	// lineMin is the length of the shortest packets whose headers overlap only one other packet.
	lineMin = bth.MaxNetHeader
	lineLen = headroom + 1<<16 // longer than any run

	// lineToken marks tokens of packets in these buffers. The bits from lineShift on are the
	// number of the buffer, those below that of the first packet.
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
	left    int // parts of p.ready that the owner has not released
}

// OverlapHeaders implements driver.Overlapper.
func (p *Port) OverlapHeaders() {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := &p.lines
	if c.on {
		return
	}
	c.on = true
	slab := make([]byte, lineCount*lineLen)
	for i := range c.line {
		c.line[i].b, slab = slab[:lineLen:lineLen], slab[lineLen:]
		c.free = append(c.free, uint8(i))
	}
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
		s.receiveFailed(err)
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
	if m.count > 1 && m.size < lineMin {
		p.copyRun(s, i, m, nil, l.b[headroom:][:m.n])
		c.free = append(c.free, k)
		return
	}
	l.headers, l.left = len(s.header), 0
	first := p.frame(s, i, l.b[:headroom+min(m.size, m.n)], m, 0)
	from := 0
	if p.slot != 0 {
		for n := range m.count {
			if p.isForeign(s, l.b[n*m.size:]) {
				p.passRun(first, k, from, n)
				from = n + 1
			}
		}
	}
	p.passRun(first, k, from, m.count)
	if l.left == 0 {
		c.free = append(c.free, k)
	}
}

// passRun appends packets from to end-1 of the run in buffer k to p.ready, as a frame if the run
// has only one packet. first is the first packet of the run with its headers.
func (p *Port) passRun(first []byte, k uint8, from, end int) {
	l := &p.lines.line[k]
	m := &l.run
	token := uint64(lineToken | int(k)<<lineShift | from)
	switch {
	case from == end:
		return
	case m.count == 1:
		p.pass(first, token)
	default:
		b := l.b[headroom+from*m.size : headroom+min(end*m.size, m.n)]
		p.ready = append(p.ready, driver.Buf{B: b, Token: token | driver.NoHeaders, Size: m.size})
		p.stats.RxFrames += uint64(end - from)
		p.stats.RxBytes += uint64((end-from)*l.headers + len(b))
	}
	l.left++
}

// Frame implements driver.Overlapper.
func (p *Port) Frame(r *driver.Buf, i int) []byte {
	l := &p.lines.line[lineOf(r.Token)]
	i += int(r.Token & (1<<lineShift - 1))
	at := i * l.run.size
	b := l.b[headroom-l.headers+at : headroom+min(at+l.run.size, l.run.n)]
	copy(b, l.b[headroom-l.headers:headroom])
	l.run.setLength(b[:l.headers], len(b), uint16(i))
	return b
}

// lineOf returns the number of the buffer in a token.
func lineOf(token uint64) uint8 { return uint8(token >> lineShift % lineCount) }

// dropLine returns a part of buffer k, which is free after the last one.
func (p *Port) dropLine(k uint8) {
	l := &p.lines.line[k]
	if l.left--; l.left == 0 {
		p.lines.free = append(p.lines.free, k)
	}
}
