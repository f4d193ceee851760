package roce

import (
	"fmt"
	"strings"

	"github.com/gorxe/gorxe/qp"
)

// maxEvents is the capacity of the channel of asynchronous events; further events are counted and
// lost.
const maxEvents = 256

// EventKind is the kind of an asynchronous event, named after ibv_event_type.
type EventKind string

// The kinds of asynchronous events.
const (
	EventQPFatal     EventKind = "QP_FATAL"            // an error that no completion reports
	EventQPReqErr    EventKind = "QP_REQ_ERR"          // the peer violated the protocol
	EventQPAccessErr EventKind = "QP_ACCESS_ERR"       // the peer lacks an access right
	EventCommEst     EventKind = "COMM_EST"            // the first packet arrived on a QP in RTR
	EventSQDrained   EventKind = "SQ_DRAINED"          // the send queue of a QP in SQD has drained
	EventLastWQE     EventKind = "QP_LAST_WQE_REACHED" // a QP in ERR is done with its SRQ
	EventCQErr       EventKind = "CQ_ERR"              // CQ overrun
	EventSRQLimit    EventKind = "SRQ_LIMIT_REACHED"   // see SRQ.SetLimit
	EventDeviceFatal EventKind = "DEVICE_FATAL"        // see Device.Err
	// the peer of an RC QP posts no receives for its SENDs (not in verbs)
	EventPeerNotReady EventKind = "PEER_NOT_READY"
	EventPortActive   EventKind = "PORT_ACTIVE" // the link came up
	EventPortErr      EventKind = "PORT_ERR"    // the link went down
	EventGIDChange    EventKind = "GID_CHANGE"  // addresses were added or removed
	EventMTUChange    EventKind = "MTU_CHANGE"  // the path MTU changed (not in verbs)
	EventPortNote     EventKind = "PORT_NOTE"   // DeviceInfo.Note changed (not in verbs)
)

// eventKinds maps the engine's kinds.
var eventKinds = map[qp.EventKind]EventKind{
	qp.EventQPFatal:          EventQPFatal,
	qp.EventQPReqErr:         EventQPReqErr,
	qp.EventQPAccessErr:      EventQPAccessErr,
	qp.EventCommEst:          EventCommEst,
	qp.EventSQDrained:        EventSQDrained,
	qp.EventQPLastWQEReached: EventLastWQE,
	qp.EventCQErr:            EventCQErr,
	qp.EventSRQLimitReached:  EventSRQLimit,
	qp.EventRNR:              EventPeerNotReady,
}

// Event is an asynchronous event. The field of the object that it concerns is set; for events of
// the port, none is.
type Event struct {
	Kind EventKind
	QP   *QP
	CQ   *CQ
	SRQ  *SRQ
	// Conn is the connection of QP, if the connection manager has set one up.
	Conn *Conn
	// Err is the error that the Event reports, nil if there is none: a *StatusError for a QP, what
	// CQ.Err returns for a CQ, and what Device.Err returns for EventDeviceFatal.
	Err error
	// Detail describes the change for EventGIDChange, EventMTUChange, EventPortActive and
	// EventPortErr, for example "removed 10.0.0.7". For EventPortNote it is the new note.
	Detail string
}

// eventTexts say what the kinds of events mean that have no error.
var eventTexts = map[EventKind]string{
	EventQPFatal:      "the QP went to the error state",
	EventQPReqErr:     "the peer violated the protocol",
	EventQPAccessErr:  "the peer lacks an access right",
	EventCommEst:      "the first packet of the peer arrived",
	EventSQDrained:    "the send queue has drained",
	EventLastWQE:      "the QP is done with its SRQ",
	EventSRQLimit:     "fewer receives are left than the limit: post more, and set the limit again",
	EventPeerNotReady: "the peer posts no receives",
	EventPortActive:   "the link came up",
	EventPortErr:      "the link went down",
	EventGIDChange:    "the addresses changed",
	EventMTUChange:    "the path MTU changed",
	EventPortNote:     "advice about the port",
}

// String describes the Event in one line: kind, object, connection and reason.
func (e Event) String() string {
	var b strings.Builder
	b.WriteString(string(e.Kind))
	switch {
	case e.QP != nil:
		fmt.Fprintf(&b, " of QP %#x", uint32(e.QP.QPN()))
	case e.CQ != nil:
		fmt.Fprintf(&b, " of a CQ of %d completions", e.CQ.Depth())
	case e.SRQ != nil:
		fmt.Fprintf(&b, " of an SRQ with %d receives", e.SRQ.Len())
	}
	if e.Conn != nil {
		fmt.Fprintf(&b, " (connection of %v to %v)", e.Conn.LocalAddr(), e.Conn.RemoteAddr())
	}
	if text := eventTexts[e.Kind]; text != "" {
		b.WriteString(": " + text)
	}
	if e.Detail != "" {
		b.WriteString(": " + e.Detail)
	}
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	return b.String()
}

// Events returns the channel of asynchronous events. It is closed when the Device is closed. The
// channel holds 256 events; while it is full, further events are lost and counted in
// Counters.EventsDropped.
func (d *Device) Events() <-chan Event { return d.events }

// emit sends an event without blocking.
func (d *Device) emit(e Event) {
	d.eventMu.Lock()
	defer d.eventMu.Unlock()
	if d.eventsOver {
		return
	}
	d.log.event(e)
	select {
	case d.events <- e:
	default:
		d.eventDrops.Add(1)
	}
}

func (d *Device) endEvents() {
	d.eventMu.Lock()
	defer d.eventMu.Unlock()
	d.eventsOver = true
	close(d.events)
}
