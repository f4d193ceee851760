package roce

import "github.com/gorxe/gorxe/qp"

// maxEvents is how many asynchronous events wait for a reader; further ones are counted and lost.
const maxEvents = 256

// EventKind names asynchronous events after ibv_event_type.
type EventKind string

// The kinds of events.
const (
	EventQPFatal    EventKind = "QP_FATAL"            // an error that no completion can tell
	EventQPReqErr   EventKind = "QP_REQ_ERR"          // the peer broke the protocol
	EventQPAccess   EventKind = "QP_ACCESS_ERR"       // the peer asked for memory that it may not reach
	EventCommEst    EventKind = "COMM_EST"            // first packet on a QP in RTR
	EventSQDrained  EventKind = "SQ_DRAINED"          // after Modify to SQD
	EventLastWQE    EventKind = "QP_LAST_WQE_REACHED" // a QP with SRQ in ERR takes no further receive
	EventCQErr      EventKind = "CQ_ERR"              // CQ overrun
	EventSRQLimit   EventKind = "SRQ_LIMIT_REACHED"   // see SRQ.SetLimit
	EventPortActive EventKind = "PORT_ACTIVE"         // the link came up
	EventPortErr    EventKind = "PORT_ERR"            // the link went down
	EventGIDChange  EventKind = "GID_CHANGE"          // addresses came or went
	EventMTUChange  EventKind = "MTU_CHANGE"          // another path MTU fits now (not a verbs event)
)

// eventKinds translates the engine's kinds.
var eventKinds = map[qp.EventKind]EventKind{
	qp.EventQPFatal:          EventQPFatal,
	qp.EventQPReqErr:         EventQPReqErr,
	qp.EventQPAccessErr:      EventQPAccess,
	qp.EventCommEst:          EventCommEst,
	qp.EventSQDrained:        EventSQDrained,
	qp.EventQPLastWQEReached: EventLastWQE,
	qp.EventCQErr:            EventCQErr,
	qp.EventSRQLimitReached:  EventSRQLimit,
}

// Event is an asynchronous event. The object that it is about is set; none for events of the port.
type Event struct {
	Kind EventKind
	QP   *QP
	CQ   *CQ
	SRQ  *SRQ
}

// Events yields asynchronous events. It is closed when the device is. Whoever does not read it loses the events after
// the first 256; Counters tells how many.
func (d *Device) Events() <-chan Event { return d.events }

// emit never blocks on a reader.
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

// reportEvents hands the engine's events up. Owner only.
func (s *shard) reportEvents() int {
	for i := range eventsPerTurn {
		ev, ok := s.eng.PollEvent()
		if !ok {
			return i
		}
		e := Event{Kind: eventKinds[ev.Kind]}
		if ev.QP != nil {
			e.QP, _ = ev.QP.Owner().(*QP) // nil: it was destroyed
		}
		if ev.CQ != nil {
			e.CQ = s.cqs[ev.CQ]
		}
		if ev.SRQ != nil {
			e.SRQ = s.srqs[ev.SRQ]
		}
		if e.QP == nil && e.CQ == nil && e.SRQ == nil {
			continue // its object was closed meanwhile
		}
		if e.Kind == EventCommEst {
			s.gsi.established(s.last, e.QP)
		}
		s.dev.emit(e)
	}
	return eventsPerTurn
}
