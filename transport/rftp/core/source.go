package core

import "fmt"

// State is the state of a block. The names are those of the paper.
type State uint8

const (
	// Free blocks of a source are unused. Those of a sink have not been granted.
	Free State = iota
	// Loading: the program of the source fills the block.
	Loading
	// Loaded: the block waits for a credit, or is to be sent again.
	Loaded
	// Sending: the driver posts the WRITE.
	Sending
	// Waiting: the WRITE was posted and has not completed.
	Waiting
	// Granted: the peer may write the block of a sink.
	Granted
	// Ready: the block of a sink is complete, and the program has not consumed it.
	Ready
)

func (s State) String() string {
	return [...]string{"free", "loading", "loaded", "sending", "waiting", "granted", "ready"}[s]
}

// none is the index of no block.
const none = -1

// outBlock is a block of the source.
type outBlock struct {
	state   State
	session *Outgoing
	seq     uint32
	len     uint32
	qp      int
	g       grant // valid if granted
	granted bool  // has a credit
	lost    bool  // waiting, and its QP has failed
	kept    bool  // the sink says that it has not arrived
	prev    int   // in the list of loaded blocks
	next    int
}

// Outgoing is a session of the source.
type Outgoing struct {
	id       uint32
	params   []byte
	next     uint32 // sequence number of the next block
	posted   uint32 // blocks that were posted at least once
	consumed uint32 // blocks that the sink has consumed, as far as known
	held     int    // blocks of the source's pool
	window   window // sequence numbers of completed blocks
	opened   bool   // the peer knows the session
	ended    bool   // no more blocks
	endSent  bool   // the peer knows
	aborted  bool   // it ends early
	done     bool   // the sink is done with it
	text     string // reason of an abort
	err      error
}

// ID returns the number of the session.
func (o *Outgoing) ID() uint32 { return o.id }

// Done reports whether the sink has consumed all blocks and knows that there are no more.
func (o *Outgoing) Done() bool { return o.done }

// Err returns why the session was aborted, or nil.
func (o *Outgoing) Err() error { return o.err }

// source is the sending half of a connection.
type source struct {
	blocks   []outBlock
	free     ring[int]
	first    int // list of loaded blocks
	last     int
	loaded   int // blocks in it
	backlog  int // GetFree leaves it at so many loaded and posted blocks; 0: no limit
	sessions map[uint32]*Outgoing
	lastID   uint32
	orders   ring[*Outgoing] // to be opened or ended
	onWire   int             // sessions that the peer knows and is not done with

	accepted     bool
	peerBlocks   int
	peerSessions int
	credits      ring[grant]
	credit       []creditState // by block of the peer
	grants       uint32
	requested    uint32 // credits that were asked for
	answered     uint32 // of these, asked for by requests that the sink has answered
	dry          bool
	stuck        bool         // no loaded block can be sent until something changes
	fins         ring[uint32] // IDs of completed blocks (Paper)

	qps      []outQP
	alive    int
	turn     int
	nextSend Time // Rate
	due      Time
}

type creditState uint8

const (
	notOurs creditState = iota
	unused
	inUse
)

type outQP struct {
	dead    bool
	down    bool // QPDown is to be sent
	waiting bool // for QPState
	posted  int
	bytes   uint64
}

func (s *source) init(c *Config) {
	s.blocks = make([]outBlock, c.SourceBlocks)
	for i := range s.blocks {
		s.free.push(i)
	}
	s.first, s.last = none, none
	s.sessions = map[uint32]*Outgoing{}
	s.qps = make([]outQP, c.QPs)
	s.alive = c.QPs
	s.due = Never
}

// Open begins a session. params must not change until it has ended. ErrSessions: Config.Sessions
// are open.
func (m *Machine) Open(params []byte) (*Outgoing, error) {
	s := &m.src
	switch {
	case m.err != nil:
		return nil, m.err
	case m.fin.wanted || s.lastID == 1<<32-1:
		return nil, ErrEnded
	case len(params) > MaxParams:
		return nil, fmt.Errorf("%w: %d bytes of parameters: use at most %d", ErrLength, len(params),
			MaxParams)
	case len(s.sessions) >= m.cfg.Sessions:
		return nil, ErrSessions
	}
	s.lastID++
	o := &Outgoing{id: s.lastID, params: params}
	s.sessions[o.id] = o
	s.orders.push(o)
	return o, nil
}

// GetFree makes the block that was last used of the free ones of the source's pool a loading one.
// It returns false if there is none, if session o, which may be nil, has its share, or because of
// SetBacklog.
func (m *Machine) GetFree(o *Outgoing) (int, bool) {
	s := &m.src
	n := s.free.len()
	if m.err != nil || n == 0 || s.busy() ||
		(o != nil && m.cfg.Sessions > 1 && o.held > 0 && o.held >= shareOf*n) {
		return 0, false
	}
	i := s.free.popLast()
	s.blocks[i] = outBlock{state: Loading, session: o}
	if o != nil {
		o.held++
	}
	return i, true
}

// SetBacklog makes GetFree return false while at least n blocks are loaded or posted, unless there
// are credits and no loaded block can use one: then another session may have blocks that can. 0: no
// limit.
func (m *Machine) SetBacklog(n int) {
	m.src.backlog = n
	m.changed |= FreeChanged
}

// busy reports whether enough blocks are loaded or posted.
func (s *source) busy() bool {
	if s.backlog == 0 || s.stuck && s.credits.len() > 0 {
		return false
	}
	return s.loaded+s.posted() >= s.backlog
}

// posted returns how many blocks are posted on QPs that work.
func (s *source) posted() (n int) {
	for i := range s.qps {
		if !s.qps[i].dead {
			n += s.qps[i].posted
		}
	}
	return n
}

// PutFree returns a loading block.
func (m *Machine) PutFree(i int) error {
	if i < 0 || i >= len(m.src.blocks) || m.src.blocks[i].state != Loading {
		return ErrBlock
	}
	m.release(i)
	return nil
}

// release makes a block free.
func (m *Machine) release(i int) {
	b := &m.src.blocks[i]
	if b.session != nil {
		b.session.held--
	}
	*b = outBlock{}
	m.src.free.push(i)
	m.changed |= FreeChanged
}

// Send makes a loading block a loaded one of n bytes, and returns its sequence number in the
// session. The driver writes the header before it polls the next action.
func (m *Machine) Send(o *Outgoing, i int, n uint32) (seq uint32, err error) {
	s := &m.src
	switch {
	case m.err != nil:
		return 0, m.err
	case i < 0 || i >= len(s.blocks) || s.blocks[i].state != Loading:
		return 0, ErrBlock
	case n > m.cfg.BlockSize:
		return 0, fmt.Errorf("%w: %d bytes in a block of %d", ErrLength, n, m.cfg.BlockSize)
	case o.err != nil:
		return 0, o.err
	case o.ended || o.next == 1<<32-1:
		return 0, ErrEnded
	}
	b := &s.blocks[i]
	if b.session != o {
		if b.session != nil {
			b.session.held--
		}
		b.session = o
		o.held++
	}
	b.state, b.len, b.seq = Loaded, n, o.next
	o.next++
	s.append(i)
	s.stuck = false
	return b.seq, nil
}

// End says that a session has no more blocks.
func (m *Machine) End(o *Outgoing) {
	if !o.ended {
		o.ended = true
		m.src.orders.push(o)
	}
}

// AbortSession ends a session early. Blocks that were not posted are not sent. If the session has
// ended and all blocks were posted, it has no effect.
func (m *Machine) AbortSession(o *Outgoing, err error, text string) {
	if o.done || o.err != nil || (o.ended && o.posted == o.next) {
		return
	}
	m.stop(o, err, text)
}

// stop drops the blocks of a session that were not posted, and tells the peer how many were.
func (m *Machine) stop(o *Outgoing, err error, text string) {
	s := &m.src
	o.err = err
	for i := s.first; i != none; {
		next := s.blocks[i].next
		if s.blocks[i].session == o && !s.blocks[i].granted {
			s.remove(i)
			m.release(i)
		}
		i = next
	}
	if !o.aborted {
		o.aborted, o.text = true, cut(text)
		// An order that waits tells the peer about the abort. If there is none, or an End was sent,
		// another one is necessary.
		if !o.ended || o.endSent {
			m.src.orders.push(o)
		}
		o.ended = true
	}
	m.changed |= SessionsChanged | FreeChanged
}

// append adds a loaded block to the end of the list.
func (s *source) append(i int) {
	b := &s.blocks[i]
	s.loaded++
	if b.prev, b.next = s.last, none; s.last == none {
		s.first = i
	} else {
		s.blocks[s.last].next = i
	}
	s.last = i
}

// prepend adds a block to the front of the list.
func (s *source) prepend(i int) {
	b := &s.blocks[i]
	s.loaded++
	if b.prev, b.next = none, s.first; s.first == none {
		s.last = i
	} else {
		s.blocks[s.first].prev = i
	}
	s.first = i
}

func (s *source) remove(i int) {
	b := &s.blocks[i]
	s.loaded--
	if b.prev == none {
		s.first = b.next
	} else {
		s.blocks[b.prev].next = b.next
	}
	if b.next == none {
		s.last = b.prev
	} else {
		s.blocks[b.next].prev = b.prev
	}
}

// share reports whether a session may use another credit, so that sessions whose blocks the sink
// does not consume leave credits to others.
func (m *Machine) share(o *Outgoing) bool {
	if m.cfg.Mode != Proactive || m.cfg.Sessions == 1 || m.src.peerSessions == 1 {
		return true
	}
	used := int(o.posted - o.consumed)
	return used == 0 || used < shareOf*m.src.credits.len()
}

// missing returns how many credits the source must ask for.
func (m *Machine) missing() uint32 {
	s := &m.src
	if m.cfg.Mode == Proactive || !s.accepted || s.first == none {
		return 0
	}
	if m.cfg.Mode == Paper {
		if s.credits.len() > 0 || s.requested != s.answered || s.blocks[s.last].granted {
			return 0
		}
		return 1
	}
	coming := int(s.requested-s.grants) + s.credits.len()
	want := min(s.loaded, s.peerBlocks)
	return uint32(max(0, want-coming))
}

// pollWrite posts the next loaded block that has a credit.
func (m *Machine) pollWrite(now Time, a *Action) bool {
	s := &m.src
	if s.stuck || s.first == none {
		return false
	}
	if m.cfg.Rate > 0 && now < s.nextSend {
		s.due = s.nextSend
		return false
	}
	qp := s.pick(m.cfg.QPDepth)
	if qp == none {
		return false
	}
	for i := s.first; i != none; i = s.blocks[i].next {
		if b := &s.blocks[i]; m.sendable(b) {
			s.remove(i)
			m.write(now, i, qp, a)
			return true
		}
	}
	s.stuck = true
	m.changed |= FreeChanged
	return false
}

// sendable reports whether a loaded block has, or can get, a credit.
func (m *Machine) sendable(b *outBlock) bool {
	s := &m.src
	switch {
	case b.granted:
		return true
	case s.credits.len() == 0:
		if !s.dry {
			s.dry = true
			m.Counters.Dry++
		}
		return false
	case !b.session.opened || !m.share(b.session):
		return false
	}
	if b.session.window.bits == nil {
		b.session.window = newWindow(2 * s.peerBlocks)
	}
	return b.session.window.fits(b.seq)
}

// write gives a block a credit and makes the action.
func (m *Machine) write(now Time, i, qp int, a *Action) {
	s := &m.src
	b := &s.blocks[i]
	if !b.granted {
		b.g, b.granted = s.credits.popLast(), true
		s.credit[index(b.g.id)] = inUse
		b.session.posted++
	}
	b.state, b.qp = Sending, qp
	q := &s.qps[qp]
	q.posted++
	q.bytes += uint64(b.len)
	s.turn = qp + 1
	if m.cfg.Rate > 0 {
		s.nextSend = max(now, s.nextSend) + Time(uint64(b.len)*1e9/m.cfg.Rate)
	}
	*a = Action{Kind: DoWrite, Block: i, QP: qp, Addr: b.g.addr, Key: b.g.key,
		Len: HeaderLen + b.len, Imm: b.g.id, WithImm: m.cfg.Mode != Paper}
}

// pick returns the data QP with the fewest bytes outstanding, or none.
func (s *source) pick(depth int) int {
	best := none
	for k := range s.qps {
		i := (s.turn + k) % len(s.qps)
		q := &s.qps[i]
		if q.dead || q.posted >= depth {
			continue
		}
		if best == none || q.bytes < s.qps[best].bytes {
			best = i
		}
	}
	return best
}

// Posted says whether the WRITE of a block was posted. If it was not, the block is loaded again and
// keeps its credit.
func (m *Machine) Posted(i int, ok bool) {
	s := &m.src
	b := &s.blocks[i]
	if b.state != Sending {
		return
	}
	if ok {
		b.state = Waiting
		return
	}
	m.unpost(b)
	b.state = Loaded
	s.prepend(i)
}

// unpost takes a block from its QP.
func (m *Machine) unpost(b *outBlock) {
	q := &m.src.qps[b.qp]
	q.posted--
	q.bytes -= uint64(b.len)
}

// WriteDone says that the WRITE of a block has completed successfully.
func (m *Machine) WriteDone(i int) {
	if i < 0 || i >= len(m.src.blocks) || m.src.blocks[i].state != Waiting {
		return
	}
	m.completed(i)
}

// completed handles a block that is in the sink's memory.
func (m *Machine) completed(i int) {
	s := &m.src
	b := &s.blocks[i]
	m.unpost(b)
	m.Counters.BlocksSent++
	m.Counters.BytesSent += uint64(b.len)
	if at := index(b.g.id); s.credit[at] == inUse {
		s.credit[at] = notOurs
	}
	if m.cfg.Mode == Paper {
		s.fins.push(b.g.id)
	}
	b.session.window.add(b.seq)
	m.release(i)
	s.stuck = false
}

func (m *Machine) handleAccept(c *control) {
	s := &m.src
	blocks, sessions := c.u32(4), c.u32(8)
	switch {
	case s.accepted:
		m.violated("a second %v", c.typ)
		return
	case c.u32(0) != m.cfg.BlockSize || Mode(c.body[12]) != m.cfg.Mode:
		m.violated("it accepts blocks of %d bytes in %v mode, agreed are %d bytes in %v mode",
			c.u32(0), Mode(c.body[12]), m.cfg.BlockSize, m.cfg.Mode)
		return
	case blocks < 1 || blocks > MaxBlocks || sessions < 1 || sessions > MaxSessions:
		m.violated("%d blocks and %d sessions, allowed are 1 to %d and %d", blocks, sessions,
			MaxBlocks, MaxSessions)
		return
	}
	s.accepted, s.peerBlocks, s.peerSessions = true, int(blocks), int(sessions)
	s.credit = make([]creditState, blocks)
	m.addGrants(c, acceptBody)
}

func (m *Machine) handleGrant(c *control) {
	s := &m.src
	n := uint32((len(c.body) - grantBody) / grantLen)
	answered := c.u32(4)
	switch {
	case !s.accepted || n == 0:
		m.violated("%v with %d grants, before an %v", c.typ, n, TypeAccept)
		return
	case c.u32(0) != s.grants+n:
		m.violated("it counts %d grants, this side %d", c.u32(0), s.grants+n)
		return
	case answered-s.answered > s.requested-s.answered:
		m.violated("it answers a request for credit %d, %d were asked for", answered, s.requested)
		return
	}
	s.answered = answered
	m.addGrants(c, grantBody)
}

// addGrants takes the grants of a message from offset at on.
func (m *Machine) addGrants(c *control, at int) {
	s := &m.src
	for ; at < len(c.body); at += grantLen {
		g := c.grant(at)
		i := index(g.id)
		switch {
		case i >= s.peerBlocks:
			m.violated("it grants block %d of %d", i, s.peerBlocks)
			return
		case s.credit[i] == unused || (s.credit[i] == inUse && m.cfg.Mode == Paper):
			m.violated("it grants block %d twice", i)
			return
		}
		// A block in use is granted again if its WRITE has arrived and is not acknowledged yet.
		s.credit[i] = unused
		s.credits.push(g)
		s.grants++
	}
	s.stuck, s.dry = false, false
}

func (m *Machine) handleConsumed(c *control) {
	for at := 0; at < len(c.body); at += reportLen {
		id, n := c.u32(at), c.u32(at+4)
		o := m.src.sessions[id]
		if o == nil || n < o.consumed || n > o.posted {
			m.violated("it has consumed %d blocks of session %d", n, id)
			return
		}
		o.consumed = n
	}
	m.src.stuck = false
}

func (m *Machine) handleDone(c *control) {
	for at := 0; at < len(c.body); at += 4 {
		o := m.src.sessions[c.u32(at)]
		if o == nil || !o.endSent {
			m.violated("it is done with session %d, which has not ended", c.u32(at))
			return
		}
		o.done = true
		delete(m.src.sessions, o.id)
		m.src.onWire--
	}
	m.changed |= SessionsChanged
	m.src.stuck = false
}

func (m *Machine) handleRefuse(c *control) {
	o := m.src.sessions[c.u32(0)]
	if o == nil || !o.opened {
		m.violated("it aborts session %d, which is not open", c.u32(0))
		return
	}
	if o.err == nil {
		m.stop(o, &AbortError{Session: o.id, Text: string(c.body[4:])}, "")
	}
}
