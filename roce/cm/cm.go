package cm

import (
	"fmt"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/due"
	"github.com/gorxe/gorxe/internal/limit"
)

// CM is a connection manager. It is not safe for concurrent use.
type CM struct {
	guid     GUID
	rand     func() uint64
	ids      IDRange
	ackDelay uint8
	maxConns int
	pkeys    []bth.PKey

	byID     map[CommID]*conn
	byRemote map[remoteKey]*conn
	byQP     map[qpKey]*conn

	listeners    map[listenKey]*listener
	listenersBy  map[ListenerID]*listener
	lastListener ListenerID

	peers       limit.Access
	rate        *limit.Rate // of MADs that belong to no connection
	halfOpen    pool        // slots for connections that peers requested, shared by address
	pending     int
	ages        [numAges]list
	transmit    list
	eventful    list
	timers      due.Queue[*conn] // by deadline
	answers     answers
	answersNext bool // alternates between answers and connections
	responded   bool // see Responded

	establishedHook func(id CommID, established bool) // may be nil

	c Counters

	// Buffers for decoded messages, so that dropped messages cost no allocation.
	in   packet
	req  REQ
	rep  REP
	rej  REJ
	dreq DREQ
	sreq SIDRREQ
	srep SIDRREP
}

// New returns a CM without connections and listeners.
//
// Errors: ErrConfig.
func New(c Config) (*CM, error) {
	if c.AckDelay == 0 {
		c.AckDelay = DefaultAckDelay
	}
	if c.MaxConns == 0 {
		c.MaxConns = defaultMaxConns
	}
	if c.MaxHalfOpen == 0 {
		c.MaxHalfOpen = min(defaultHalfOpen, c.MaxConns)
	}
	if c.Rand == nil || c.GUID == 0 || c.AckDelay > maxExponent {
		return nil, ErrConfig
	}
	if c.MaxConns < 1 || c.MaxConns > maxMaxConns || c.MaxHalfOpen < 1 ||
		c.MaxHalfOpen > c.MaxConns {
		return nil, fmt.Errorf("%w: MaxConns %d (1 to %d), MaxHalfOpen %d (1 to MaxConns)",
			ErrConfig, c.MaxConns, maxMaxConns, c.MaxHalfOpen)
	}
	if c.IDs.Last < c.IDs.First {
		return nil, fmt.Errorf("%w: communication IDs %#x to %#x", ErrConfig, c.IDs.First,
			c.IDs.Last)
	}
	m := &CM{
		guid: c.GUID, rand: c.Rand, ids: c.IDs, ackDelay: c.AckDelay,
		maxConns: c.MaxConns, pkeys: c.PKeys,
		byID: map[CommID]*conn{}, byRemote: map[remoteKey]*conn{}, byQP: map[qpKey]*conn{},
		listeners: map[listenKey]*listener{}, listenersBy: map[ListenerID]*listener{},
		halfOpen: newPool(c.MaxHalfOpen), peers: c.Peers,
	}
	if c.Rate != (limit.RateConfig{}) {
		c.Rate.Seed = c.Rand()
		m.rate = limit.NewRate(c.Rate)
	}
	m.transmit.k, m.eventful.k = linkTransmit, linkEvent
	for i := range m.ages {
		m.ages[i].k = linkAge
	}
	return m, nil
}

// HandleMAD handles a MAD that QP1 has received. It keeps no reference to b. An error means that b
// is not a valid message of the connection manager. It has been counted, and the MAD can be
// dropped; after ErrClass, another agent of QP1 may handle it.
func (m *CM) HandleMAD(now Time, from Addr, b []byte) error {
	m.responded = false
	mad, err := ParseMAD(b)
	if err == nil && (from.Remote.IsZero() || from.Remote.IsMulticast() ||
		from.QPN == 0 || from.QPN >= bth.QPNMulticast) {
		err = ErrSource
	}
	if err != nil {
		m.countBad(err)
		return err
	}
	m.in = packet{mad, from, mad.Attribute()}
	m.c.Received[m.in.attr.Index()]++
	m.dispatch(now, &m.in)
	m.in = packet{}
	return nil
}

// Responded reports whether the latest HandleMAD has caused a message to its sender or an event.
func (m *CM) Responded() bool { return m.responded }

func (m *CM) dispatch(now Time, p *packet) {
	request := p.attr == AttrREQ || p.attr == AttrSIDRREQ
	if request && !m.allow(now, p) {
		return
	}
	c := m.find(now, p)
	if c == nil {
		if request || m.allow(now, p) {
			m.idle(now, p)
		}
		return
	}
	if p.attr == AttrREQ && c.tid != p.m.TID() {
		m.suspect(now, c)
		m.refuseREQ(p, ReasonStaleConnection)
		return
	}
	if h := onMessage[c.state][p.attr]; h != nil {
		h(m, now, c, p)
	} else {
		m.c.Late[p.attr.Index()]++
	}
}

// allow reports whether a message that may belong to no connection is within the rate limit. Other
// messages are not limited, so that a flood does not disturb established connections.
func (m *CM) allow(now Time, p *packet) bool {
	if m.rate == nil || m.rate.Allow(int64(now), p.from.Remote.Addr(), 1) {
		return true
	}
	m.c.DropRate++
	return false
}

func (m *CM) countBad(err error) {
	switch err {
	case ErrMADLength:
		m.c.BadLength++
	case ErrClass:
		m.c.BadClass++
	case ErrAttribute:
		m.c.BadAttribute++
	case ErrSource:
		m.c.BadSource++
	default:
		m.c.BadHeader++
	}
}

// find returns the connection that a message belongs to, or nil. It decodes REQ, REJ and SIDR_REQ.
// A message that names a connection of another peer belongs to none, so its sender learns nothing
// about it.
func (m *CM) find(now Time, p *packet) *conn {
	switch p.attr {
	case AttrREQ:
		m.req.Decode(p.m)
		return m.findRequest(now, p, remoteKey{p.from.Remote, m.req.GUID, m.req.LocalID, false})
	case AttrSIDRREQ:
		m.sreq.Decode(p.m)
		return m.findRequest(now, p, remoteKey{p.from.Remote, 0, m.sreq.RequestID, true})
	case AttrSIDRREP:
		return m.findID(now, p, p.m.LocalID(), 0)
	case AttrREJ:
		m.rej.Decode(p.m)
		if m.rej.RemoteID == 0 && m.rej.Reason == ReasonTimeout {
			// The peer gave up before it received our communication ID. The additional information
			// holds its GUID, which together with its communication ID names the connection.
			return m.byRemote[remoteKey{p.from.Remote, m.rej.guid(), m.rej.LocalID, false}]
		}
	}
	return m.findID(now, p, p.m.RemoteID(), p.m.LocalID())
}

func (m *CM) findID(now Time, p *packet, id, remote CommID) *conn {
	c := m.byID[id]
	switch {
	case c == nil:
		return nil
	case c.addr.GIDPair != p.from.GIDPair, c.remoteID != 0 && c.remoteID != remote:
		m.c.WrongPeer++
		return nil
	}
	c.verify(now)
	return c
}

// findRequest returns the connection of a retransmitted request, or of a request with the same
// communication ID in another transaction, whose sender has forgotten the earlier one.
func (m *CM) findRequest(now Time, p *packet, k remoteKey) *conn {
	c := m.byRemote[k]
	if c == nil {
		return nil
	}
	c.grant()
	if c.tid == p.m.TID() {
		return c
	}
	if c.state == StateRefused || c.state == StateSIDRREPSent {
		m.closed(now, c)
		return nil
	}
	return c
}

// idle answers a message without a connection (IBA 12.9, state Idle).
func (m *CM) idle(now Time, p *packet) {
	a := answer{to: p.from, tid: p.m.TID(), local: p.m.RemoteID(), remote: p.m.LocalID()}
	switch p.attr {
	case AttrREQ:
		m.newRequest(now, p)
		return
	case AttrSIDRREQ:
		m.newSIDR(now, p)
		return
	case AttrREP:
		a.attr, a.reason, a.message = AttrREJ, ReasonInvalidCommID, AnswersREP
	case AttrDREQ:
		a.attr = AttrDREP // even long after TIME-WAIT, so that the peer stops retransmitting
	case AttrLAP:
		a.attr, a.status = AttrAPR, aprInvalidID
	default:
		m.c.UnknownID++
		return
	}
	m.c.UnknownID++
	m.answer(a)
}

// HandleTimeout handles all timers that have expired at now.
func (m *CM) HandleTimeout(now Time) {
	for m.timers.Len() > 0 && m.timers.First().deadline <= now {
		c := m.timers.First()
		m.disarm(c)
		if f := onTimer[c.state]; f != nil {
			f(m, now, c)
		}
	}
}

// NextTimeout returns when the next timer expires, or false if none runs.
func (m *CM) NextTimeout() (Time, bool) {
	if m.timers.Len() == 0 {
		return Never, false
	}
	return m.timers.First().deadline, true
}

// HasTransmit reports whether PollTransmit has a MAD.
func (m *CM) HasTransmit() bool { return m.transmit.head != nil || m.answers.n > 0 }

// PollTransmit writes the next MAD into b, which must have MADLen bytes, and returns its
// destination: a UD SEND from QP1 with the Q_Key bth.QKeyGSI. It returns false if there is no MAD
// or b is too short.
func (m *CM) PollTransmit(_ Time, b []byte) (Addr, bool) {
	if len(b) < MADLen || !m.HasTransmit() {
		return Addr{}, false
	}
	out := (*MAD)(b)
	if m.answersNext = !m.answersNext; (m.answersNext && m.answers.n > 0) ||
		m.transmit.head == nil {
		to := m.answers.pop(out)
		m.c.Sent[out.Attribute().Index()]++
		return to, true
	}
	c := m.transmit.head
	c.leave(linkTransmit)
	if c.before != nil {
		*out, c.before = *c.before, nil
		m.transmit.push(c)
	} else {
		*out = c.sent
	}
	m.c.Sent[out.Attribute().Index()]++
	return c.addr, true
}

// PollEvent returns the next event, or false if there is none.
func (m *CM) PollEvent() (Event, bool) {
	c := m.eventful.head
	if c == nil {
		return Event{}, false
	}
	e := c.events[0]
	c.events[0] = Event{}
	c.events = c.events[1:]
	if len(c.events) == 0 {
		c.events = nil
		c.leave(linkEvent)
	}
	return e, true
}

// Counters returns the CM's own counters, not a copy.
func (m *CM) Counters() *Counters { return &m.c }

// Sizes returns how much the CM holds.
func (m *CM) Sizes() Sizes {
	return Sizes{
		Conns: len(m.byID), Remote: len(m.byRemote), QPs: len(m.byQP),
		HalfOpen: m.halfOpen.total, Sources: len(m.halfOpen.held), Pending: m.pending,
		TimeWait: m.ages[ageTimeWait].n, Linger: m.ages[ageLinger].n,
		Timers: m.timers.Len(), Events: m.eventful.n, Transmit: m.transmit.n, Answers: m.answers.n,
		Listeners: len(m.listeners),
	}
}

// State returns the state of a connection, or StateIdle if it does not exist.
func (m *CM) State(id CommID) State {
	if c := m.byID[id]; c != nil {
		return c.state
	}
	return StateIdle
}
