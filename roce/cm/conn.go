package cm

import (
	"container/heap"

	"github.com/gorxe/gorxe/bth"
)

// conn is a connection or a SIDR exchange.
type conn struct {
	id, remoteID CommID // remoteID: 0 until known
	state        State
	addr         Addr
	remote       remoteKey // of whoever sent the request; zero on the active side until the REP
	qp           qpKey
	localQPN     bth.QPN
	active       bool // this end sent the request
	user         bool // the user may name it
	ended        bool // the user knows that it ends
	inRemote     bool // found in CM.remote under the key remote
	inQPs        bool
	tid          uint64 // of the set-up, or of the SIDR exchange
	releaseTID   uint64 // of the DREQ
	interval     Time   // before a message is repeated
	again        Time   // from when on a peer that repeats what the user thinks about is asked for patience
	timeWait     Time
	deadline     Time // when onTimer is called
	lastCall     Time // pending: not to wait beyond that
	since        Time // when it entered its list of ages
	retries      uint8
	maxRetries   uint8
	mras         uint8
	responder    uint8 // pending: the largest responder resources and
	depth        uint8 // initiator depth that the request allows

	// Each state has one message to repeat: sent. If it replaced one that still waited to be sent,
	// that one goes first.
	sent   MAD
	before *MAD

	service  ServiceID
	listener *listener
	events   []Event // to poll; at most one of each kind
	heap     int     // place in CM.timers, -1: none
	links    [numLinks]link
}

// remoteKey finds the connection of a request that comes again: the peer's communication ID is its
// own choice, so it counts with the peer's address and GUID only. A SIDR request has no GUID, and
// its IDs are a space of their own.
type remoteKey struct {
	gid  bth.GID
	guid GUID
	id   CommID
	sidr bool
}

// qpKey finds the connection to a remote QP. The address is part of it, so that nobody who writes
// another's GUID into his REQ breaks that one's connections.
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

// list is a queue of connections, linked through place k of each.
type list struct {
	head, tail *conn
	n          int
	k          uint8
}

// push appends c unless it is in the list already.
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

// leave takes c out of the list that it is in through place k, if any.
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

// timers is a heap by deadline.
type timers []*conn

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].deadline < t[j].deadline }
func (t timers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].heap, t[j].heap = i, j
}
func (t *timers) Push(x any) {
	c := x.(*conn)
	c.heap = len(*t)
	*t = append(*t, c)
}
func (t *timers) Pop() any {
	last := len(*t) - 1
	c := (*t)[last]
	(*t)[last] = nil
	*t = (*t)[:last]
	c.heap = -1
	return c
}

// arm sets the connection's deadline.
func (m *CM) arm(c *conn, t Time) {
	c.deadline = t
	if c.heap >= 0 {
		heap.Fix(&m.timers, c.heap)
	} else {
		heap.Push(&m.timers, c)
	}
}

func (m *CM) disarm(c *conn) {
	if c.heap >= 0 {
		heap.Remove(&m.timers, c.heap)
	}
}

// pool shares a number of places among keys so that none can take all: a key that holds k places
// gets another while more than k are free. One greedy key ends with half of them, n greedy ones with
// n parts in n+1, and a newcomer finds a place (the dynamic thresholds of shared packet buffers).
type pool struct {
	size, total int
	held        map[bth.GID]int
}

func newPool(size int) pool { return pool{size: size, held: map[bth.GID]int{}} }

// verdict of admit.
type verdict uint8

const (
	admitted verdict = iota
	poolFull
	shareTaken
)

func (p *pool) admit(key bth.GID) verdict {
	free := p.size - p.total
	switch {
	case free <= 0:
		return poolFull
	case p.held[key] >= free:
		return shareTaken
	}
	return admitted
}

func (p *pool) add(key bth.GID) {
	p.held[key]++
	p.total++
}

func (p *pool) remove(key bth.GID) {
	p.total--
	if p.held[key]--; p.held[key] == 0 {
		delete(p.held, key)
	}
}

type listener struct {
	id      ListenerID
	key     listenKey
	pending pool
}

type listenKey struct {
	service ServiceID
	local   bth.GID // zero: any
}
