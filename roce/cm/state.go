package cm

// State is the state of a connection or a SIDR exchange (IBA 12.9 and 12.11). In StateIdle it does
// not exist; messages for it are answered without a connection.
type State uint8

// The states. StateRefused is not in the architecture: the side that has sent a REJ sends it again
// for duplicates. Otherwise a duplicate of the REQ would be a new request.
const (
	StateIdle        State = iota
	StateREQSent           // active: waits for the REP
	StateMRAREQRcvd        // active: the peer asked for more time
	StateREPRcvd           // active: the user prepares its QP
	StateMRAREPSent        // active: likewise, and an MRA was sent
	StateREQRcvd           // passive: the user decides on the request
	StateMRAREQSent        // passive: likewise, and an MRA was sent
	StateREPSent           // passive: waits for the RTU
	StateMRAREPRcvd        // passive: the peer asked for more time
	StateEstablished       //
	StateDREQSent          // waits for the DREP
	StateDREQRcvd          // the user may finish its work before the DREP
	StateTimeWait          // late packets leave the network
	StateRefused           // a REJ was sent
	StateSIDRREQSent       // waits for the SIDR_REP
	StateSIDRREQRcvd       // the user decides on the request
	StateSIDRREPSent       // the reply is sent again for duplicates
	numStates
)

var stateNames = [numStates]string{
	"Idle", "REQ Sent", "MRA(REQ) Rcvd", "REP Rcvd", "MRA(REP) Sent", "REQ Rcvd", "MRA(REQ) Sent",
	"REP Sent", "MRA(REP) Rcvd", "Established", "DREQ Sent", "DREQ Rcvd", "TIME-WAIT", "Refused",
	"SIDR_REQ Sent", "SIDR_REQ Rcvd", "SIDR_REP Sent",
}

func (s State) String() string {
	if s < numStates {
		return stateNames[s]
	}
	return "unknown"
}

// Age lists hold connections in the order in which they entered a state. The oldest ones are
// evicted when slots are needed.
const (
	ageNone = iota
	ageHalfOpen
	ageTimeWait
	ageLinger
	ageRelease
	numAges
)

// membership says what a connection counts as because of its state.
type membership struct {
	pending  bool // uses a slot of its listener's backlog
	halfOpen bool // requested by a peer and not established
	holdsQP  bool // uses its remote QP, if known: another connection with that QP is stale
	age      uint8
}

var memberships = [numStates]membership{
	StateREPRcvd:     {holdsQP: true},
	StateMRAREPSent:  {holdsQP: true},
	StateREQRcvd:     {holdsQP: true, pending: true, halfOpen: true},
	StateMRAREQSent:  {holdsQP: true, pending: true, halfOpen: true},
	StateREPSent:     {holdsQP: true, halfOpen: true, age: ageHalfOpen},
	StateMRAREPRcvd:  {holdsQP: true, halfOpen: true, age: ageHalfOpen},
	StateEstablished: {holdsQP: true},
	StateDREQSent:    {holdsQP: true, age: ageRelease},
	StateDREQRcvd:    {holdsQP: true},
	StateTimeWait:    {age: ageTimeWait},
	StateRefused:     {age: ageLinger},
	StateSIDRREQRcvd: {pending: true, halfOpen: true},
	StateSIDRREPSent: {age: ageLinger},
}

// packet is a received MAD.
type packet struct {
	m    *MAD
	from Addr
	attr Attribute
}

// handler handles a message for an existing connection.
type handler func(m *CM, now Time, c *conn, p *packet)

// onMessage lists the handler of each message in each state. Other messages are too late or too
// early: they are counted and dropped.
var onMessage = [numStates][AttrAPR + 1]handler{
	StateREQSent: {
		AttrREP: (*CM).handleREP, AttrMRA: (*CM).handleMRAForREQ,
		AttrREJ: (*CM).handleREJ,
	},
	StateMRAREQRcvd: {
		AttrREP: (*CM).handleREP, AttrMRA: (*CM).handleMRAForREQ,
		AttrREJ: (*CM).handleREJ,
	},
	StateREPRcvd: {
		AttrREP: (*CM).duplicateREP, AttrREJ: (*CM).handleREJ,
		AttrDREQ: (*CM).answerDREQNow,
	},
	StateMRAREPSent: {
		AttrREP: (*CM).duplicateREP, AttrREJ: (*CM).handleREJ,
		AttrDREQ: (*CM).answerDREQNow,
	},
	StateREQRcvd: {
		AttrREQ: (*CM).duplicateREQ, AttrREJ: (*CM).handleREJ,
	},
	StateMRAREQSent: {
		AttrREQ: (*CM).duplicateREQ, AttrREJ: (*CM).handleREJ,
	},
	StateREPSent: {
		AttrREQ: (*CM).answerDuplicate, AttrRTU: (*CM).handleRTU,
		AttrMRA: (*CM).handleMRAForREP, AttrREJ: (*CM).handleREJ,
		AttrDREQ: (*CM).handleDREQ,
	},
	StateMRAREPRcvd: {
		AttrREQ: (*CM).answerDuplicate, AttrRTU: (*CM).handleRTU,
		AttrMRA: (*CM).handleMRAForREP, AttrREJ: (*CM).handleREJ,
		AttrDREQ: (*CM).handleDREQ,
	},
	StateEstablished: {
		AttrREP: (*CM).resendRTU, AttrREJ: (*CM).handleLateREJ,
		AttrDREQ: (*CM).handleDREQ, AttrLAP: (*CM).refuseLAP,
	},
	StateDREQSent: {
		AttrREQ: (*CM).staleREQ, AttrREJ: (*CM).handleLateREJ,
		AttrDREQ: (*CM).answerDREQNow, AttrDREP: (*CM).handleDREP,
	},
	StateDREQRcvd: {
		AttrREQ: (*CM).staleREQ, AttrDREQ: (*CM).duplicateDREQ,
		AttrREJ: (*CM).handleLateREJ,
	},
	StateTimeWait: {
		AttrREQ: (*CM).staleREQ, AttrDREQ: (*CM).resendDREP,
	},
	StateRefused: {
		AttrREQ: (*CM).answerDuplicate, AttrREP: (*CM).answerDuplicate,
		AttrDREQ: (*CM).answerDREQOnly,
	},
	StateSIDRREQSent: {
		AttrSIDRREP: (*CM).handleSIDRREP,
	},
	StateSIDRREPSent: {
		AttrSIDRREQ: (*CM).answerDuplicate,
	},
}

// onTimer lists the handlers of an expired deadline.
var onTimer = [numStates]func(m *CM, now Time, c *conn){
	StateREQSent:     (*CM).retry,
	StateMRAREQRcvd:  (*CM).mraExpired,
	StateREQRcvd:     (*CM).requestExpired,
	StateMRAREQSent:  (*CM).requestExpired,
	StateREPSent:     (*CM).retry,
	StateMRAREPRcvd:  (*CM).mraExpired,
	StateDREQSent:    (*CM).retry,
	StateDREQRcvd:    (*CM).answerDREQ,
	StateTimeWait:    (*CM).closed,
	StateRefused:     (*CM).closed,
	StateSIDRREQSent: (*CM).retry,
	StateSIDRREQRcvd: (*CM).requestExpired,
	StateSIDRREPSent: (*CM).closed,
}
