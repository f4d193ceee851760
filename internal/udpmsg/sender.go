package udpmsg

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"golang.org/x/sys/unix"
)

const (
	// MaxRun is the largest number of packets of a run. Kernels before 6.9 have the same limit.
	MaxRun = frame.MaxRunIDs

	maxBytes = 65_000 // of a run
	// sendPatience is how long Flush waits for space in the send buffer of a socket before it drops
	// packets. A run takes 5 ms on a link of 100 Mb/s.
	sendPatience = 10 * time.Millisecond
)

// DefaultHopLimit is the hop limit that the sockets must have. Frames with another one get a
// control message.
const DefaultHopLimit = 64

// Lengths and offsets of headers. Frames have no VLAN tag, because the kernel adds and removes
// tags.
const (
	etherLen = 14
	ipv4Len  = 20
	ipv6Len  = 40
	udpLen   = 8

	// LenV4 and LenV6 are the lengths of the headers before the BTH.
	LenV4 = etherLen + ipv4Len + udpLen
	LenV6 = etherLen + ipv6Len + udpLen

	// EtherIPv4 and EtherIPv6 are Ethernet types.
	EtherIPv4 = 0x0800
	EtherIPv6 = 0x86dd
)

// Sender sends frames through sockets. It must not be used by two goroutines at a time. Add need
// not copy the packets, so they must not change before Flush.
type Sender struct {
	Stats driver.Stats // of sent frames
	Index int          // number of the interface, for link-local addresses
	// Refused is called with the error with which the kernel refuses packets.
	Refused func(error)
	// Note is called with advice for the user.
	Note func(string)
	// KeepRefused leaves frames that the kernel refuses, and all added after them, to the caller
	// instead of dropping them; see Unsent.
	KeepRefused bool

	out    *Batch
	socket Socket // of all messages
	queued int    // messages
	unsent int    // frames that are left to the caller
	run    run
	latest []byte // headers of the latest frame that was added
	about  [Size]about
	ids    frame.RunIDs
	peers
	past past

	writable [1]unix.PollFd
	timeout  unix.Timespec
}

// Socket is a UDP socket that sends.
type Socket struct {
	FD   int
	Port uint16 // UDP source port
	Runs bool   // the kernel sends runs
	// Index is the number of the interface through which packets are sent with the source address
	// of the frame; 0: the socket is bound to an address, and the kernel selects the interface.
	Index int
	// Class is the traffic class of the socket; nil: 0.
	Class *Class
}

// about is what is known about a message.
type about struct {
	peer    *peer // nil: the socket sends no runs
	run     bool
	control uint8 // length of the control messages without that of a run
}

// run is the run that the latest message is, or may become.
type run struct {
	packets int  // 0: the message cannot become a run
	size    int  // of each packet but the last, bytes
	bytes   int  // of all packets
	closed  bool // the last packet is shorter
	slot    byte // of all packets
	peer    *peer
	// For Next; valid from the second packet on.
	head uint64 // of the latest packet: the BTH before AckReq and PSN
	psn  uint32 // of the latest packet
	flow *flow  // nil: that of the packets is not recorded
}

// NewSender returns a Sender without packets.
func NewSender() *Sender {
	s := &Sender{out: NewBatch()}
	s.out.short = make([]byte, 0, Size*maxShort)
	s.peers.init()
	return s
}

// Add adds a frame with headers of n bytes, LenV4 or LenV6. The packet after them is sent with a
// socket when Flush is called, or before.
func (s *Sender) Add(k Socket, b []byte, n int) { s.add(k, b[:n], b[n:], ident(b[:n])) }

// Join is Add for the packets of a driver.Buf with driver.NoHeaders. Each has size bytes.
func (s *Sender) Join(b []byte, size int) {
	h := s.latest
	for i := 0; len(b) >= size; {
		n := 1
		if s.continues(b[:size]) {
			n = s.joinNext(h, b, i)
		} else {
			s.add(s.socket, h, b[:size], i)
		}
		i, b = i+n, b[n*size:]
	}
}

// joinNext adds the first packets of b that fit in the latest run, of which continues has checked
// the first one. Its ICRC is for the identification i, that of the next one for i+1. joinNext
// returns their number.
func (s *Sender) joinNext(h, b []byte, i int) int {
	r := &s.run
	n := min(len(b)/r.size, MaxRun-r.packets, (maxBytes-r.bytes)/r.size)
	p := s.out.add(s.queued-1, b[:n*r.size], n)
	for k := range n {
		s.setICRC(h, p[k*r.size:][:r.size], i+k, r.packets+k)
	}
	r.psn = (r.psn + uint32(n)) & psnMask
	if r.flow != nil {
		r.peer.joined(r.flow, r.psn, n)
	}
	r.packets += n
	r.bytes += n * r.size
	return n
}

// add adds packet p with headers h. Its ICRC is for the identification id.
func (s *Sender) add(k Socket, h, p []byte, id int) {
	if s.unsent > 0 {
		s.unsent++
		return
	}
	if k.FD == s.socket.FD && s.run.packets > 0 && s.extend(h, p, id) {
		s.latest = h
		return
	}
	if s.queued == Size || k.FD != s.socket.FD {
		s.Flush()
		if s.unsent > 0 {
			s.unsent++
			return
		}
	}
	s.socket, s.latest = k, h
	s.start(s.queued, h, p, id)
	s.run = run{size: len(p), bytes: len(p)}
	if k.Runs && len(p) >= bth.HeaderLen {
		s.run.peer = s.peerOf(h)
		if s.fits(s.run.peer, p) {
			s.run.packets, s.run.slot = 1, slot(p)
		}
	}
	s.about[s.queued].peer = s.run.peer
	s.queued++
}

// slot returns the top byte of a packet's destination QPN. If a node service receives the packets,
// it selects the program that gets a run, and the kernel looks only at the first packet.
func slot(p []byte) byte { return p[5] }

// peerOf returns the peer to which a frame with headers h goes.
func (s *Sender) peerOf(h []byte) *peer {
	var dst bth.GID
	if len(h) == LenV4 {
		dst.SetIPv4(h[etherLen+16 : etherLen+20])
	} else {
		dst = bth.GID(h[etherLen+24 : etherLen+40])
	}
	return s.find(&dst)
}

// extend is add for a packet that may fit in the run that the latest message is. It returns false
// if it does not.
func (s *Sender) extend(h, p []byte, id int) bool {
	r, i := &s.run, s.queued-1
	if r.packets == MaxRun || r.closed || len(p) > r.size || len(p) < bth.HeaderLen ||
		r.bytes+len(p) > maxBytes || slot(p) != r.slot || !sameFlow(s.latest, h) ||
		!s.fits(r.peer, p) {
		return false
	}
	p = s.out.add(i, p, 1)
	s.setICRC(h, p, id, r.packets)
	a := &s.about[i]
	if r.packets == 1 {
		a.run = true
		s.out.setControl(i, s.out.addSegment(i, int(a.control), uint16(r.size)))
	}
	r.flow = s.joined(r.peer, p)
	r.head, r.psn = binary.BigEndian.Uint64(p), psn(p)
	r.packets++
	r.bytes += len(p)
	r.closed = len(p) < r.size
	return true
}

// Next is Add for a frame that differs from the latest one only in identification, PSN, AckReq and
// payload, as middle packets do. It returns false if Add must add the frame.
func (s *Sender) Next(b []byte) bool {
	h := s.latest
	n := len(h)
	if len(b) <= n || !s.continues(b[n:]) || !sameFlow(h, b[:n]) {
		return false
	}
	s.latest = b[:n]
	s.joinNext(b[:n], b[n:], ident(b[:n]))
	return true
}

// continues reports whether packet p, if it has the headers of the latest one, differs from it only
// in PSN, AckReq and payload, and fits in its run.
func (s *Sender) continues(p []byte) bool {
	r := &s.run
	return r.packets >= 2 && r.packets < MaxRun && !r.closed && len(p) == r.size &&
		r.bytes+r.size <= maxBytes && binary.BigEndian.Uint64(p) == r.head &&
		psn(p) == (r.psn+1)&psnMask
}

// setICRC changes the ICRC of a packet with headers h, which was computed for the identification
// from, for the identification and the source port that the kernel gives it.
func (s *Sender) setICRC(h, p []byte, from, to int) {
	n := len(h)
	if port := binary.BigEndian.Uint16(h[n-udpLen:]); port != s.socket.Port {
		s.ids.ChangePort(p, port, s.socket.Port)
	}
	if n == LenV4 && from != to {
		s.ids.Change(p, uint16(from), uint16(to))
	}
}

// ident returns the identification in headers; 0: they are of IPv6.
func ident(h []byte) int {
	if len(h) != LenV4 {
		return 0
	}
	return int(binary.BigEndian.Uint16(h[etherLen+4:]))
}

// sameFlow reports whether headers have the same addresses, traffic class and hop limit.
func sameFlow(a, b []byte) bool {
	if len(b) != len(a) {
		return false
	}
	x, y := a[etherLen:], b[etherLen:]
	if len(a) == LenV4 {
		return y[0]>>4 == 4 && x[1] == y[1] && x[8] == y[8] &&
			[8]byte(x[12:20]) == [8]byte(y[12:20])
	}
	return x[0] == y[0] && x[1]>>4 == y[1]>>4 && x[7] == y[7] &&
		[32]byte(x[8:40]) == [32]byte(y[8:40])
}

// start makes message i of packet p with headers b. Its ICRC is for the identification id.
func (s *Sender) start(i int, b, p []byte, id int) {
	m := s.out
	m.begin(i, p)
	name := &m.m[i].name
	h := &m.headers[i].hdr
	ip := b[etherLen:]
	binary.BigEndian.PutUint16(name[2:], bth.Port)
	end := 0
	s.setICRC(b, p, id, 0)
	v4 := len(b) == LenV4
	if s.socket.Index > 0 {
		end = m.addSource(i, ip, v4, s.socket.Index)
	}
	if v4 {
		binary.NativeEndian.PutUint16(name[0:], unix.AF_INET)
		copy(name[4:8], ip[16:20])
		h.Namelen = unix.SizeofSockaddrInet4
		if class := ip[1]; !s.socket.covers(class) {
			end = m.addControl(i, end, unix.IPPROTO_IP, unix.IP_TOS, int32(class))
		}
		if limit := ip[8]; limit != DefaultHopLimit {
			end = m.addControl(i, end, unix.IPPROTO_IP, unix.IP_TTL, int32(limit))
		}
	} else {
		binary.NativeEndian.PutUint16(name[0:], unix.AF_INET6)
		copy(name[8:24], ip[24:40])
		binary.NativeEndian.PutUint32(name[24:], 0)
		if linkLocal(ip[24:40]) {
			binary.NativeEndian.PutUint32(name[24:], uint32(s.Index))
		}
		h.Namelen = unix.SizeofSockaddrInet6
		if class := ip[0]<<4 | ip[1]>>4; !s.socket.covers(class) {
			end = m.addControl(i, end, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, int32(class))
		}
		if limit := ip[7]; limit != DefaultHopLimit {
			end = m.addControl(i, end, unix.IPPROTO_IPV6, unix.IPV6_HOPLIMIT, int32(limit))
		}
	}
	m.setControl(i, end)
	s.about[i] = about{control: uint8(end)}
}

// covers reports whether a message with a traffic class needs no control message for it.
func (k *Socket) covers(class uint8) bool {
	if k.Class == nil {
		return class == 0
	}
	return k.Class.covers(class)
}

// linkLocal reports whether an IPv6 address is a link-local one, or a group of that scope.
func linkLocal(a []byte) bool {
	return a[0] == 0xfe && a[1]&0xc0 == 0x80 || a[0] == 0xff && a[1]&0xf == 2
}

// Flush sends the frames that were added. It sends those of a run that the kernel refuses one by
// one, and drops single frames that the kernel refuses; but see KeepRefused.
func (s *Sender) Flush() {
	n := s.queued
	s.queued, s.run.packets = 0, 0
	s.out.short = s.out.short[:0]
	waited := false
	for at := 0; at < n; {
		s.Stats.Kicks++
		sent, err := s.out.send(s.socket.FD, at, n)
		for i := range sent {
			s.Stats.TxBytes += uint64(s.out.headers[at+i].len)
			s.Stats.TxFrames += uint64(s.out.packets(at + i))
			if s.about[at+i].run {
				s.Stats.TxRuns++
			}
			s.past.add(s.out.packets(at+i), s.head(at+i), int(s.out.headers[at+i].len))
		}
		at += sent
		switch {
		case err == nil:
			waited = false
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN) && !waited:
			waited = true
			s.awaitSpace()
		case errors.Is(err, unix.EAGAIN):
			for ; at < n; at++ {
				s.Stats.TxDropped += uint64(s.out.packets(at))
			}
		case s.KeepRefused && !errors.Is(err, unix.ENOBUFS):
			s.keep(at, n, err)
			at = n
		case s.about[at].run && !errors.Is(err, unix.ENOBUFS):
			s.divide(at, err)
			at++
		default:
			s.refuse(err)
			s.Stats.TxDropped += uint64(s.out.packets(at))
			at++
		}
	}
	if c := s.socket.Class; c != nil {
		c.follow()
	}
}

// awaitSpace waits for space in the send buffer of the socket.
func (s *Sender) awaitSpace() {
	s.writable[0] = unix.PollFd{Fd: int32(s.socket.FD), Events: unix.POLLOUT}
	s.timeout = unix.NsecToTimespec(int64(sendPatience))
	_, _ = unix.Ppoll(s.writable[:], &s.timeout, nil)
}

// Advice says what may be the reason for an error with which the kernel refuses packets.
func Advice(err error) string {
	switch {
	case errors.Is(err, unix.EPERM):
		return "a firewall drops packets to UDP port 4791"
	case errors.Is(err, unix.EMSGSIZE):
		return "a packet exceeds the MTU of the interface: choose a smaller path MTU, or raise the MTU"
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EADDRNOTAVAIL):
		return "the address was removed from the interface"
	case errors.Is(err, unix.ENOBUFS):
		return "the queue of the interface is full"
	}
	return "check the route and the neighbor"
}

func (s *Sender) refuse(err error) {
	if s.Refused != nil {
		s.Refused(err)
	}
}

// keep leaves the frames of messages from to n-1 to the caller.
func (s *Sender) keep(from, n int, err error) {
	s.refuse(err)
	if p := s.about[from].peer; p != nil {
		p.stop()
	}
	for i := from; i < n; i++ {
		s.unsent += s.out.packets(i)
	}
}

// Unsent returns how many of the frames that were added since the previous call are left to the
// caller: the last ones. Their ICRC must be computed again (frame.Encoder.Reseal). Call it after
// Flush.
func (s *Sender) Unsent() int {
	n := s.unsent
	s.unsent = 0
	return n
}

// divide sends the packets of message i, a run that the kernel has refused with an error, one by
// one.
func (s *Sender) divide(i int, cause error) {
	a := &s.about[i]
	packets := s.out.packets(i)
	v4 := s.out.headers[i].hdr.Namelen == unix.SizeofSockaddrInet4
	sent := 0
	for k := range packets {
		p := s.out.packet(i, k)
		if v4 {
			s.ids.Change(p, uint16(k), 0)
		}
		s.out.only(i, k, int(a.control))
		s.Stats.Kicks++
		_, err := s.out.send(s.socket.FD, i, i+1)
		if errors.Is(err, unix.EAGAIN) {
			s.awaitSpace()
			_, err = s.out.send(s.socket.FD, i, i+1)
		}
		if err != nil {
			s.Stats.TxDropped++
			if s.refuse(err); k == 0 { // not because it is a run
				s.Stats.TxDropped += uint64(packets - 1)
				a.peer.stop()
				break
			}
			continue
		}
		sent++
		s.past.add(1, s.head(i), len(p))
		s.Stats.TxFrames++
		s.Stats.TxBytes += uint64(len(p))
	}
	s.out.restore(i)
	if sent > 0 && a.peer.refuse() {
		s.note(fmt.Sprintf("the kernel does not send several packets to %v at once (%v), "+
			"but only one by one", a.peer.addr(), cause))
	}
}

func (s *Sender) note(text string) {
	if s.Note != nil && !s.noted {
		s.noted = true
		s.Note(text)
	}
}
