package cm

import (
	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/limit"
)

// conn is a connection or a SIDR exchange.
type conn struct {
	id, remoteID CommID // remoteID: 0 until known
	state        State
	addr         Addr
	remote       remoteKey // of the request's sender; on the active side zero until the REP
	qp           qpKey
	localQPN     bth.QPN
	psn          bth.PSN  // starting PSN in the REQ
	features     Features // offered in the REQ
	active       bool     // this side sent the request
	user         bool     // the user may name it
	ended        bool     // the user has got the event that ends it
	inRemote     bool     // in CM.byRemote under the key remote
	inQPs        bool
	tid          uint64 // transaction of the setup or of the SIDR exchange
	releaseTID   uint64 // transaction of the DREQ
	interval     Time   // between retransmissions
	again        Time   // a retransmission from then on is answered by an MRA; see extend
	timeWait     Time
	deadline     Time // when onTimer is called
	lastCall     Time // half-open connections: latest deadline
	since        Time // when it entered its age list
	suspectAt    Time // earliest time of the next EventSuspect
	retries      uint8
	maxRetries   uint8
	mras         uint8
	verified     bool  // the peer receives our messages, or this side sent the request
	budget       uint8 // MADs that may be sent before the peer is verified
	responder    uint8 // pending requests: the largest responder resources and
	depth        uint8 // initiator depth that the request allows

	// sent is the message to retransmit in this state. before is the previous one, if it was still
	// waiting to be sent when sent replaced it.
	sent   MAD
	before *MAD

	service  ServiceID
	listener *listener
	events   []Event // to be polled; at most one of each kind
	timer    int     // of CM.timers
	links    [numLinks]link
}

// remoteKey identifies a request. The communication ID is the peer's choice, so the peer's address
// and GUID are part of the key. A SIDR request has no GUID, and its IDs are separate from those of
// connections.
type remoteKey struct {
	gid  bth.GID
	guid GUID
	id   CommID
	sidr bool
}

// qpKey identifies a remote QP. The address is part of it, so that a peer cannot end connections of
// another peer by using its GUID.
type qpKey struct {
	gid  bth.GID
	guid GUID
	qpn  bth.QPN
}

// A connection may be in three lists at a time.
const (
	linkTransmit = iota
	linkEvent
	linkAge
	numLinks
)

type link struct {
	prev, next *conn
	in         *list
}

// list is a queue of connections, linked by conn.links[k].
type list struct {
	head, tail *conn
	n          int
	k          uint8
}

// push appends c unless it is already in the list.
func (l *list) push(c *conn) {
	if c.links[l.k].in != nil {
		return
	}
	c.links[l.k] = link{prev: l.tail, in: l}
	if l.tail != nil {
		l.tail.links[l.k].next = c
	} else {
		l.head = c
	}
	l.tail = c
	l.n++
}

// leave removes c from the list that links[k] is in, if any.
func (c *conn) leave(k uint8) {
	e := c.links[k]
	if e.in == nil {
		return
	}
	if e.prev != nil {
		e.prev.links[k].next = e.next
	} else {
		e.in.head = e.next
	}
	if e.next != nil {
		e.next.links[k].prev = e.prev
	} else {
		e.in.tail = e.prev
	}
	e.in.n--
	c.links[k] = link{}
}

// Due implements due.Item.
func (c *conn) Due() int64 { return int64(c.deadline) }

// Slot implements due.Item.
func (c *conn) Slot() *int { return &c.timer }

// arm sets the connection's deadline.
func (m *CM) arm(c *conn, t Time) {
	c.deadline = t
	m.timers.Set(c)
}

func (m *CM) disarm(c *conn) { m.timers.Remove(c) }

// pool shares slots among the prefixes of peers' addresses: a prefix that holds k slots gets
// another one only while more than k are free. So one greedy prefix gets at most half of the slots,
// n greedy prefixes get n/(n+1) of them, and a new prefix always finds one (dynamic thresholds, as
// in shared packet buffers).
type pool struct {
	size, total int
	held        map[bth.GID]int // by prefixOf
}

// prefixOf returns the address that stands for all addresses that one host can easily have: an IPv4
// address itself, the first address of an IPv6 /64.
func prefixOf(g bth.GID) bth.GID {
	if !g.IsIPv4() {
		clear(g[limit.BitsIPv6/8:])
	}
	return g
}

func newPool(size int) pool { return pool{size: size, held: map[bth.GID]int{}} }

// verdict is the result of admit.
type verdict uint8

const (
	admitted verdict = iota
	poolFull
	shareTaken
)

func (p *pool) admit(peer bth.GID) verdict {
	free := p.size - p.total
	switch {
	case free <= 0:
		return poolFull
	case p.held[prefixOf(peer)] >= free:
		return shareTaken
	}
	return admitted
}

func (p *pool) add(peer bth.GID) {
	p.held[prefixOf(peer)]++
	p.total++
}

func (p *pool) remove(peer bth.GID) {
	key := prefixOf(peer)
	p.total--
	if p.held[key]--; p.held[key] == 0 {
		delete(p.held, key)
	}
}

type listener struct {
	id      ListenerID
	key     listenKey
	pending pool
	peers   limit.Access
}

type listenKey struct {
	service ServiceID
	local   bth.GID // zero: any of the family
	family  Family
}
