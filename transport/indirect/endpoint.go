package indirect

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/gorxe/gorxe/internal/limit"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/indirect/core"
)

// Capacities of queues.
const (
	controlDepth = 256 // datagrams posted for sending, and receives for them, of all connections
	// receives for data messages per connection; at most a window of them is in flight
	recvDepth   = 64
	pollBatch   = 64  // completions processed at a time
	eventsEach  = 3   // events per transfer: Acked, Sent, Done
	controlSize = 128 // bytes of a receive for a control message
)

// Endpoint is one side of any number of connections on one device: their datagram QP, their
// indirect buffer and their progress. Its methods, and those of its Conns, are safe for concurrent
// use.
type Endpoint struct {
	cfg  Config
	dev  *roce.Device
	pd   *roce.PD
	cq   *roce.CQ
	ud   *roce.QP
	ctl  *roce.MR // receives of control messages
	qkey roce.QKey
	own  []interface{ Close() error } // in the order of closing

	turn chan struct{} // held by the goroutine that processes completions

	mu      sync.Mutex
	closed  bool
	conns   []*Conn       // by index
	free    int           // bytes of the indirect buffer that are not granted
	peers   *limit.Shares // accepted connections
	udOut   int           // datagrams posted
	events  eventRing
	busy    int // unfinished transfers of all connections
	wake    context.CancelFunc
	wakeAt  core.Time
	strange uint64             // datagrams for no connection
	wcs     [pollBatch]roce.WC // used by the holder of turn

	// Scratch for posting, kept here so that nothing is allocated.
	act core.Action
	sge [1]roce.SGE
	msg [core.MessageLen]byte
}

// New creates an Endpoint on a device, in the protection domain of the memory of its transfers.
// Both stay the caller's. Errors: ErrConfig, ErrIndirectBuffer, and those of roce.
func New(dev *roce.Device, pd *roce.PD, c Config) (*Endpoint, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	e := &Endpoint{
		cfg: c, dev: dev, pd: pd, turn: make(chan struct{}, 1), conns: make([]*Conn, c.MaxConns),
		free: max(c.IndirectBuffer, 0), peers: limit.NewShares(int64(c.MaxPeerConns), 0),
		// a privileged Q_Key has the high bit set (IBA 10.2.5)
		qkey: roce.QKey(uint32(c.Rand()) &^ (1 << 31)),
	}
	e.events = newEventRing(c.MaxConns, c.Entries)
	if err := e.open(); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func (e *Endpoint) open() (err error) {
	perConn := recvDepth + 2*core.Window
	// twice: a closed connection's flushed completions may wait beside the next one's
	if e.cq, err = e.dev.CreateCQ(2*controlDepth + e.cfg.MaxConns*perConn*2); err != nil {
		return err
	}
	e.own = append(e.own, e.cq)
	if e.ctl, err = e.pd.AllocMR(controlDepth*controlSize, roce.LocalWrite); err != nil {
		return err
	}
	e.own = append(e.own, e.ctl)
	e.ud, err = e.dev.CreateQP(e.pd,
		roce.QPConfig{Type: roce.UD, SendCQ: e.cq, SendDepth: controlDepth, RecvDepth: controlDepth,
			MaxInline: core.MessageLen, Class: e.cfg.RC.Class})
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

// Close ends all connections and destroys what the Endpoint created on the device. Closing twice
// has no effect.
func (e *Endpoint) Close() error {
	e.mu.Lock()
	was := e.closed
	e.closed = true // no connection can be added now
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

// Counters returns the sum over all connections, including ended ones, and the number of datagrams
// that belonged to none of them.
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

// EventKind is the kind of an Event.
type EventKind uint8

const (
	// Acked: the request of a transfer was taken, and its data is being sent. It may come before
	// the responder knows of the transfer. Only Done means that data is at its destination.
	Acked EventKind = iota
	// Sent: the peer's NIC has acknowledged every byte of a Write. The source may be reused. The
	// data may be at its destination or in the peer's indirect buffer.
	Sent
	// Done: the transfer has ended, with Status. Its memory may be reused.
	Done
	// Down: the connection has ended, with Err, after its transfers. A program that reads no events
	// finds at most MaxConns of these later.
	Down
)

// Event reports progress to the program.
type Event struct {
	Kind   EventKind
	Conn   *Conn
	Cookie uint64 // of the transfer
	Status Status // of Done
	Err    error  // of Down
}

// eventRing keeps events until they are polled. Post ensures that the events of its transfer fit.
type eventRing struct {
	v          []Event
	head, size int
	downs      int           // Down events among them
	maxDowns   int           // kept for a program that reads none; more are dropped
	past       core.Counters // of connections that have ended
}

func newEventRing(conns, entries int) eventRing {
	return eventRing{v: make([]Event, conns*(2*eventsEach*entries+1)), maxDowns: conns}
}

// space returns how many events of transfers fit.
func (r *eventRing) space() int { return len(r.v) - r.maxDowns - (r.size - r.downs) }

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

// wrong wraps an error of roce with the operation.
func wrong(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("indirect: %s: %w", what, err)
}
