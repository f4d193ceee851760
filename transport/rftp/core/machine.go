package core

import (
	"errors"
	"fmt"
)

// Machine is one side of a connection: its source, its sink and the control messages of both. It is
// not safe for concurrent use.
type Machine struct {
	cfg     Config
	err     error
	changed Changes

	ctl  channel
	bye  string // the reason of a Bye
	byes byeState
	src  source
	snk  sink
	rec  recovery
	fin  finish

	Counters Counters
}

// channel is the exchange of control messages.
type channel struct {
	sent, acked     uint32 // messages sent; messages that the peer has processed
	sends           int    // SENDs that have not completed
	received        uint32 // messages received, and the number that was last sent to the peer
	reported        uint32
	out             ring[[]byte] // messages of the program
	outN, outTaken  uint32       // those that were sent, and that the peer's program has taken
	in              ring[[]byte]
	inTaken, inTold uint32 // those that the program has taken; the number last sent to the peer

	sentAt, heardAt Time // last sign of life of this side, and of the peer
	due             Time // when HandleTimeout must look at them
	keepalive       bool // a sign of life is due
	w               builder
}

type byeState uint8

const (
	byeNone byeState = iota
	byeDue
	byeSent
)

// finish is the orderly end.
type finish struct {
	wanted, sent bool   // this side opens no more sessions; the peer knows
	at           uint32 // number of control messages sent until then
	done         bool   // the message has reached the peer
	peer         bool   // the peer opens no more sessions
}

// New creates a machine. Its sink has no memory until Accept.
func New(now Time, c Config) (*Machine, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	m := &Machine{cfg: c}
	m.ctl.sentAt, m.ctl.heardAt = now, now
	m.ctl.due = now + c.Silence/keepalives
	m.src.init(&c)
	m.snk.sessions = map[uint32]*incoming{}
	m.rec.qps = make([]qpRecovery, c.QPs)
	return m, nil
}

// Err returns why the connection has ended, or nil. The driver then polls the last actions and
// closes the QPs.
func (m *Machine) Err() error { return m.err }

// Changed returns what has changed since the last call.
func (m *Machine) Changed() Changes {
	c := m.changed
	m.changed = 0
	return c
}

// Kill ends the connection because of an error of this side's NIC.
func (m *Machine) Kill(err error) {
	if m.err == nil {
		m.err = err
		m.changed = ^Changes(0)
	}
}

// Abort ends the connection and tells the peer why.
func (m *Machine) Abort(err error, text string) {
	if m.err == nil {
		m.bye, m.byes = cut(text), byeDue
		m.Kill(err)
	}
}

// violated ends the connection because of what the peer sent.
func (m *Machine) violated(format string, args ...any) {
	m.reject(fmt.Errorf("%w: %s", ErrPeer, fmt.Sprintf(format, args...)))
}

// reject ends the connection because of err and tells the peer.
func (m *Machine) reject(err error) { m.Abort(err, err.Error()) }

// cut limits a reason to what fits in a message.
func cut(text string) string { return text[:min(len(text), MaxText)] }

// Poll stores the next action in a. It returns false if there is none until the next event.
func (m *Machine) Poll(now Time, a *Action) bool {
	if m.err != nil {
		return m.byes == byeDue && m.pollBye(now, a)
	}
	return m.pollLocal(a) || m.pollControl(now, a) || m.pollWrite(now, a)
}

// Timeout returns when HandleTimeout must be called; Never if the connection has ended.
func (m *Machine) Timeout() Time {
	if m.err != nil {
		return Never
	}
	return min(m.ctl.due, m.src.due)
}

// HandleTimeout handles the timers that are due.
func (m *Machine) HandleTimeout(now Time) {
	c := &m.ctl
	if now >= m.src.due {
		m.src.due = Never
	}
	if now < c.due || m.err != nil {
		return
	}
	step := m.cfg.Silence / keepalives
	if late := now - c.due; late > step {
		// The driver did not run, so it could not hear the peer either. What the peer has sent may
		// still have to be processed.
		c.heardAt = max(c.heardAt+late, now-m.cfg.Silence+step)
	}
	if now-c.heardAt >= m.cfg.Silence {
		m.reject(ErrSilent)
		return
	}
	next := c.sentAt + step
	if next <= now {
		c.keepalive = true
		next = now + step
	}
	c.due = min(next, c.heardAt+m.cfg.Silence)
}

// heard notes a sign of life of the peer.
func (m *Machine) heard(now Time) { m.ctl.heardAt = now }

// HandleControl handles a control message of the peer. The driver must have posted its receive
// again, or do so before the next call of Poll.
func (m *Machine) HandleControl(now Time, b []byte) {
	if m.err != nil {
		return
	}
	var c control
	if err := c.parse(b); err != nil {
		m.reject(err)
		return
	}
	ch := &m.ctl
	m.heard(now)
	m.Counters.ControlReceived++
	ch.received++
	switch {
	case ch.received-ch.reported > ControlDepth:
		m.violated("more than %d control messages at a time", ControlDepth)
		return
	case c.ack-ch.acked > ch.sent-ch.acked:
		m.violated("it has processed %d control messages of %d", c.ack, ch.sent)
		return
	case c.taken-ch.outTaken > ch.outN-ch.outTaken:
		m.violated("it has taken %d messages of %d", c.taken, ch.outN)
		return
	}
	if m.fin.sent && !m.fin.done && int32(c.ack-m.fin.at) >= 0 {
		// The message overtakes the acknowledgment of the peer's NIC.
		m.fin.done = true
		m.changed |= SessionsChanged
	}
	if ch.acked = c.ack; ch.outTaken != c.taken {
		ch.outTaken = c.taken
		m.changed |= SpaceChanged
	}
	m.dispatch(&c)
}

func (m *Machine) dispatch(c *control) {
	switch c.typ {
	case TypeAccept:
		m.handleAccept(c)
	case TypeOpen:
		m.handleOpen(c)
	case TypeRequest:
		m.handleRequest(c)
	case TypeGrant:
		m.handleGrant(c)
	case TypeFin:
		m.handleFin(c)
	case TypeConsumed:
		m.handleConsumed(c)
	case TypeEnd:
		m.handleEnd(c)
	case TypeRefuse:
		m.handleRefuse(c)
	case TypeDone:
		m.handleDone(c)
	case TypeMessage:
		m.handleMessage(c)
	case TypeQPDown:
		m.handleQPDown(c)
	case TypeQPState:
		m.handleQPState(c)
	case TypeFinish:
		m.handleFinish()
	case TypeBye:
		m.handleBye(c)
	case TypeAck:
	}
}

// ControlDone says that the oldest DoControl that has not completed has completed.
func (m *Machine) ControlDone() {
	c := &m.ctl
	c.sends--
	if m.fin.sent && !m.fin.done && m.fin.at == c.sent-uint32(c.sends) {
		m.fin.done = true
		m.changed |= SessionsChanged
	}
}

// SendMessage queues a message of the program, which it copies. ErrFull: the peer's program has not
// taken earlier ones. ErrLength: it is empty or too long.
func (m *Machine) SendMessage(b []byte) error {
	ch := &m.ctl
	switch {
	case m.err != nil:
		return m.err
	case len(b) == 0 || len(b) > MaxMessage:
		return fmt.Errorf("%w: a message of %d bytes: send 1 to %d", ErrLength, len(b), MaxMessage)
	case int(ch.outN-ch.outTaken)+ch.out.len() >= MessageWindow:
		return ErrFull
	}
	ch.out.push(append([]byte(nil), b...))
	return nil
}

// NextMessage returns the next message of the peer's program, or nil.
func (m *Machine) NextMessage() []byte {
	ch := &m.ctl
	if ch.in.len() == 0 {
		return nil
	}
	ch.inTaken++
	return ch.in.pop()
}

func (m *Machine) handleMessage(c *control) {
	ch := &m.ctl
	switch {
	case len(c.body) == 0:
		m.violated("an empty message")
	case ch.inTaken-ch.inTold+uint32(ch.in.len()) >= MessageWindow:
		m.violated("more than %d messages at a time", MessageWindow)
	default:
		ch.in.push(append([]byte(nil), c.body...))
		m.changed |= MessageChanged
	}
}

// ErrClosed means that the peer has closed the connection.
var ErrClosed = errors.New("rftp: the peer has closed the connection")

func (m *Machine) handleBye(c *control) {
	if len(c.body) == 0 {
		m.Kill(ErrClosed)
		return
	}
	m.Kill(&AbortError{Text: string(c.body)})
}

// Finish says that this side opens no more sessions. When all have ended, the peer is told.
func (m *Machine) Finish() { m.fin.wanted = true }

// Finished reports whether the peer has the message that this side opens no more sessions.
func (m *Machine) Finished() bool { return m.fin.done }

// PeerFinished reports whether the peer opens no more sessions, and all have ended.
func (m *Machine) PeerFinished() bool { return m.fin.peer && m.snk.ready.len() == 0 }

func (m *Machine) handleFinish() {
	if m.fin.peer || len(m.snk.sessions) > 0 {
		m.violated("%v with %d open sessions", TypeFinish, len(m.snk.sessions))
		return
	}
	m.fin.peer = true
	m.changed |= EndChanged | ReadyChanged
}

// Reject ends the connection because the peer violated the protocol, and tells the peer.
func (m *Machine) Reject(text string) { m.violated("%s", text) }
