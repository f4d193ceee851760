package udp

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/osnet"
	"github.com/gorxe/gorxe/internal/udpmsg"
	"golang.org/x/sys/unix"
)

// A peer that gets packets one by one gets a connected socket: the kernel then needs less time for
// each packet, on both sides. Several frames of one call may become a run and go through the socket
// of the address. The kernel sends the packets of both sockets in the order of the calls, and the
// peer receives both in one socket.
const (
	connectAfter = 256 // frames to a peer in a row, each of them alone in a call of Send
	numberEvery  = 16  // frames between two calls of udpmsg.Connected.Number
	maxConnected = 8   // connected sockets of a Port
	maxFailures  = 4   // connected sockets that could not be opened, until no more are tried
	// unusedTime is how long a connected socket must have been without packets before it makes room
	// for another one.
	unusedTime = time.Second
)

// busy is the peer to which the latest frames went one by one.
type busy struct {
	from  *socket
	to    bth.GID
	count int     // of these frames
	sock  *socket // connected to the peer; nil: there is none
}

// connected is what only connected sockets have.
type connected struct {
	*udpmsg.Connected
	peer bth.GID
	hops uint8 // hop limit of received packets; 0: unknown
	told bool  // the kernel reports the hop limit of all packets
	// The socket may have packets from before it was connected, also of other peers, and its parent
	// older packets of its peer.
	fresh bool

	packets, seen int // sent and received; the former at the time at
	at            time.Time
}

// named reports whether received packets need the address of their sender.
func (s *socket) named() bool { return s.parent == nil || s.out.fresh }

// receiveFailed records the error of a receive. Errors other than EAGAIN are from earlier sends.
func (s *socket) receiveFailed(err error) {
	if err == unix.EAGAIN { // nothing was left to receive
		s.out.fresh = false
	}
}

// hopLimit returns the hop limit of a packet that a connected socket has received. limit is the one
// that the kernel reports. It does so only until the first packet, because it needs time for each
// report, and from the first datagram on: programs see the hop limit of datagrams.
func (s *socket) hopLimit(limit uint8, packet []byte) uint8 {
	c := &s.out
	c.packets++
	switch {
	case c.told:
	case isDatagram(packet):
		c.told = true
		c.ReportHopLimit(true)
	case limit > 0 && c.hops == 0 && !c.fresh:
		c.hops = limit
		c.ReportHopLimit(false)
	}
	if limit == 0 {
		limit = c.hops
	}
	return limit
}

// isDatagram reports whether a packet is a datagram of a program, not of the connection manager.
func isDatagram(packet []byte) bool {
	if len(packet) < minPacket { // the last one of a forged run
		return false
	}
	const transport = 0xe0 // in an opcode
	b := bth.BTH(packet)
	return b.Opcode()&transport == bth.UDSendOnly&transport && b.DestQP() != bth.QPNGSI
}

// receiveOlder receives what the parent of a fresh connected socket has. It returns false if there
// was nothing.
func (p *Port) receiveOlder(s *socket) bool {
	before := len(p.ready)
	p.receiveFrom(s.parent)
	return len(p.ready) > before
}

// sendAlone sends a frame with headers of n bytes that is alone in a call of Send through the
// connected socket of its peer. It returns false if the frame must be sent in another way.
func (p *Port) sendAlone(s *socket, b []byte, n int) bool {
	var to bth.GID
	if n == udpmsg.LenV4 {
		to.SetIPv4(b[etherLen+16 : etherLen+20])
	} else {
		to = bth.GID(b[etherLen+24 : etherLen+40])
	}
	w := &p.busy
	if w.from != s || w.to != to {
		*w = busy{from: s, to: to, sock: p.connectedTo(s, &to)}
	}
	w.count++
	switch {
	case w.sock == nil && w.count%connectAfter == 0:
		w.sock = p.connect(s, to)
		return false
	case w.sock == nil:
		return false
	case w.count%numberEvery == 0 && !w.sock.out.Ready():
		w.sock.out.Number()
		return false
	}
	w.sock.out.packets++
	return p.out.SendTo(w.sock.out.Connected, b, n)
}

// connectedTo returns the socket that is connected to a peer, or nil.
func (p *Port) connectedTo(s *socket, to *bth.GID) *socket {
	if p.connections > 0 {
		for _, c := range p.socks {
			if c.parent == s && c.out.peer == *to {
				return c
			}
		}
	}
	return nil
}

// connect opens a socket that is connected to a peer, or returns nil.
func (p *Port) connect(s *socket, to bth.GID) *socket {
	a := to.Addr()
	if p.net.from != nil || p.net.shared || p.failures == maxFailures || a.IsMulticast() ||
		a == s.addr || !p.makeRoom() {
		return nil
	}
	var c *udpmsg.Connected
	fds := []int{s.fd}
	for _, other := range p.socks {
		if other.parent == s {
			fds = append(fds, other.fd)
		}
	}
	err := osnet.In(p.net.ns, func() (err error) {
		c, err = udpmsg.Connect(fds, s.addr, p.net.index, a)
		return err
	})
	if err != nil { // the user of the process has changed, or the kernel does not permit it
		p.failures++
		return nil
	}
	n := newSocket(s.addr, c.Listener)
	n.parent, n.out = s, connected{Connected: c, peer: to, fresh: true, at: time.Now()}
	n.setSource(a)
	p.socks = append(p.socks, n)
	p.makePolls()
	return n
}

// setSource makes an address and UDP port 4791 the source of the prepared headers.
func (s *socket) setSource(a netip.Addr) {
	at := etherLen + 12 // of the source address in an IPv4 header
	if a.Is6() {
		at = etherLen + 8
	}
	copy(s.header[at:], a.AsSlice())
	binary.BigEndian.PutUint16(s.header[len(s.header)-udpLen:], bth.Port)
}

// makeRoom reports whether there may be another connected socket. It closes one that is not used.
func (p *Port) makeRoom() bool {
	count, unused, now := 0, -1, time.Now()
	for i, s := range p.socks {
		if s.parent == nil {
			continue
		}
		count++
		c := &s.out
		if c.packets != c.seen {
			c.seen, c.at = c.packets, now
		} else if now.Sub(c.at) >= unusedTime {
			unused = i
		}
	}
	if count < maxConnected {
		return true
	}
	if unused >= 0 {
		p.stats.RxDropped += drops(p.socks[unused].fd)
		p.socks[unused].close()
		p.socks = slices.Delete(p.socks, unused, unused+1)
		p.hot, p.from, p.busy = 0, 0, busy{}
		p.makePolls()
	}
	return unused >= 0
}
