package cm

import (
	"fmt"

	"github.com/gorxe/gorxe/bth"
)

// CM is a connection manager. One thread owns it; see the package comment.
type CM struct {
	guid     GUID
	rand     func() uint64
	ackDelay uint8
	maxConns int

	byID     map[CommID]*conn
	byRemote map[remoteKey]*conn
	byQP     map[qpKey]*conn

	listeners    map[listenKey]*listener
	listenersBy  map[ListenerID]*listener
	lastListener ListenerID

	halfOpen pool // places for connections that peers asked for, shared by address
	pending  int
	ages     [numAges]list
	transmit list
	eventful list
	timers   timers
	answers  answers
	turn     bool // whose turn to send: answers', then connections'

	c Counters

	// What comes in and is decoded lives here, so that messages that are dropped cost no memory.
	in   packet
	req  REQ
	rep  REP
	rej  REJ
	dreq DREQ
	sreq SIDRREQ
	srep SIDRREP
}

// New makes a CM without connections and listeners.
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
	if c.MaxConns < 1 || c.MaxConns > maxMaxConns || c.MaxHalfOpen < 1 || c.MaxHalfOpen > c.MaxConns {
		return nil, fmt.Errorf("%w: MaxConns %d (1 to %d), MaxHalfOpen %d (1 to MaxConns)", ErrConfig, c.MaxConns, maxMaxConns, c.MaxHalfOpen)
	}
	m := &CM{
		guid: c.GUID, rand: c.Rand, ackDelay: c.AckDelay, maxConns: c.MaxConns,
		byID: map[CommID]*conn{}, byRemote: map[remoteKey]*conn{}, byQP: map[qpKey]*conn{},
		listeners: map[listenKey]*listener{}, listenersBy: map[ListenerID]*listener{},
		halfOpen: newPool(c.MaxHalfOpen),
	}
	m.transmit.k, m.eventful.k = linkTransmit, linkEvent
	for i := range m.ages {
		m.ages[i].k = linkAge
	}
	return m, nil
}

// HandleMAD takes in a MAD that came to QP1. It keeps no reference to b. The error says why b is no
// message of the communication manager; it is counted, and nothing else needs doing about it, except
// that ErrClass leaves the MAD to other agents of QP1.
func (m *CM) HandleMAD(now Time, from Addr, b []byte) error {
	mad, err := ParseMAD(b)
	if err == nil && (from.Remote.IsZero() || from.Remote.IsMulticast() || from.QPN == 0 || from.QPN >= bth.QPNMulticast) {
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

func (m *CM) dispatch(now Time, p *packet) {
	c := m.find(now, p)
	if c == nil {
		m.idle(now, p)
		return
	}
	if h := onMessage[c.state][p.attr]; h != nil {
		h(m, now, c, p)
	} else {
		m.c.Late[p.attr.Index()]++
	}
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

// find is the connection that a message is for, nil if there is none. It decodes REQ, REJ and
// SIDR_REQ on the way. What names another peer's connection finds none, so that the sender learns
// nothing of it.
func (m *CM) find(now Time, p *packet) *conn {
	switch p.attr {
	case AttrREQ:
		m.req.Decode(p.m)
		return m.findRequest(now, p, remoteKey{p.from.Remote, m.req.GUID, m.req.LocalID, false})
	case AttrSIDRREQ:
		m.sreq.Decode(p.m)
		return m.findRequest(now, p, remoteKey{p.from.Remote, 0, m.sreq.RequestID, true})
	case AttrSIDRREP:
		return m.findID(p, p.m.LocalID(), 0)
	case AttrREJ:
		m.rej.Decode(p.m)
		if m.rej.RemoteID == 0 && m.rej.Reason == ReasonTimeout {
			// The peer gave up before it heard of us; its GUID, in the information, tells whose
			// communication ID it means.
			return m.byRemote[remoteKey{p.from.Remote, m.rej.guid(), m.rej.LocalID, false}]
		}
	}
	return m.findID(p, p.m.RemoteID(), p.m.LocalID())
}

func (m *CM) findID(p *packet, id, remote CommID) *conn {
	c := m.byID[id]
	switch {
	case c == nil:
		return nil
	case c.addr.Remote != p.from.Remote || c.addr.Local != p.from.Local || (c.remoteID != 0 && c.remoteID != remote):
		m.c.WrongPeer++
		return nil
	}
	return c
}

// findRequest finds the connection of a request that came before. The same communication ID with
// another transaction is not that request: the peer has forgotten the first.
func (m *CM) findRequest(now Time, p *packet, k remoteKey) *conn {
	c := m.byRemote[k]
	if c == nil || c.tid == p.m.TID() {
		return c
	}
	switch c.state {
	case StateRefused, StateSIDRREPSent:
		m.closed(now, c)
		return nil
	case StateSIDRREQRcvd, StateDREQSent, StateDREQRcvd, StateTimeWait:
		return c
	}
	m.stale(now, c)
	if c.state == StateIdle {
		return nil
	}
	return c
}

// idle answers a message that is for no connection here (IBA 12.9: state Idle).
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
		a.attr = AttrDREP // also long after TIME-WAIT: the peer need not repeat it
	case AttrLAP:
		a.attr, a.status = AttrAPR, aprInvalidID
	default:
		m.c.UnknownID++
		return
	}
	m.c.UnknownID++
	m.answer(a)
}

// HandleTimeout does what is due at now.
func (m *CM) HandleTimeout(now Time) {
	for len(m.timers) > 0 && m.timers[0].deadline <= now {
		c := m.timers[0]
		m.disarm(c)
		if f := onTimer[c.state]; f != nil {
			f(m, now, c)
		}
	}
}

// NextTimeout tells when HandleTimeout has something to do, and false if nothing is pending.
func (m *CM) NextTimeout() (Time, bool) {
	if len(m.timers) == 0 {
		return Never, false
	}
	return m.timers[0].deadline, true
}

// HasTransmit tells whether PollTransmit has a MAD.
func (m *CM) HasTransmit() bool { return m.transmit.head != nil || m.answers.n > 0 }

// PollTransmit writes the next MAD into b, which has room for MADLen bytes, and says where to send it:
// as a UD SEND from QP1 with the Q_Key bth.QKeyGSI. It returns false when there is none, and for a
// b too short.
func (m *CM) PollTransmit(_ Time, b []byte) (Addr, bool) {
	if len(b) < MADLen || !m.HasTransmit() {
		return Addr{}, false
	}
	out := (*MAD)(b)
	if m.turn = !m.turn; (m.turn && m.answers.n > 0) || m.transmit.head == nil {
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

// PollEvent returns the next event, and false when there is none.
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

// Counters are the CM's own: read them on its thread.
func (m *CM) Counters() *Counters { return &m.c }

// Sizes tells how much the CM holds.
func (m *CM) Sizes() Sizes {
	return Sizes{
		Conns: len(m.byID), Remote: len(m.byRemote), QPs: len(m.byQP),
		HalfOpen: m.halfOpen.total, Sources: len(m.halfOpen.held), Pending: m.pending,
		TimeWait: m.ages[ageTimeWait].n, Linger: m.ages[ageLinger].n,
		Timers: len(m.timers), Events: m.eventful.n, Transmit: m.transmit.n, Answers: m.answers.n,
		Listeners: len(m.listeners),
	}
}

// State is a connection's state; StateIdle if there is none of that name.
func (m *CM) State(id CommID) State {
	if c := m.byID[id]; c != nil {
		return c.state
	}
	return StateIdle
}
