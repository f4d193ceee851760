package cm

import (
	"errors"
	"fmt"
	"math"
	"net/netip"

	"github.com/gorxe/gorxe/bth"
)

// Time is nanoseconds on the clock of whoever drives the CM; only differences matter.
type Time int64

// Never is later than every Time.
const Never Time = math.MaxInt64

// Errors of the commands.
var (
	ErrConfig        = errors.New("cm: Config needs Rand and a GUID, and limits within the package's bounds")
	ErrUnknownID     = errors.New("cm: no such connection: it has ended, wait for no more of it")
	ErrState         = errors.New("cm: the connection is not in a state for this command")
	ErrParams        = errors.New("cm: parameter out of range")
	ErrPrivateData   = errors.New("cm: private data too long: send the rest over the connection")
	ErrTooMany       = errors.New("cm: too many connections: close some, or raise Config.MaxConns")
	ErrListening     = errors.New("cm: somebody listens on this service already: choose another port")
	ErrNoListener    = errors.New("cm: no such listener")
	ErrTooManyListen = errors.New("cm: too many listeners: close some")
)

// Transport is the service type that a REQ asks for; two bits on the wire.
type Transport uint8

// The service types. The CM makes RC and UC connections.
const (
	RC Transport = 0
	UC Transport = 1
)

func (t Transport) String() string {
	switch t {
	case RC:
		return "RC"
	case UC:
		return "UC"
	}
	return fmt.Sprintf("transport %d", uint8(t))
}

// Addr is where a MAD came from or goes to. It is comparable.
type Addr struct {
	bth.GIDPair
	QPN  bth.QPN // the peer's QP: 1 unless it redirected
	PKey bth.PKey
}

// Limits of memory and time that hold whatever a peer does. They bound what Config may ask for, too.
const (
	defaultMaxConns = 1 << 16 // connections, ended ones in TIME-WAIT included
	maxMaxConns     = 1 << 20
	defaultHalfOpen = 1 << 12 // connections that peers asked for and that are not established yet
	maxLinger       = 1 << 12 // refusals and SIDR replies kept to be repeated
	maxListeners    = 1 << 12
	answerRing      = 1 << 8 // answers of one MAD that need no connection, waiting to be sent
	maxMRA          = 8      // MRAs by which a peer may put off one answer
	commIDTries     = 32     // draws for a free communication ID

	// DefaultBacklog is how many requests a listener may have unanswered, unless it says otherwise.
	DefaultBacklog = 1 << 10
	maxBacklog     = 1 << 14
)

// Times, as exponents t of 4.096 us x 2^t.
const (
	// DefaultResponseTimeout is about 1 s: a lost message costs that much. The kernel's rdma_cm
	// takes 20, about 4 s; with maxCMRetries repetitions both tell a dead peer from a slow one.
	DefaultResponseTimeout = 18
	// DefaultAckTimeout is about 0.27 s.
	DefaultAckTimeout = 16
	// MaxAckTimeout bounds the Local ACK Timeout that a peer's REQ gives this end's QP: 4.3 s. The kernel's
	// rdma_cm says 19 with rxe (2.1 s). With 31 a dead peer would be noticed after a day, with 0 never.
	MaxAckTimeout = 20
	// DefaultAckDelay is what the kernel's rxe says in a REP.
	DefaultAckDelay = 15
	// A peer's own values are used within these bounds: no storm at one end, nothing eternal at the
	// other (17 ms, 34 s; for an MRA 69 s).
	minPeerExponent = 12
	maxPeerExponent = 23
	maxMRAExponent  = 24
	// mraExponent is what an automatic MRA promises: about 17 s. It is sent again for each duplicate.
	mraExponent = 22
)

const (
	second Time = 1e9
	// maxPending is how long a request waits for the application's answer, at most.
	maxPending = 300 * second
	// answerGrace is the age from which an accepted connection whose RTU has not come, or a release whose DREP has not,
	// may make room for a new request: ample for an honest peer's round trip.
	answerGrace = second / 4
	// sidrPending is how long a SIDR request waits for the application's answer.
	sidrPending = 30 * second
	// sidrRepeat is more than any usual requester waits before it repeats a SIDR request, which does
	// not say (the kernel's waits 4.1 s); replies are kept for two of them.
	sidrRepeat = 5 * second
	// maxLingerTime is how long a refusal or SIDR reply is kept to be repeated, at most.
	maxLingerTime = 30 * second
	// drepGrace is how long a DREQ waits for the application to Disconnect, too, at most.
	drepGrace = second / 2
)

// Config makes a CM.
type Config struct {
	GUID        GUID          // of the local channel adapter: what tells its connections from others'
	Rand        func() uint64 // communication and transaction IDs: crypto-grade in production, seeded in tests
	AckDelay    uint8         // target ACK delay that REPs tell, exponent; 0: DefaultAckDelay
	MaxConns    int           // 0: 65,536
	MaxHalfOpen int           // connections asked for by peers and not established; 0: 4,096, or MaxConns if less
}

// ListenParams say what to listen for.
type ListenParams struct {
	Service ServiceID
	Local   bth.GID // zero: every address
	Backlog int     // requests waiting for an answer at a time; 0: DefaultBacklog
}

// ListenerID names a listener.
type ListenerID uint32

// ConnectParams are what a REQ says. Times are exponents t of 4.096 us x 2^t.
type ConnectParams struct {
	Local, Remote      bth.GID
	Service            ServiceID
	SourcePort         uint16 // for the rdma_cm header of its services
	Transport          Transport
	QPN                bth.QPN
	PSN                bth.PSN // of the first packet that the peer shall send
	PKey               bth.PKey
	MTU                bth.MTU
	ResponderResources uint8 // READs and atomics that this end serves at a time
	InitiatorDepth     uint8 // READs and atomics that it wants to have outstanding
	RetryCount         uint8 // 0 to 7
	RNRRetry           uint8 // 0 to 7; 7: without end
	FlowControl, SRQ   bool
	AckTimeout         uint8 // Local ACK Timeout of the peer's QP; 0: DefaultAckTimeout
	ResponseTimeout    uint8 // how long either end waits before it repeats a MAD; 0: DefaultResponseTimeout
	MaxRetries         uint8 // repetitions, 1 to 15; 0: 15
	FlowLabel          uint32
	TrafficClass       uint8
	HopLimit           uint8 // 0: 64
	PrivateData        []byte
}

// AcceptParams are what a REP says.
type AcceptParams struct {
	QPN                bth.QPN
	PSN                bth.PSN // of the first packet that the peer shall send
	ResponderResources uint8   // at most the request's InitiatorDepth
	InitiatorDepth     uint8   // at most the request's ResponderResources
	RNRRetry           uint8
	FlowControl, SRQ   bool
	PrivateData        []byte // at most REPPrivateLen
}

// Request is what a peer's REQ says. Responder resources and initiator depth are the peer's.
type Request struct {
	Addr               Addr
	Service            ServiceID
	GUID               GUID
	Transport          Transport
	QPN                bth.QPN
	PSN                bth.PSN // of the first packet that this end shall send
	PKey               bth.PKey
	MTU                bth.MTU
	ResponderResources uint8
	InitiatorDepth     uint8
	RetryCount         uint8
	RNRRetry           uint8
	FlowControl, SRQ   bool
	AckTimeout         uint8
	FlowLabel          uint32
	TrafficClass       uint8
	HopLimit           uint8
	Source             netip.AddrPort // what the rdma_cm header says; invalid for other services
	Destination        netip.AddrPort
}

// Response is what a peer's REP says. Responder resources and initiator depth are the peer's.
type Response struct {
	GUID               GUID
	QPN                bth.QPN
	PSN                bth.PSN // of the first packet that this end shall send
	ResponderResources uint8
	InitiatorDepth     uint8
	AckDelay           uint8
	RNRRetry           uint8
	FlowControl, SRQ   bool
}

// SIDRParams are what a SIDR_REQ says.
type SIDRParams struct {
	Local, Remote   bth.GID
	Service         ServiceID
	SourcePort      uint16
	PKey            bth.PKey
	ResponseTimeout uint8 // exponent; 0: DefaultResponseTimeout
	MaxRetries      uint8 // 0: 15
	PrivateData     []byte
}

// SIDRReply is what a SIDR_REP says.
type SIDRReply struct {
	Status      SIDRStatus
	QPN         bth.QPN
	QKey        bth.QKey
	Info        []byte // in a reply to send: at most InfoLen
	PrivateData []byte // in a reply to send: at most SIDRREPPrivateLen; in an event it is the Event's
}

// EventKind says what happened.
type EventKind uint8

// The events. Those of one connection come in this order, each at most once; one of Rejected,
// Unreachable and Disconnected at most, and Closed last, always.
const (
	EventNone            EventKind = iota
	EventConnectRequest            // Request, Listener: answer by Accept, Reject or Abort
	EventSIDRRequest               // Request (Addr, Service, PKey, Source, Destination), Listener: answer by ReplySIDR
	EventConnectResponse           // Response: bring the QP to RTS and answer by Ready, Reject or Abort
	EventSIDRResponse              // Reply
	EventEstablished               // passive side: the peer is ready
	EventRejected                  // by the peer's REJ, or by a stale connection found here (Local): Reason, Info
	EventUnreachable               // no answer in time
	EventDisconnected              // by either end, or (Reason) by a REJ or for being stale
	EventClosed                    // TIME-WAIT is over; the ID is no more
)

var eventNames = [...]string{"none", "connect request", "SIDR request", "connect response", "SIDR response", "established",
	"rejected", "unreachable", "disconnected", "closed"}

func (k EventKind) String() string {
	if int(k) < len(eventNames) {
		return eventNames[k]
	}
	return fmt.Sprintf("event %d", uint8(k))
}

// Event tells the user of a connection, or of a SIDR exchange. It owns what it points to.
type Event struct {
	Kind        EventKind
	ID          CommID
	Listener    ListenerID
	Request     *Request
	Response    *Response
	Reply       *SIDRReply
	Reason      Reason
	Local       bool   // EventRejected: this end refused
	Info        []byte // additional information of a REJ
	PrivateData []byte // the message's whole field without the rdma_cm header: zeros behind what the peer gave
}

// exponentTime is 4.096 us x 2^t.
func exponentTime(t uint8) Time { return Time(4096) << min(t, maxExponent) }

// peerTime is the same for a value that a peer chose.
func peerTime(t uint8) Time {
	return exponentTime(min(max(t, minPeerExponent), maxPeerExponent))
}
