package udp

import (
	"encoding/binary"

	"github.com/gorxe/gorxe/driver"
	"golang.org/x/sys/unix"
)

// pollAll is how many calls of Receive may poll only the socket that had packets last.
const pollAll = 16

// Receive implements driver.Port.
func (p *Port) Receive(bufs []driver.Buf) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Load() || len(p.socks) == 0 {
		return 0
	}
	if p.hot >= len(p.socks) {
		p.hot = 0
	}
	if p.alone++; len(p.socks) == 1 || p.busy && p.alone%pollAll != 0 {
		n = p.receiveFrom(p.socks[p.hot], bufs)
	}
	if n > 0 || len(p.socks) == 1 {
		return n
	}
	// A system call finds out which sockets have packets.
	ready, err := unix.Ppoll(p.polls, &unix.Timespec{}, nil)
	for i := 1; err == nil && ready > 0 && i < len(p.polls) && n < len(bufs); i++ {
		if p.polls[i].Revents == 0 {
			continue
		}
		if got := p.receiveFrom(p.socks[i-1], bufs[n:]); got > 0 {
			n += got
			p.hot = i - 1
		}
	}
	p.busy = n > 0
	return n
}

// receiveFrom receives packets from a socket.
func (p *Port) receiveFrom(s *socket, bufs []driver.Buf) (n int) {
	most := min(len(bufs), batch, len(p.rx.free))
	if most == 0 {
		return 0
	}
	free := p.rx.free[len(p.rx.free)-most:]
	for i, k := range free {
		p.in.memory(i, p.rx.slot(k)[headroom:])
	}
	got, err := p.in.receive(s.fd, most)
	if err != nil {
		return 0 // nothing has arrived
	}
	for i, k := range free[:got] {
		if b := p.frame(s, i, p.rx.slot(k)); b != nil {
			bufs[n] = driver.Buf{B: b, Token: uint64(k)}
			n++
			p.stats.RxFrames++
			p.stats.RxBytes += uint64(len(b))
			continue
		}
		p.stats.RxDropped++
		p.refused = append(p.refused, k)
	}
	// The buffers of the first got messages are in use, apart from those that were refused.
	keep := len(p.rx.free) - most
	p.rx.free = append(p.rx.free[:keep], p.rx.free[keep+got:]...)
	p.rx.free = append(p.rx.free, p.refused...)
	p.refused = p.refused[:0]
	return n
}

// frame makes a frame of received message i, whose packet is in the slot behind the headroom. It
// returns nil if the packet must be dropped.
func (p *Port) frame(s *socket, i int, slot []byte) []byte {
	h := &p.in.headers[i]
	n := int(h.len)
	if h.hdr.Flags&unix.MSG_TRUNC != 0 || n > len(slot)-headroom {
		return nil
	}
	name := &p.in.m[i].name
	a := p.in.ancillary(i)
	b := slot[headroom-len(s.header) : headroom+n]
	copy(b, s.header)
	ip := b[etherLen:]
	if len(s.header) == lenV4 {
		ip[1], ip[8] = a.trafficClass, a.hopLimit
		binary.BigEndian.PutUint16(ip[2:], uint16(ipv4Len+udpLen+n))
		copy(ip[12:16], name[4:8])
		binary.BigEndian.PutUint16(ip[10:], 0)
		binary.BigEndian.PutUint16(ip[10:], checksum(ip[:ipv4Len]))
	} else {
		ip[0] = 6<<4 | a.trafficClass>>4
		ip[1] = a.trafficClass << 4
		ip[7] = a.hopLimit
		binary.BigEndian.PutUint16(ip[4:], uint16(udpLen+n))
		copy(ip[8:24], name[8:24])
	}
	udp := b[len(s.header)-udpLen:]
	copy(udp, name[2:4])
	binary.BigEndian.PutUint16(udp[4:], uint16(udpLen+n))
	return b
}

// checksum returns the checksum of an IPv4 header.
func checksum(h []byte) uint16 {
	var sum uint32
	for i := 0; i < ipv4Len; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	sum = sum>>16 + sum&0xffff
	return ^uint16(sum>>16 + sum)
}

// Release implements driver.Port.
func (p *Port) Release(bufs []driver.Buf) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range bufs {
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
