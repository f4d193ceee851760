package cm

// State is where a connection, or a SIDR exchange, is in its life (IBA 12.9 with its
// figures; 12.11 for SIDR). Idle is not having one: such messages are answered without a connection.
type State uint8

// The states. In Refused an end that has sent a REJ repeats it for duplicates; the architecture
// forgets at once, and then a duplicate of the REQ would be a new request.
const (
	StateIdle        State = iota
	StateREQSent           // active: REP awaited
	StateMRAREQRcvd        // active: the peer asked for patience
	StateREPRcvd           // active: the user brings its QP up
	StateMRAREPSent        // active: so, and the peer was asked for patience
	StateREQRcvd           // passive: the user thinks about the request
	StateMRAREQSent        // passive: so, and the peer was asked for patience
	StateREPSent           // passive: RTU awaited
	StateMRAREPRcvd        // passive: the peer asked for patience
	StateEstablished       //
	StateDREQSent          // DREP awaited
	StateDREQRcvd          // the user may finish before the DREP goes out
	StateTimeWait          // late packets die out
	StateRefused           // a REJ was sent
	StateSIDRREQSent       // SIDR_REP awaited
	StateSIDRREQRcvd       // the user thinks about the request
	StateSIDRREPSent       // answered; the answer is repeated for duplicates
	numStates
)

var stateNames = [numStates]string{"Idle", "REQ Sent", "MRA(REQ) Rcvd", "REP Rcvd", "MRA(REP) Sent", "REQ Rcvd", "MRA(REQ) Sent",
	"REP Sent", "MRA(REP) Rcvd", "Established", "DREQ Sent", "DREQ Rcvd", "TIME-WAIT", "Refused", "SIDR_REQ Sent", "SIDR_REQ Rcvd", "SIDR_REP Sent"}

func (s State) String() string {
	if s < numStates {
		return stateNames[s]
	}
	return "unknown"
}

// ageNone and the others name the lists in which connections wait in order of their age, to make
// room if need be.
const (
	ageNone = iota
	ageHalfOpen
	ageTimeWait
	ageLinger
	ageRelease
	numAges
)

// membership says what a connection in a state counts as.
type membership struct {
	pending  bool // in its listener's backlog
	halfOpen bool // asked for by a peer and not established
	holdsQP  bool // its remote QP, once known, is in use: another connection to it is stale
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

// packet is a MAD that came in.
type packet struct {
	m    *MAD
	from Addr
	attr Attribute
}

// handler takes in a message that fits the connection.
type handler func(m *CM, now Time, c *conn, p *packet)

// onMessage says what a message does in a state. What is not there comes too late, or too early: it
// is counted and dropped.
var onMessage = [numStates][AttrAPR + 1]handler{
	StateREQSent:     {AttrREP: (*CM).repArrives, AttrMRA: (*CM).mraForREQ, AttrREJ: (*CM).rejected},
	StateMRAREQRcvd:  {AttrREP: (*CM).repArrives, AttrMRA: (*CM).mraForREQ, AttrREJ: (*CM).rejected},
	StateREPRcvd:     {AttrREP: (*CM).repAgain, AttrREJ: (*CM).rejected, AttrDREQ: (*CM).dreqAtOnce},
	StateMRAREPSent:  {AttrREP: (*CM).repAgain, AttrREJ: (*CM).rejected, AttrDREQ: (*CM).dreqAtOnce},
	StateREQRcvd:     {AttrREQ: (*CM).reqAgain, AttrREJ: (*CM).rejected},
	StateMRAREQSent:  {AttrREQ: (*CM).reqAgain, AttrREJ: (*CM).rejected},
	StateREPSent:     {AttrREQ: (*CM).repeatFor, AttrRTU: (*CM).rtuArrives, AttrMRA: (*CM).mraForREP, AttrREJ: (*CM).rejected, AttrDREQ: (*CM).dreqArrives},
	StateMRAREPRcvd:  {AttrREQ: (*CM).repeatFor, AttrRTU: (*CM).rtuArrives, AttrMRA: (*CM).mraForREP, AttrREJ: (*CM).rejected, AttrDREQ: (*CM).dreqArrives},
	StateEstablished: {AttrREP: (*CM).rtuAgain, AttrREJ: (*CM).brokenOff, AttrDREQ: (*CM).dreqArrives, AttrLAP: (*CM).lapUnsupported},
	StateDREQSent:    {AttrREQ: (*CM).reqStale, AttrREJ: (*CM).brokenOff, AttrDREQ: (*CM).dreqAtOnce, AttrDREP: (*CM).drepArrives},
	StateDREQRcvd:    {AttrREQ: (*CM).reqStale, AttrDREQ: (*CM).dreqAgain, AttrREJ: (*CM).brokenOff},
	StateTimeWait:    {AttrREQ: (*CM).reqStale, AttrDREQ: (*CM).drepAgain},
	StateRefused:     {AttrREQ: (*CM).repeatFor, AttrREP: (*CM).repeatFor, AttrDREQ: (*CM).drepOnly},
	StateSIDRREQSent: {AttrSIDRREP: (*CM).sidrReplied},
	StateSIDRREPSent: {AttrSIDRREQ: (*CM).repeatFor},
}

// onTimer says what the passing of a connection's deadline does.
var onTimer = [numStates]func(m *CM, now Time, c *conn){
	StateREQSent:     (*CM).retry,
	StateMRAREQRcvd:  (*CM).patienceOver,
	StateREQRcvd:     (*CM).requestExpired,
	StateMRAREQSent:  (*CM).requestExpired,
	StateREPSent:     (*CM).retry,
	StateMRAREPRcvd:  (*CM).patienceOver,
	StateDREQSent:    (*CM).retry,
	StateDREQRcvd:    (*CM).answerDREQ,
	StateTimeWait:    (*CM).closed,
	StateRefused:     (*CM).closed,
	StateSIDRREQSent: (*CM).retry,
	StateSIDRREQRcvd: (*CM).requestExpired,
	StateSIDRREPSent: (*CM).closed,
}
