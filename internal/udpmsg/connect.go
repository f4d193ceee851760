package udpmsg

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Connected is a socket for the packets of one peer that has UDP port 4791 on both sides. The
// kernel looks up no routes for them and compares fewer sockets.
//
// It numbers IPv4 packets: the identification begins with a random value when the socket is
// connected, and grows by 1 with each packet. The ICRC covers it, so it must be known; see Number.
type Connected struct {
	Listener

	family  int // AF_INET, AF_INET6
	local   netip.Addr
	peer    unix.Sockaddr
	class   *Class
	sink    unix.Sockaddr // address of a socket that drops all packets
	sinkFD  int           // this socket; 0: it is not open
	next    uint16        // identification of the next packet
	ready   bool          // next is correct
	known   bool          // it was correct before, and the peer has seen it
	tries   int           // calls of Number that have failed
	refused int           // packets in a row that the kernel has refused
}

const (
	// maxFirst is the largest identification of the first packet. The peer has seen
	// identifications near 0, and some peers accept only slightly larger ones as plausible (package
	// frame, identAhead).
	maxFirst = 1536
	// maxTries is the number of calls of Number after which the socket never sends. One in
	// 65536/maxFirst finds an identification that is low enough.
	maxTries = 1024
	// maxRefused is the number of refused packets in a row after which the socket never sends.
	maxRefused = 16
)

// Connect opens a socket for the packets between an address and a peer, in the network namespace of
// the calling thread. listeners are the descriptors of all sockets that are bound to the address;
// the new one receives in their stead what the peer sends from port 4791. index is the number of
// the interface.
//
// Until the first Receive that finds nothing, the new socket may also have packets of other peers.
func Connect(listeners []int, a netip.Addr, index int, peer netip.Addr) (*Connected, error) {
	// Sockets may have the same address only if all of them allow it. Nobody else shall.
	defer reusePort(listeners, 0)
	reusePort(listeners, 1)
	l, err := Listen(a, index, true)
	if err != nil {
		return nil, err
	}
	reusePort([]int{l.FD}, 0)
	c := &Connected{Listener: l, family: unix.AF_INET6, local: a, peer: sockaddr(peer, index),
		class: NewClass(l.FD, a.Is6())}
	if a.Is4() {
		c.family = unix.AF_INET
	}
	c.ready = a.Is6() // there is no identification
	if err := unix.Connect(c.FD, c.peer); err != nil {
		c.Close()
		return nil, fmt.Errorf("connect a UDP socket to %v: %w", peer, err)
	}
	return c, nil
}

func reusePort(fds []int, value int) {
	for _, fd := range fds {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, value) // Linux 3.9
	}
}

// Close closes the socket.
func (c *Connected) Close() {
	c.closeSink()
	_ = unix.Close(c.FD)
}

func (c *Connected) closeSink() {
	if c.sinkFD > 0 {
		_ = unix.Close(c.sinkFD)
	}
	c.sinkFD = 0
}

// Ready reports whether the socket can send.
func (c *Connected) Ready() bool { return c.ready }

// ReportHopLimit sets whether the kernel reports the hop limit of received packets, which it does
// at first.
func (c *Connected) ReportHopLimit(on bool) {
	value := 0
	if on {
		value = 1
	}
	if c.family == unix.AF_INET {
		_ = unix.SetsockoptInt(c.FD, unix.IPPROTO_IP, unix.IP_RECVTTL, value)
	} else {
		_ = unix.SetsockoptInt(c.FD, unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, value)
	}
}

// Number finds out which identification the next packet has: it sends a packet to a socket of this
// process that drops it, and asks for the time when it is sent, because the kernel returns the
// whole packet with it. If the identification is too large for a first one, the next call connects
// the socket again. Number does nothing if the socket is ready, or if it has failed too often.
func (c *Connected) Number() {
	if c.ready || c.tries == maxTries {
		return
	}
	if c.tries++; c.tries > 1 && !c.known && unix.Connect(c.FD, c.peer) != nil {
		return
	}
	id, err := c.probe()
	switch {
	case err != nil:
		c.tries = maxTries
	case c.known || id < maxFirst:
		c.next, c.ready, c.known, c.tries = id+1, true, true, 0
	default:
		return // sink is needed again
	}
	c.closeSink()
}

// probeText is the content of the packet of probe.
var probeText = []byte("gorxe: identification?")

// probe sends a packet to the sink and returns its identification.
func (c *Connected) probe() (id uint16, err error) {
	if c.sinkFD == 0 {
		if err := c.openSink(); err != nil {
			return 0, err
		}
	}
	const flags = unix.SOF_TIMESTAMPING_TX_SCHED | unix.SOF_TIMESTAMPING_SOFTWARE
	if err := unix.SetsockoptInt(c.FD, unix.SOL_SOCKET, unix.SO_TIMESTAMPING, flags); err != nil {
		return 0, err
	}
	// The time is also available if the packet is dropped because the loopback interface is down.
	_ = unix.Sendto(c.FD, probeText, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, c.sink)
	err = unix.SetsockoptInt(c.FD, unix.SOL_SOCKET, unix.SO_TIMESTAMPING, 0)
	if err != nil {
		return 0, err
	}
	var b [256]byte
	for found := false; ; {
		n, _, _, _, err := unix.Recvmsg(c.FD, b[:], nil, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		if err != nil && found {
			return id, nil
		}
		if err != nil {
			return 0, err
		}
		ip := n - len(probeText) - udpLen - ipv4Len
		if ip >= 0 && b[ip] == 4<<4|ipv4Len/4 && bytes.HasSuffix(b[:n], probeText) {
			id, found = binary.BigEndian.Uint16(b[ip+4:]), true
		}
	}
}

// openSink opens the socket to which probe sends.
func (c *Connected) openSink() (err error) {
	c.sinkFD, err = unix.Socket(c.family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	s := Socket{FD: c.sinkFD}
	if err := s.discard(); err != nil {
		return err
	}
	if err := unix.Bind(c.sinkFD, &unix.SockaddrInet4{Addr: c.local.As4()}); err != nil {
		return err
	}
	c.sink, err = unix.Getsockname(c.sinkFD)
	return err
}

// SendTo sends a frame with headers of n bytes, LenV4 or LenV6, through a connected socket after
// all frames that were added. It returns false if the caller must add the frame instead. Then the
// frame has another traffic class or hop limit than the socket, or the kernel has refused it.
func (s *Sender) SendTo(c *Connected, b []byte, n int) bool {
	if !c.ready {
		return false
	}
	p, ip := b[n:], b[etherLen:]
	class, limit := ip[0]<<4|ip[1]>>4, ip[7]
	if n == LenV4 {
		class, limit = ip[1], ip[8]
	}
	if !c.class.covers(class) {
		c.class.follow()
		return false
	}
	if limit != DefaultHopLimit {
		return false
	}
	if s.queued > 0 {
		s.Flush()
	}
	s.Observe(b, n)
	id := binary.BigEndian.Uint16(ip[4:])
	if n == LenV4 {
		s.ids.Change(p, id, c.next)
	}
	s.Stats.Kicks++
	if err := sendAlone(c.FD, p); err != nil {
		if n == LenV4 {
			s.ids.Change(p, c.next, id)
			c.ready = false // perhaps the packet had a number
		}
		if c.refused++; c.refused == maxRefused {
			c.ready, c.tries = false, maxTries
		}
		return false
	}
	c.refused = 0
	c.next++
	s.Stats.TxFrames++
	s.Stats.TxBytes += uint64(len(p))
	s.past.add(1, n, len(p))
	return true
}
