package udpmsg

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/gorxe/gorxe/bth"
)

// Runs may get lost on the way to a peer. A receiver on an AF_XDP socket without multi-buffer drops
// them. A NIC that cuts them may number the packets in another way than the kernel does, so that
// their ICRC is wrong. The port does not hear of that, but it sees that the engine retransmits
// packets that have been in runs.
//
// A peer has a credit, which grows by 1 for each packet of a run and shrinks by lossCost for each
// retransmitted packet. If it becomes negative, no runs are sent to the peer for a while, which
// doubles each time. Packets that the engine does not retransmit (UC, UD) and ACKs are in runs only
// if the credit shows that runs arrive.
const (
	lossCost   = 8
	proven     = 2048    // credit from which on runs are known to arrive
	maxCredit  = 1 << 14 // limits for how long losses remain unnoticed
	shortPause = 100 * time.Millisecond
	longPause  = 64 * time.Second
	noteAfter  = 3 // pauses in a row

	maxPeers = 1 << 12 // known at a time
	// maxSubnet is how many of them have addresses of one IPv6 /64, which one host can have.
	maxSubnet = 1 << 8
	maxFlows  = 1 << 12 // QPs whose latest packets are known
	psnMask   = 1<<24 - 1
	// maxBack is how many packets a retransmitted packet may lie behind the latest one. A packet
	// further behind belongs to a new connection.
	maxBack = 1 << 14
)

// peer is what is known about a destination address.
type peer struct {
	gid    bth.GID
	id     uint64
	credit int
	used   bool // runs were sent after the latest pause
	proven bool
	safe   bool // packets do not leave this host
	off    bool // no runs until resume
	resume time.Time
	pause  time.Duration // the next one
	pauses int           // in a row
}

// peers are the peers of a Sender.
type peers struct {
	known   map[bth.GID]*peer
	subnets map[subnet][]*peer // those with IPv6 addresses
	recent  *peer
	flows   [maxFlows]flow
	number  uint64 // of peers so far
	noted   bool
}

// flow is the latest packet in runs to a QP, of requests or of responses.
type flow struct {
	key    uint64 // peer, direction and QP
	latest uint32 // PSN
}

// subnet is the first half of an IPv6 address.
type subnet [8]byte

func (s *peers) init() {
	s.known, s.subnets = map[bth.GID]*peer{}, map[subnet][]*peer{}
}

// find returns the peer with an address.
func (s *peers) find(gid *bth.GID) *peer {
	if s.recent != nil && s.recent.gid == *gid {
		return s.recent
	}
	p := s.known[*gid]
	if p == nil {
		s.number++
		a := gid.Addr()
		p = &peer{gid: *gid, id: s.number, pause: shortPause,
			safe: a.Is4() && a.IsLoopback(), off: a.IsMulticast()}
		if p.off {
			p.resume = time.Now().AddDate(1, 0, 0)
		}
		s.add(p)
	}
	s.recent = p
	return p
}

// add adds a peer. If there are too many, it removes any other one, of the same subnet if that has
// too many.
func (s *peers) add(p *peer) {
	if !p.gid.IsIPv4() {
		key := subnet(p.gid[:8])
		if list := s.subnets[key]; len(list) == maxSubnet {
			s.remove(list[s.number%maxSubnet])
		}
		s.subnets[key] = append(s.subnets[key], p)
	}
	if len(s.known) == maxPeers {
		for _, other := range s.known {
			s.remove(other)
			break
		}
	}
	s.known[p.gid] = p
}

func (s *peers) remove(p *peer) {
	delete(s.known, p.gid)
	if p.gid.IsIPv4() {
		return
	}
	key := subnet(p.gid[:8])
	list := s.subnets[key]
	if i := slices.Index(list, p); len(list) == 1 {
		delete(s.subnets, key)
	} else {
		s.subnets[key] = slices.Delete(list, i, i+1)
	}
}

func (p *peer) addr() netip.Addr { return p.gid.Addr() }

// fits reports whether packet b to a peer may be in a run.
func (s *Sender) fits(p *peer, b []byte) bool {
	switch {
	case p.safe:
		return !p.off || p.resumes()
	case p.paused():
		return false
	}
	key, reliable := flowKey(p, b)
	if !reliable {
		return p.proven
	}
	if !s.again(p, key, b) {
		return true
	}
	if p.lost() {
		s.note(fmt.Sprintf("packets that the kernel sends to %v together get lost: they are sent "+
			"one by one", p.addr()))
	}
	return false
}

// Accepts reports whether a run to the peer of a frame may begin with the packet after its headers
// of n bytes.
func (s *Sender) Accepts(b []byte, n int) bool {
	p := s.peerOf(b[:n])
	if p.paused() {
		return false
	}
	key, reliable := flowKey(p, b[n:])
	return p.safe || reliable && !s.again(p, key, b[n:]) || !reliable && p.proven
}

// Pauses reports whether no runs are sent to the peer of a frame at the moment.
func (s *Sender) Pauses(b []byte, n int) bool { return s.peerOf(b[:n]).paused() }

// paused reports whether no runs are sent to the peer at the moment, unless it is on this host.
func (p *peer) paused() bool { return !p.safe && p.off && !p.resumes() }

// again reports whether packet b of a flow to a peer was in a run before.
func (s *Sender) again(p *peer, key uint64, b []byte) bool {
	f := &s.flows[flowIndex(key)]
	return p.used && f.key == key && (f.latest-psn(b))&psnMask < maxBack
}

// Observe tells the Sender about a frame that is sent in another way, since it may have been in a
// run before.
func (s *Sender) Observe(b []byte, n int) {
	if p := s.peerOf(b[:n]); p.used && !p.off {
		s.fits(p, b[n:])
	}
}

// joined records that packet b to a peer is in a run. It returns the flow, or nil if it does not
// record it.
func (s *Sender) joined(p *peer, b []byte) *flow {
	if p.safe {
		return nil
	}
	key, reliable := flowKey(p, b)
	if !reliable {
		return nil
	}
	f := &s.flows[flowIndex(key)]
	f.key = key
	p.joined(f, psn(b), 1)
	return f
}

// joined records that n packets of a flow to the peer are in a run, the latest with a PSN.
func (p *peer) joined(f *flow, psn uint32, n int) {
	f.latest, p.used = psn, true
	if p.credit == maxCredit {
		return
	}
	if p.credit = min(p.credit+n, maxCredit); p.credit >= proven {
		p.proven = true
	}
	if p.credit == maxCredit {
		p.pause, p.pauses = shortPause, 0
	}
}

func psn(b []byte) uint32 { return uint32(b[9])<<16 | uint32(b[10])<<8 | uint32(b[11]) }

// flowKey returns the key of the flow of packet b, and whether the engine retransmits the packet
// until it has arrived: requests of RC, and responses with data.
func flowKey(p *peer, b []byte) (key uint64, reliable bool) {
	op := bth.Opcode(b[0])
	if op >= bth.RCAck && op <= bth.RCAtomicAck || op>>5 != 0 {
		return 0, false
	}
	key = p.id<<32 | uint64(b[5])<<16 | uint64(b[6])<<8 | uint64(b[7])
	if op >= bth.RCReadResponseFirst && op <= bth.RCReadResponseOnly {
		key |= 1 << 31
	}
	return key, true
}

func flowIndex(key uint64) uint64 { return key * 0x9e3779b97f4a7c15 >> 52 }

// lost records that a packet is retransmitted. It returns true if the user should know.
func (p *peer) lost() bool {
	if p.credit -= lossCost; p.credit >= 0 {
		return false
	}
	p.stop()
	return p.pauses == noteAfter
}

// stop ends runs for a while.
func (p *peer) stop() {
	p.off, p.used, p.proven, p.credit = true, false, false, 0
	p.resume = time.Now().Add(p.pause)
	p.pause = min(2*p.pause, longPause)
	p.pauses++
}

// resumes ends a pause when it is over.
func (p *peer) resumes() bool {
	if time.Now().Before(p.resume) {
		return false
	}
	p.off = false
	return true
}

// refuse records that the kernel does not send runs to the peer. It returns true for the first
// time in a row.
func (p *peer) refuse() bool {
	p.pause = longPause
	p.stop()
	return p.pauses == 1
}
