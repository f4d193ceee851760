package udp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"golang.org/x/sys/unix"
)

// sendPatience is how long Send waits for space in the send buffer of a socket before it drops
// packets.
const sendPatience = 2 * time.Millisecond

// Alloc implements driver.Port.
func (p *Port) Alloc(bufs []driver.Buf) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Load() {
		return 0
	}
	n := min(len(bufs), len(p.tx.free))
	rest := len(p.tx.free) - n
	size := p.net.state.Load().info.MaxFrame
	for i, k := range p.tx.free[rest:] {
		bufs[i] = driver.Buf{B: p.tx.slot(k)[:size:size], Token: uint64(k)}
	}
	p.tx.free = p.tx.free[:rest]
	return n
}

// Free implements driver.Port.
func (p *Port) Free(bufs []driver.Buf) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free(bufs)
}

func (p *Port) free(bufs []driver.Buf) {
	for i := range bufs {
		p.tx.free = append(p.tx.free, uint32(bufs[i].Token))
	}
}

// Send implements driver.Port. It drops frames that the kernel refuses, and says why in Info.Note.
func (p *Port) Send(bufs []driver.Buf) (n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.free(bufs)
	if p.closed.Load() {
		return 0, driver.ErrClosed
	}
	before := p.stats.TxFrames
	var from *socket
	queued := 0 // messages
	p.run.packets = 0
	for i := range bufs {
		s, payload := p.parse(bufs[i].B)
		if s == nil {
			p.stats.TxDropped++
			continue
		}
		if s == from && p.extend(queued-1, bufs[i].B, payload) {
			continue
		}
		if queued > 0 && (queued == batch || s != from) {
			p.flush(from, queued)
			queued = 0
		}
		from = s
		p.prepare(s, queued, bufs[i].B, payload)
		queued++
	}
	if queued > 0 {
		p.flush(from, queued)
	}
	if !p.net.state.Load().info.Up {
		err = driver.ErrLinkDown
	}
	return int(p.stats.TxFrames - before), err
}

// parse returns the socket that is bound to the source address of a frame, or nil, and the packet
// after the UDP header.
func (p *Port) parse(b []byte) (*socket, []byte) {
	if len(b) <= lenV4 {
		return nil, nil
	}
	var src bth.GID
	n := lenV4
	switch binary.BigEndian.Uint16(b[12:]) {
	case etherIPv4:
		src.SetIPv4(b[etherLen+12 : etherLen+16])
	case etherIPv6:
		if n = lenV6; len(b) <= n {
			return nil, nil
		}
		src = bth.GID(b[etherLen+8 : etherLen+24])
	default:
		return nil, nil
	}
	if p.from < len(p.socks) && p.socks[p.from].gid == src {
		return p.socks[p.from], b[n:]
	}
	for i, s := range p.socks {
		if s.gid == src && !s.group {
			p.from = i
			return s, b[n:]
		}
	}
	return nil, nil
}

// run is the run that the latest message to send is, or may become.
type run struct {
	packets int  // 0: the message cannot become a run
	size    int  // of each packet but the last, bytes
	bytes   int  // of all packets
	closed  bool // the last packet is shorter
	header  []byte
	control int // end of the control messages, without the length of packets
}

// begin starts a run with a frame. Only packets that stay on this host become runs: over a veth, a
// run may reach an AF_XDP socket whole, and NICs that cut runs may number the packets in another
// way.
func (p *Port) begin(s *socket, b, payload []byte, control int) {
	p.run = run{size: len(payload), bytes: len(payload), header: b[:len(b)-len(payload)],
		control: control}
	ip := b[etherLen:]
	if s.runs && len(p.run.header) == lenV4 && (ip[12] == 127 || ip[16] == 127) {
		p.run.packets = 1
	}
}

// extend adds a frame to the run that message i is, if it fits.
func (p *Port) extend(i int, b, payload []byte) bool {
	r := &p.run
	if r.packets == 0 || r.packets == maxRun || r.closed || len(payload) > r.size ||
		r.bytes+len(payload) > maxBytes || !sameFlow(r.header, b) {
		return false
	}
	p.out.memory(i, r.packets, payload)
	p.ids.Set(payload, r.packets)
	if r.packets == 1 {
		p.out.setControl(i, p.out.addSegment(i, r.control, uint16(r.size)))
	}
	r.packets++
	r.bytes += len(payload)
	r.closed = len(payload) < r.size
	return true
}

// sameFlow reports whether two IPv4 headers have the same addresses, traffic class and hop limit.
func sameFlow(a, b []byte) bool {
	a, b = a[etherLen:lenV4], b[etherLen:]
	return len(b) > lenV4-etherLen && a[1] == b[1] && a[8] == b[8] &&
		[8]byte(a[12:20]) == [8]byte(b[12:20])
}

// prepare makes message i of a frame.
func (p *Port) prepare(s *socket, i int, b, payload []byte) {
	m := p.out
	m.memory(i, 0, payload)
	name := &m.m[i].name
	h := &m.headers[i].hdr
	ip := b[etherLen:]
	binary.BigEndian.PutUint16(name[2:], bth.Port)
	end := 0
	if len(b)-len(payload) == lenV4 {
		binary.NativeEndian.PutUint16(name[0:], unix.AF_INET)
		copy(name[4:8], ip[16:20])
		h.Namelen = unix.SizeofSockaddrInet4
		if class := ip[1]; class != 0 {
			end = m.addControl(i, end, unix.IPPROTO_IP, unix.IP_TOS, int32(class))
		}
		if limit := ip[8]; limit != defaultHopLimit {
			end = m.addControl(i, end, unix.IPPROTO_IP, unix.IP_TTL, int32(limit))
		}
	} else {
		binary.NativeEndian.PutUint16(name[0:], unix.AF_INET6)
		copy(name[8:24], ip[24:40])
		binary.NativeEndian.PutUint32(name[24:], 0)
		if linkLocal(ip[24:40]) {
			binary.NativeEndian.PutUint32(name[24:], uint32(p.net.index))
		}
		h.Namelen = unix.SizeofSockaddrInet6
		if class := ip[0]<<4 | ip[1]>>4; class != 0 {
			end = m.addControl(i, end, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, int32(class))
		}
		if limit := ip[7]; limit != defaultHopLimit {
			end = m.addControl(i, end, unix.IPPROTO_IPV6, unix.IPV6_HOPLIMIT, int32(limit))
		}
	}
	m.setControl(i, end)
	p.begin(s, b, payload, end)
}

// linkLocal reports whether an IPv6 address is a link-local one, or a group of that scope.
func linkLocal(a []byte) bool {
	return a[0] == 0xfe && a[1]&0xc0 == 0x80 || a[0] == 0xff && a[1]&0xf == 2
}

// flush sends the first n messages.
func (p *Port) flush(s *socket, n int) {
	p.run.packets = 0
	waited := false
	for at := 0; at < n; {
		p.stats.Kicks++
		sent, err := p.out.send(s.fd, at, n)
		for i := range sent {
			p.stats.TxBytes += uint64(p.out.headers[at+i].len)
			p.stats.TxFrames += p.out.packets(at + i)
		}
		at += sent
		switch {
		case err == nil, errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN) && !waited:
			waited = true
			p.writable[0] = unix.PollFd{Fd: int32(s.fd), Events: unix.POLLOUT}
			p.timeout = unix.NsecToTimespec(int64(sendPatience))
			_, _ = unix.Ppoll(p.writable[:], &p.timeout, nil)
		case errors.Is(err, unix.EAGAIN):
			for ; at < n; at++ {
				p.stats.TxDropped += p.out.packets(at)
			}
		default:
			p.refusedBy(err)
			p.stats.TxDropped += p.out.packets(at)
			at++
		}
	}
}

// refusedBy reports why the kernel refuses to send packets.
func (p *Port) refusedBy(err error) {
	if errors.Is(err, p.sendErr) {
		return
	}
	p.sendErr = err
	why := "check the route and the neighbor"
	switch {
	case errors.Is(err, unix.EPERM):
		why = "a firewall drops packets to UDP port 4791"
	case errors.Is(err, unix.EMSGSIZE):
		why = "a packet exceeds the MTU of the interface: choose a smaller path MTU, or raise the MTU"
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EADDRNOTAVAIL):
		why = "the address was removed from the interface"
	case errors.Is(err, unix.ENOBUFS):
		why = "the queue of the interface is full"
	}
	p.net.setNote(fmt.Sprintf("the kernel did not send some packets (%v): %s", err, why))
}
