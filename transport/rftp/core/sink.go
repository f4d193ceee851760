package core

import "fmt"

// inBlock is a block of the sink.
type inBlock struct {
	state   State
	grants  uint16 // how often it was granted
	reading bool   // a Fin has announced it, and the driver reads its header
	taken   bool   // ready, and the program has it
	session *incoming
	len     uint32
}

// incoming is a session of the sink.
type incoming struct {
	id       uint32
	params   []byte
	opened   bool  // its Open has arrived
	early    []int // blocks that arrived before
	received uint32
	consumed uint32
	reported uint32 // consumed blocks that the peer knows of
	dirty    bool   // in sink.dirty
	total    uint32 // blocks that the peer has sent, if ended
	ended    bool
	aborted  bool // by the peer
	refused  bool // by this side
	text     string
	queued   bool   // its Ended is in sink.ready, or was
	told     bool   // the program knows that it has ended
	window   window // sequence numbers of blocks that have arrived
}

// sink is the receiving half of a connection.
type sink struct {
	pool      Pool
	blocks    []inBlock
	free      ring[int]
	granted   int // blocks in this state, and in the next one
	complete  int
	grants    uint32 // since the beginning
	allowed   int    // blocks that may be granted now (Paper, OnDemand)
	requested uint32 // credits that the source has asked for
	owed      bool   // a request waits for a free block (Paper)
	acceptDue bool

	sessions map[uint32]*incoming
	lastID   uint32 // of the last session that was opened
	ready    ring[readyItem]
	refusals ring[refusal]
	dirty    ring[*incoming]
	done     ring[uint32] // sessions to report
	reads    ring[uint32] // IDs of blocks whose header is to be read
}

type refusal struct {
	id   uint32
	text string
}

type readyItem struct {
	kind    ReadyKind
	block   int
	session *incoming
}

// ReadyKind is what happened to a session of the peer.
type ReadyKind uint8

const (
	// Opened: the peer has opened the session. It comes before all blocks.
	Opened ReadyKind = iota
	// Data: a block has arrived. Blocks of a session come in any order.
	Data
	// Ended: the session is complete: all its blocks came before.
	Ended
	// Aborted: the peer has ended the session early.
	Aborted
)

func (k ReadyKind) String() string {
	return [...]string{"opened", "data", "ended", "aborted"}[k&3]
}

// Item is what GetReady returns.
type Item struct {
	Kind    ReadyKind
	Session uint32
	Block   int    // Data
	Len     uint32 // Data: bytes of payload
	Params  []byte // Opened
	Blocks  uint32 // Ended: number of blocks of the session
	Text    string // Aborted: the peer's reason
}

// Accept gives the sink its memory and tells the peer. It may be called once.
func (m *Machine) Accept(p Pool) error {
	s := &m.snk
	stride := uint64(HeaderLen) + uint64(m.cfg.BlockSize)
	switch {
	case s.blocks != nil:
		return fmt.Errorf("%w: the sink has a pool already", ErrConfig)
	case p.Blocks < 1 || p.Blocks > MaxBlocks:
		return fmt.Errorf("%w: %d blocks of the sink: choose 1 to %d", ErrConfig, p.Blocks,
			MaxBlocks)
	case p.Stride < stride || p.Addr+uint64(p.Blocks)*p.Stride < p.Addr:
		return fmt.Errorf("%w: blocks of %d bytes every %d bytes", ErrConfig, stride, p.Stride)
	}
	s.pool, s.blocks = p, make([]inBlock, p.Blocks)
	for i := range s.blocks {
		s.free.push(i)
	}
	s.acceptDue = true
	return nil
}

// grantable returns how many blocks are to be granted now.
func (s *sink) grantable(mode Mode) int {
	free := s.free.len()
	if mode != Proactive {
		return min(s.allowed, free)
	}
	// While the source has many credits, several blocks are granted by one message.
	if free < min(maxBatch, len(s.blocks)/batchOf) && 2*s.granted >= len(s.blocks) {
		return 0
	}
	return free
}

const (
	maxBatch = 8
	batchOf  = 32
)

// grant grants a free block.
func (s *sink) grant(mode Mode) grant {
	i := s.free.pop()
	b := &s.blocks[i]
	b.state = Granted
	b.grants++
	s.granted++
	s.grants++
	if mode != Proactive {
		s.allowed--
	}
	return grant{id: s.id(i), key: s.pool.Key, addr: s.pool.Addr + uint64(i)*s.pool.Stride}
}

// id returns the ID of the last grant of a block.
func (s *sink) id(i int) uint32 { return uint32(s.blocks[i].grants)<<16 | uint32(i) }

// find returns the block of a grant that the peer may use, or none.
func (s *sink) find(id uint32) int {
	i := index(id)
	if i >= len(s.blocks) || s.blocks[i].state != Granted || s.id(i) != id {
		return none
	}
	return i
}

// allow permits up to n further grants (Paper, OnDemand).
func (s *sink) allow(n int) { s.allowed += min(n, s.free.len()-s.allowed) }

// request answers requests for credits, as far as blocks are free.
func (s *sink) request(mode Mode) {
	switch mode {
	case Paper:
		// Grants that are about to be sent answer the request.
		if s.owed && s.allowed == 0 && s.free.len() > 0 {
			s.allow(1)
		}
		s.owed = s.owed && s.allowed == 0
	case OnDemand:
		s.allowed = min(int(s.requested-s.grants), s.free.len())
	}
}

func (m *Machine) handleRequest(c *control) {
	s := &m.snk
	n := c.u32(0)
	switch {
	case s.blocks == nil || s.acceptDue:
		m.violated("%v before the %v", c.typ, TypeAccept)
		return
	case m.cfg.Mode == Proactive:
		m.violated("%v in %v mode", c.typ, m.cfg.Mode)
		return
	case m.cfg.Mode == Paper && (n != s.requested+1 || s.owed):
		m.violated("a request for credit %d after %d", n, s.requested)
		return
	case m.cfg.Mode == OnDemand &&
		(n-s.grants > uint32(len(s.blocks)) || n-s.grants <= s.requested-s.grants):
		m.violated("a request for credit %d after %d, %d were granted", n, s.requested, s.grants)
		return
	}
	s.requested, s.owed = n, true
	m.Counters.RequestsReceived++
	s.request(m.cfg.Mode)
}

// handleFin handles the announcement of blocks by a message.
func (m *Machine) handleFin(c *control) {
	s := &m.snk
	if m.cfg.Mode != Paper {
		m.violated("%v in %v mode", c.typ, m.cfg.Mode)
		return
	}
	for at := 0; at < len(c.body); at += idLen {
		id := c.u32(at)
		i := s.find(id)
		if i == none || s.blocks[i].reading {
			m.notGranted(id)
			return
		}
		s.blocks[i].reading = true
		s.reads.push(id)
	}
}

func (m *Machine) notGranted(id uint32) {
	m.violated("it announces block %d of grant %d, which it was not granted or has announced "+
		"before", index(id), id>>16)
}

// Arrived says that the block with a grant's ID is complete. length is the number of bytes of the
// WRITE with immediate; 0 after a DoRead. h is a copy of the header.
func (m *Machine) Arrived(now Time, id, length uint32, h *Header) {
	if m.err != nil {
		return
	}
	s := &m.snk
	i := s.find(id)
	switch {
	case i == none || s.blocks[i].reading != (length == 0):
		m.notGranted(id)
		return
	case h.Len > m.cfg.BlockSize || (length != 0 && length != HeaderLen+h.Len):
		m.violated("a block of %d bytes has the length %d in its header", int64(length)-HeaderLen,
			h.Len)
		return
	}
	o := m.sessionOf(h.Session)
	if o == nil {
		return
	}
	switch {
	case !o.window.fits(h.Seq) || o.window.has(h.Seq):
		m.violated("block %d of session %d is out of sequence or repeated", h.Seq, o.id)
		return
	case o.ended && o.received >= o.total:
		m.violated("more than %d blocks of session %d", o.total, o.id)
		return
	}
	m.heard(now)
	o.window.add(h.Seq)
	o.received++
	b := &s.blocks[i]
	b.state, b.reading, b.session, b.len = Ready, false, o, h.Len
	s.granted--
	s.complete++
	m.Counters.BlocksReceived++
	m.Counters.BytesReceived += uint64(h.Len)
	if m.cfg.Mode == Paper {
		s.allow(2)
	}
	switch {
	case o.refused || o.aborted:
		m.drop(i)
	case o.opened:
		s.ready.push(readyItem{kind: Data, block: i, session: o})
		m.changed |= ReadyChanged
	default:
		o.early = append(o.early, i)
	}
	m.progress(o)
}

// sessionOf returns the session of a block. The session may not have been opened yet, because the
// control QP and the data QPs are not ordered.
func (m *Machine) sessionOf(id uint32) *incoming {
	s := &m.snk
	if o := s.sessions[id]; o != nil {
		return o
	}
	if id-s.lastID-1 >= uint32(m.cfg.Sessions) {
		m.violated("a block of session %d, which is not open", id)
		return nil
	}
	return s.session(id)
}

// session creates a session.
func (s *sink) session(id uint32) *incoming {
	o := &incoming{id: id, window: newWindow(2 * len(s.blocks))}
	s.sessions[id] = o
	return o
}

func (m *Machine) handleOpen(c *control) {
	s := &m.snk
	id := c.u32(0)
	switch {
	case s.blocks == nil || s.acceptDue || m.fin.peer:
		m.violated("it opens a session before the %v or after the %v", TypeAccept, TypeFinish)
		return
	case id != s.lastID+1:
		m.violated("it opens session %d after %d", id, s.lastID)
		return
	}
	s.lastID = id
	o := s.sessions[id]
	if o == nil {
		o = s.session(id)
	}
	if len(s.sessions) > m.cfg.Sessions {
		m.violated("more than %d open sessions", m.cfg.Sessions)
		return
	}
	o.opened = true
	o.params = append([]byte(nil), c.body[4:]...)
	s.ready.push(readyItem{kind: Opened, session: o})
	for _, i := range o.early {
		s.ready.push(readyItem{kind: Data, block: i, session: o})
	}
	o.early = nil
	m.changed |= ReadyChanged
}

func (m *Machine) handleEnd(c *control) {
	s := &m.snk
	o := s.sessions[c.u32(0)]
	total, abort := c.u32(4), c.u32(8)
	switch {
	case o == nil || !o.opened || abort > 1:
		m.violated("it ends session %d, which is not open", c.u32(0))
		return
	case o.refused && abort == 0:
		return // it has not seen the Refuse, and ends the session again when it has
	case o.ended && (o.aborted || abort == 0 || total >= o.total):
		m.violated("it ends session %d again", o.id)
		return
	case total < o.received:
		m.violated("it ends session %d after %d blocks, and %d have arrived", o.id, total,
			o.received)
		return
	}
	o.ended, o.total = true, total
	if abort == 1 {
		o.aborted, o.text = true, string(c.body[endBody:])
		if !o.refused {
			s.ready.push(readyItem{kind: Aborted, session: o})
			m.changed |= ReadyChanged
		}
		m.dropReady(o)
		return
	}
	m.progress(o)
}

// RefuseSession ends a session of the peer early. Blocks that GetReady has not returned are
// dropped; the others are to be returned. It fails with ErrEnded if the program knows that the
// session has ended and has returned all its blocks.
func (m *Machine) RefuseSession(id uint32, text string) error {
	o := m.snk.sessions[id]
	switch {
	case m.err != nil:
		return m.err
	case o == nil || !o.opened || o.aborted || o.refused:
		return ErrEnded
	}
	// The peer answers with an End, even if it has sent one.
	o.refused, o.told, o.ended = true, true, false
	m.snk.refusals.push(refusal{id, cut(text)})
	m.dropReady(o)
	return nil
}

// dropReady drops the blocks of an aborted session that the program has not taken.
func (m *Machine) dropReady(o *incoming) {
	s := &m.snk
	for range s.ready.len() {
		it := s.ready.pop()
		switch {
		case it.session != o || (it.kind != Data && !o.refused):
			s.ready.push(it)
		case it.kind == Data:
			m.drop(it.block)
		}
	}
	m.finish(o)
}

// drop consumes a block that the program does not get.
func (m *Machine) drop(i int) {
	m.Counters.BlocksDropped++
	m.consume(i)
}

// consume makes a ready block free.
func (m *Machine) consume(i int) {
	s := &m.snk
	b := &s.blocks[i]
	o := b.session
	*b = inBlock{grants: b.grants}
	s.complete--
	s.free.push(i)
	o.consumed++
	s.request(m.cfg.Mode)
	batch := uint32(max(1, len(s.blocks)/16))
	if !o.dirty && m.cfg.Mode == Proactive && m.cfg.Sessions > 1 && o.opened &&
		o.consumed-o.reported >= batch {
		o.dirty = true
		s.dirty.push(o)
	}
}

// progress handles the end of a session.
func (m *Machine) progress(o *incoming) {
	if !o.ended || o.received != o.total {
		return
	}
	if !o.queued && !o.aborted {
		o.queued = true
		m.snk.ready.push(readyItem{kind: Ended, session: o})
		m.changed |= ReadyChanged
	}
	m.finish(o)
}

// GetReady stores the next event of a session of the peer in it. It returns false if there is none.
func (m *Machine) GetReady(it *Item) bool {
	s := &m.snk
	if s.ready.len() == 0 {
		return false
	}
	r := s.ready.pop()
	o := r.session
	*it = Item{Kind: r.kind, Session: o.id}
	switch r.kind {
	case Opened:
		it.Params, o.params = o.params, nil
	case Data:
		s.blocks[r.block].taken = true
		it.Block, it.Len = r.block, s.blocks[r.block].len
	case Ended, Aborted:
		it.Blocks, it.Text = o.total, o.text
		o.told = true
		m.finish(o)
	}
	if s.ready.len() == 0 && m.fin.peer {
		m.changed |= EndChanged
	}
	return true
}

// PutReady says that the program has consumed a block.
func (m *Machine) PutReady(i int) error {
	s := &m.snk
	if i < 0 || i >= len(s.blocks) || !s.blocks[i].taken {
		return ErrBlock
	}
	o := s.blocks[i].session
	m.consume(i)
	m.finish(o)
	return nil
}

// finish tells the peer that a session is done: nothing more of it will arrive, the program has
// returned all its blocks and knows that it has ended.
func (m *Machine) finish(o *incoming) {
	s := &m.snk
	if o.ended && o.received == o.total && o.consumed == o.total && o.told &&
		s.sessions[o.id] == o {
		delete(s.sessions, o.id)
		s.done.push(o.id)
	}
}
