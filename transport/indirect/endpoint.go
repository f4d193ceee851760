package indirect

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/indirect/core"
)

// Sizes of queues.
const (
	controlDepth = 256 // datagrams posted for sending, and receives for them, of all connections
	recvDepth    = 64  // receives for data messages of a connection; a window of them can be under way
	pollBatch    = 64  // completions taken at a time
	eventsEach   = 3   // events of a transfer: Acked, Sent, Done
	controlRoom  = 128 // bytes of a receive for a control message
)

// Endpoint is one end of any number of connections on one device: their datagram QP, their share of the indirect buffer, and who
// turns their cranks. Its methods, and those of its Conns, are safe for concurrent use.
type Endpoint struct {
	cfg  Config
	dev  *roce.Device
	pd   *roce.PD
	cq   *roce.CQ
	ud   *roce.QP
	ctl  *roce.MR // receives of control messages
	qkey roce.QKey
	own  []interface{ Close() error } // in the order of closing

	turn chan struct{} // who holds it takes completions, in their order

	mu      sync.Mutex
	closed  bool
	conns   []*Conn // by index
	free    int     // bytes of the indirect buffer that are not granted
	udOut   int     // datagrams posted
	events  eventRing
	busy    int // transfers under way, of all connections
	wake    context.CancelFunc
	wakeAt  core.Time
	strange uint64             // datagrams that are for no connection
	wcs     [pollBatch]roce.WC // who has the turn

	// What posting needs, kept here so that nothing is allocated.
	act core.Action
	sge [1]roce.SGE
	msg [core.MessageLen]byte
}

// New makes an Endpoint on a device, in a protection domain that the memory of transfers belongs to. Both stay the caller's. Errors: ErrConfig,
// ErrIndirectBuffer, and those of roce.
func New(dev *roce.Device, pd *roce.PD, c Config) (*Endpoint, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	e := &Endpoint{
		cfg: c, dev: dev, pd: pd, turn: make(chan struct{}, 1), conns: make([]*Conn, c.MaxConns), free: max(c.IndirectBuffer, 0),
		qkey: roce.QKey(uint32(c.Rand()) &^ (1 << 31)), // a privileged Q_Key has the high bit set (IBA 10.2.5)
	}
	e.events = newEventRing(c.MaxConns, c.Entries)
	if err := e.open(); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func (e *Endpoint) open() (err error) {
	perConn := recvDepth + 2*core.Window
	if e.cq, err = e.dev.CreateCQ(2*controlDepth + e.cfg.MaxConns*perConn*2); err != nil { // twice: a closed connection's flushes may wait beside the next one's
		return err
	}
	e.own = append(e.own, e.cq)
	if e.ctl, err = e.pd.AllocMR(controlDepth*controlRoom, roce.LocalWrite); err != nil {
		return err
	}
	e.own = append(e.own, e.ctl)
	e.ud, err = e.dev.CreateQP(e.pd, roce.QPConfig{Type: roce.UD, SendCQ: e.cq, SendDepth: controlDepth, RecvDepth: controlDepth, MaxInline: core.MessageLen})
	if err != nil {
		return err
	}
	e.own = append(e.own, e.ud)
	if err := e.ud.Activate(e.qkey); err != nil {
		return err
	}
	for i := range controlDepth {
		if err := e.postControl(i); err != nil {
			return err
		}
	}
	return nil
}

// Close ends all connections and what the Endpoint made on the device. Closing twice is harmless.
func (e *Endpoint) Close() error {
	e.mu.Lock()
	was := e.closed
	e.closed = true // no connection comes after this
	if e.wake != nil {
		e.wake()
	}
	e.mu.Unlock()
	if was {
		return nil
	}
	var errs []error
	for _, c := range e.all() {
		errs = append(errs, c.Close())
	}
	for i := len(e.own) - 1; i >= 0; i-- {
		errs = append(errs, e.own[i].Close())
	}
	return errors.Join(errs...)
}

func (e *Endpoint) all() (list []*Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.conns {
		if c != nil {
			list = append(list, c)
		}
	}
	return list
}

// Counters adds up those of all connections, ended ones too. Strange counts datagrams that were for none of them.
func (e *Endpoint) Counters() (c core.Counters, strange uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c = e.events.past
	for _, k := range e.conns {
		if k != nil && k.err == nil && k.m != nil {
			c.Add(&k.m.Counters)
		}
	}
	return c, e.strange
}

func (e *Endpoint) now() core.Time { return core.Time(e.cfg.Clock()) }

// EventKind says what an Event tells.
type EventKind uint8

const (
	// Acked: the request of a transfer was taken, and its data is on its way. It may come before the responder knows of it; only
	// Done says that data is in its place.
	Acked EventKind = iota
	// Sent: every byte of a Write has been acknowledged by the peer's NIC. The source is the program's again; whether the data is at its
	// destination or in the peer's indirect buffer does not show.
	Sent
	// Done: the transfer has ended, with Status. Its memory is the program's again.
	Done
	// Down: the connection has ended, with Err. Its transfers have ended before. A program that reads no events finds MaxConns of
	// these later, and no more.
	Down
)

// Event is news for the program.
type Event struct {
	Kind   EventKind
	Conn   *Conn
	Cookie uint64 // of the transfer
	Status Status // of Done
	Err    error  // of Down
}

// eventRing keeps events until they are polled. Post sees to it that there is room for those of transfers.
type eventRing struct {
	v          []Event
	head, size int
	downs      int           // of them, Down events
	maxDowns   int           // of a program that reads none; more are dropped
	past       core.Counters // of connections that have ended
}

func newEventRing(conns, entries int) eventRing {
	return eventRing{v: make([]Event, conns*(2*eventsEach*entries+1)), maxDowns: conns}
}

// room is how many events of transfers fit.
func (r *eventRing) room() int { return len(r.v) - r.maxDowns - (r.size - r.downs) }

func (r *eventRing) push(ev Event) {
	if ev.Kind == Down {
		if r.downs == r.maxDowns {
			return
		}
		r.downs++
	}
	r.v[(r.head+r.size)%len(r.v)] = ev
	r.size++
}

func (r *eventRing) take(evs []Event) (n int) {
	for ; n < len(evs) && r.size > 0; n++ {
		if evs[n] = r.v[r.head]; evs[n].Kind == Down {
			r.downs--
		}
		r.v[r.head] = Event{}
		r.head = (r.head + 1) % len(r.v)
		r.size--
	}
	return n
}

// wrong wraps an error of roce with what was tried.
func wrong(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("indirect: %s: %w", what, err)
}
