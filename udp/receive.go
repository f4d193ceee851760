package udp

import (
	"encoding/binary"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/udpmsg"
	"golang.org/x/sys/unix"
)

const (
	// pollAll is how many calls of Receive may poll only the socket that had packets last. Wait
	// looks at all sockets. A call that receives something counts as busyPoll more, because it
	// takes longer.
	pollAll, busyPoll = 64, 7
	// fewest is the number of messages that a system call receives at most if the socket had none
	// before. Preparing more takes as long as the system call.
	fewest = 1

	// After a run of longFrom bytes the next one is received without a copy. To copy shorter ones
	// takes little time.
	longFrom  = 8 << 10
	longRuns  = 4  // messages of one system call then
	longQuiet = 64 // calls without a packet after which that ends
)

// Receive implements driver.Port.
func (p *Port) Receive(bufs []driver.Buf) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Load() || len(p.socks) == 0 {
		return 0
	}
	if len(p.ready) == 0 {
		p.receive()
	}
	// A run may be longer than what the owner expects, but the next one is left for another call.
	for packets := 0; n < len(p.ready) && packets < len(bufs); n++ {
		bufs[n] = p.ready[n]
		packets += bufs[n].Packets()
	}
	p.ready = p.ready[:copy(p.ready, p.ready[n:])]
	return n
}

// receive fills p.ready.
func (p *Port) receive() {
	if p.hot >= len(p.socks) {
		p.hot = 0
	}
	if p.some {
		p.receiveMADs()
	}
	if p.alone++; len(p.polls) == 2 || p.alone < pollAll {
		if p.receiveFrom(p.socks[p.hot]); len(p.ready) > 0 {
			p.alone += busyPoll
		}
		return
	}
	p.alone = 0
	// A system call finds out which sockets have packets. The others come before the hot one, so
	// that it does not take all buffers.
	n, err := unix.Ppoll(p.polls, &unix.Timespec{}, nil)
	p.noteMADs()
	hot := p.hot
	for k := 1; err == nil && n > 0 && k <= len(p.socks); k++ {
		i := (hot + k) % len(p.socks)
		if p.polls[i+1].Revents == 0 {
			continue
		}
		before := len(p.ready)
		if p.receiveFrom(p.socks[i]); len(p.ready) > before {
			p.hot = i
		}
		if len(p.ready) > 0 && len(p.rx.free) < rxRuns*(1+maxGRO) {
			return // what other sockets have may not fit in the buffers
		}
	}
}

// receiveFrom receives packets and runs from a socket. The start of each goes to a buffer of its
// own, so that single packets are not copied.
func (p *Port) receiveFrom(s *socket) {
	if s.parent != nil && s.out.fresh && p.receiveOlder(s) {
		return
	}
	if s.long && p.lines.on && p.receiveLines(s) {
		return
	}
	most := batch
	if s.runs {
		most = rxRuns
	}
	limit := min(most, len(p.rx.free))
	if most = min(max(p.most, fewest), limit); most == 0 {
		return
	}
	var slots [batch]uint32
	p.rx.free = p.rx.free[:len(p.rx.free)-copy(slots[:most], p.rx.free[len(p.rx.free)-most:])]
	for i, k := range slots[:most] {
		p.in.SetMemory(i, 0, p.rx.slot(k)[headroom:])
		if s.runs {
			p.in.SetMemory(i, 1, p.long[i])
		}
	}
	got, err := p.in.Receive(s.fd, most, s.named())
	if err != nil {
		got = 0
		s.receiveFailed(err)
	}
	switch {
	case got == most:
		p.most = 2 * most
	case got < most/2:
		p.most = most / 2
	}
	p.rx.free = append(p.rx.free, slots[got:most]...)
	for i, k := range slots[:got] {
		p.split(s, i, k)
	}
}

// split makes frames of received message i, which begins in buffer k and continues in p.long[i].
func (p *Port) split(s *socket, i int, k uint32) {
	m, ok := p.inspect(i)
	switch {
	case ok && m.count == 1:
		p.deliver(s, i, k, m.n, &m, 0)
		return
	case ok:
		p.copyRun(s, i, &m, p.rx.slot(k)[headroom:], p.long[i])
		s.noteRun(&m)
	}
	p.rx.free = append(p.rx.free, k)
}

// minPacket is the length of the shortest packet: BTH and ICRC.
const minPacket = bth.HeaderLen + bth.ICRCLen

// frame writes headers in front of a packet of message i, which is in the slot behind the headroom.
// id is its number in its run, and the identification that gorxe's own packets have.
func (p *Port) frame(s *socket, i int, slot []byte, m *incoming, id uint16) []byte {
	var src []byte // address and port; nil: they are in the header
	if s.named() {
		src = p.in.Name(i)[:]
	}
	if s.parent != nil {
		m.HopLimit = s.hopLimit(m.HopLimit, slot[headroom:])
	}
	b := slot[headroom-len(s.header):]
	copy(b, s.header)
	ip := b[etherLen:]
	if len(s.header) == udpmsg.LenV4 {
		ip[1], ip[8] = m.TrafficClass, m.HopLimit
		if src != nil {
			copy(ip[12:16], src[4:8])
		}
		if m.sum == 0 {
			clear(ip[2:6])
			clear(ip[10:12])
			m.sum = sum16(ip[:ipv4Len])
		}
	} else {
		ip[0] = 6<<4 | m.TrafficClass>>4
		ip[1] = m.TrafficClass << 4
		ip[7] = m.HopLimit
		if src != nil {
			copy(ip[8:24], src[8:24])
		}
	}
	if src != nil {
		copy(b[len(s.header)-udpLen:], src[2:4])
	}
	m.setLength(b[:len(s.header)], len(b), id)
	return b
}

// setLength sets the length and the identification in the headers of a frame of n bytes.
func (m *incoming) setLength(headers []byte, n int, id uint16) {
	ip := headers[etherLen:]
	n -= etherLen
	if len(headers) == udpmsg.LenV4 {
		binary.BigEndian.PutUint16(ip[2:], uint16(n))
		binary.BigEndian.PutUint16(ip[4:], id)
		sum := m.sum + uint32(n) + uint32(id)
		sum = sum>>16 + sum&0xffff
		binary.BigEndian.PutUint16(ip[10:], ^uint16(sum>>16+sum))
		n -= ipv4Len
	} else {
		n -= ipv6Len
		binary.BigEndian.PutUint16(ip[4:], uint16(n))
	}
	binary.BigEndian.PutUint16(headers[len(headers)-udpLen+4:], uint16(n))
}

// sum16 adds the 16-bit words of an IPv4 header.
func sum16(h []byte) (sum uint32) {
	for ; len(h) >= 2; h = h[2:] {
		sum += uint32(binary.BigEndian.Uint16(h))
	}
	return sum
}

// Release implements driver.Port.
func (p *Port) Release(bufs []driver.Buf) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range bufs {
		if bufs[i].Token&lineToken != 0 {
			p.dropLine(lineOf(bufs[i].Token))
			continue
		}
		p.rx.free = append(p.rx.free, uint32(bufs[i].Token))
	}
}

// kernelDrops returns how many packets the kernel has dropped because a receive buffer was full.
func (p *Port) kernelDrops() (n uint64) {
	for _, s := range p.socks {
		n += drops(s.fd)
	}
	return n
}
