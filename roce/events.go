package roce

import "github.com/gorxe/gorxe/qp"

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
