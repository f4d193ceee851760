package cm

import (
	"errors"
	"fmt"
	"math"
	"net/netip"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/limit"
)

// Time is a time or duration in nanoseconds, on a clock of the caller's choice.
type Time int64

// Never is later than every Time.
const Never Time = math.MaxInt64

// Errors of the commands.
var (
	ErrConfig        = errors.New("cm: Config needs Rand, a GUID and limits within range")
	ErrUnknownID     = errors.New("cm: no such connection: it has ended")
	ErrState         = errors.New("cm: the connection is in the wrong state for this command")
	ErrParams        = errors.New("cm: parameter out of range")
	ErrPrivateData   = errors.New("cm: private data too long: send the rest over the connection")
	ErrTooMany       = errors.New("cm: too many connections: close some, or raise Config.MaxConns")
	ErrListening     = errors.New("cm: another listener has this service: choose another port")
	ErrNoListener    = errors.New("cm: no such listener")
	ErrTooManyListen = errors.New("cm: too many listeners: close some")
)

// Transport is the transport service that a REQ requests; two bits on the wire.
type Transport uint8

// The transport services that the CM supports.
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

// Addr is the source or destination of a MAD. It is comparable.
type Addr struct {
	bth.GIDPair
	QPN  bth.QPN // the peer's QP: 1 unless it redirected
	PKey bth.PKey
}

// Limits of memory, which also bound the values of Config.
const (
	defaultMaxConns = 1 << 16 // connections, including ended ones in TIME-WAIT
	maxMaxConns     = 1 << 20
	defaultHalfOpen = 1 << 12 // connections requested by peers and not yet established
	maxLinger       = 1 << 12 // refusals and SIDR replies kept to answer duplicates
	maxListeners    = 1 << 12
	answerRing      = 1 << 8 // queued answers that need no connection
	maxMRA          = 8      // MRAs by which a peer may delay one answer
	commIDTries     = 32     // attempts to find a free communication ID

	// amplification is how many MADs may be sent, per MAD received, to an address that has not
	// shown that it receives them. All MADs are equally long, and the frames that carry them have
	// equally long headers, so that this is also the ratio of bytes.
	amplification = 3
	maxBudget     = 255

	// DefaultBacklog is the default number of unanswered requests of a listener.
	DefaultBacklog = 1 << 10
	maxBacklog     = 1 << 14
)

// Times, as exponents t of 4.096 us x 2^t.
const (
	// DefaultResponseTimeout is about 1 s: the delay that a lost message causes. The kernel's
	// rdma_cm uses 20, about 4 s.
	DefaultResponseTimeout = 18
	// DefaultAckTimeout is about 0.27 s.
	DefaultAckTimeout = 16
	// MaxAckTimeout limits the Local ACK Timeout that the local QP takes from a peer's REQ: 4.3 s.
	// The kernel's rdma_cm sends 19 with rxe (2.1 s). With 31 a dead peer would be detected after a
	// day, with 0 never.
	MaxAckTimeout = 20
	// DefaultAckDelay is the value that the kernel's rxe sends in a REP.
	DefaultAckDelay = 15
	// Bounds of the values that a peer chooses: 17 ms to 8.6 s, and 69 s for an MRA. The kernel's
	// rdma_cm sends 20.
	minPeerExponent = 12
	maxPeerExponent = 21
	maxMRAExponent  = 24
	// mraExponent is the time that an automatic MRA asks for, about 17 s. Each further
	// retransmission of the peer causes another MRA.
	mraExponent = 22
)

const (
	second Time = 1e9
	// maxPending limits how long a request waits for the user's answer.
	maxPending = 60 * second
	// maxUnverified limits how long an accepted connection waits for the RTU of a peer that has
	// not shown that it receives our messages. The kernel's rdma_cm needs 4.3 s to retransmit.
	maxUnverified = 15 * second
	// maxHalfOpen limits how long it waits for other peers, which may ask for more time by an MRA.
	maxHalfOpen = 300 * second
	// answerGrace is the age at which an accepted connection without RTU, or a release without
	// DREP, can be evicted. It is ample for a round trip.
	answerGrace = second / 4
	// sidrPending is how long a SIDR request waits for the user's answer.
	sidrPending = 30 * second
	// sidrRepeat is longer than the usual interval in which SIDR requests are retransmitted, which
	// they do not contain (the kernel's is 4.1 s). Replies are kept for twice this time.
	sidrRepeat = 5 * second
	// maxLingerTime limits how long a refusal or SIDR reply is kept to answer duplicates.
	maxLingerTime = 30 * second
	// suspectInterval is the shortest time between two EventSuspect of a connection.
	suspectInterval = second
	// drepGrace limits how long a DREQ waits for the user to call Disconnect.
	drepGrace = second / 2
)

// Config is the configuration of a CM. GUID and Rand are required.
type Config struct {
	GUID        GUID          // of the local channel adapter
	Rand        func() uint64 // communication and transaction IDs; must be cryptographic
	IDs         IDRange       // of communication IDs
	AckDelay    uint8         // target ACK delay in REPs, exponent; 0: DefaultAckDelay
	MaxConns    int           // 0: 65,536
	MaxHalfOpen int           // requested by peers, not established; 0: 4,096, at most MaxConns
	PKeys       []bth.PKey    // of the local port; requests for others are refused; nil: any

	// Peers restricts who may send requests. Requests of others are dropped.
	Peers limit.Access
	// Rate limits the MADs that belong to no connection: requests, and messages that name none. The
	// zero Rate has no limit. Seed is ignored.
	Rate limit.RateConfig
}

// IDRange is a range of communication IDs. The zero value is all of them.
type IDRange struct{ First, Last CommID }

// draw returns an ID of the range for a random number.
func (r IDRange) draw(random uint64) CommID {
	if r == (IDRange{}) {
		return CommID(random)
	}
	return r.First + CommID(random%(uint64(r.Last-r.First)+1))
}

// ListenParams are the parameters of Listen.
type ListenParams struct {
	Service ServiceID
	Local   bth.GID // zero: all addresses of the family
	Family  Family  // if Local is zero
	Backlog int     // unanswered requests; 0: DefaultBacklog
	Peers   limit.Access
}

// Family restricts a listener on all addresses.
type Family uint8

const (
	BothFamilies Family = iota
	IPv4
	IPv6
)

// familyOf returns the family of an address.
func familyOf(g bth.GID) Family {
	if g.IsIPv4() {
		return IPv4
	}
	return IPv6
}

// ListenerID identifies a listener.
type ListenerID uint32

// ConnectParams are the contents of a REQ. Times are exponents t of 4.096 us x 2^t.
type ConnectParams struct {
	Local, Remote      bth.GID
	Service            ServiceID
	SourcePort         uint16 // for the rdma_cm header
	Transport          Transport
	QPN                bth.QPN
	PSN                bth.PSN // of the first packet that the peer sends
	PKey               bth.PKey
	MTU                bth.MTU
	ResponderResources uint8 // READs and atomics that this side accepts at a time
	InitiatorDepth     uint8 // READs and atomics that this side wants to have outstanding
	RetryCount         uint8 // 0 to 7
	RNRRetry           uint8 // 0 to 7; 7: no limit
	FlowControl, SRQ   bool
	AckTimeout         uint8 // Local ACK Timeout of the peer's QP; 0: DefaultAckTimeout
	ResponseTimeout    uint8 // interval of retransmissions on both sides; 0: DefaultResponseTimeout
	MaxRetries         uint8 // retransmissions, 1 to 15; 0: 15
	FlowLabel          uint32
	TrafficClass       uint8 // IPv4 TOS or IPv6 traffic class that the peer should use, too
	SL                 uint8 // service level, 0 to 15; on RoCE the priority of VLAN tags
	HopLimit           uint8 // 0: 64
	// Features are offered to the peer (RC). The offer uses 8 bytes of the private data and is left
	// out if PrivateData leaves less.
	Features    Features
	PrivateData []byte
}

// AcceptParams are the contents of a REP.
type AcceptParams struct {
	QPN                bth.QPN
	PSN                bth.PSN // of the first packet that the peer sends
	ResponderResources uint8   // at most the request's InitiatorDepth
	InitiatorDepth     uint8   // at most the request's ResponderResources
	RNRRetry           uint8
	FlowControl, SRQ   bool
	Features           Features // at most those of the request; Negotiate sets them
	PrivateData        []byte   // at most REPPrivateLen; with Features 8 bytes less
}

// Request holds the contents of a peer's REQ or SIDR_REQ. Responder resources and initiator depth
// are those of the peer.
type Request struct {
	Addr               Addr
	Service            ServiceID
	GUID               GUID
	Transport          Transport
	QPN                bth.QPN
	PSN                bth.PSN // of the first packet that this side sends
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
	SL                 uint8
	HopLimit           uint8
	Features           Features       // that the peer offers
	Source             netip.AddrPort // from the rdma_cm header; invalid for other services
	Destination        netip.AddrPort
}

// Response holds the contents of a peer's REP. Responder resources and initiator depth are those of
// the peer.
type Response struct {
	GUID               GUID
	QPN                bth.QPN
	PSN                bth.PSN // of the first packet that this side sends
	ResponderResources uint8
	InitiatorDepth     uint8
	AckDelay           uint8
	RNRRetry           uint8
	FlowControl, SRQ   bool
	Features           Features // that the peer has accepted
}

// SIDRParams are the contents of a SIDR_REQ.
type SIDRParams struct {
	Local, Remote   bth.GID
	Service         ServiceID
	SourcePort      uint16
	PKey            bth.PKey
	ResponseTimeout uint8 // exponent; 0: DefaultResponseTimeout
	MaxRetries      uint8 // 0: 15
	PrivateData     []byte
}

// SIDRReply holds the contents of a SIDR_REP.
type SIDRReply struct {
	Status      SIDRStatus
	QPN         bth.QPN
	QKey        bth.QKey
	Info        []byte // to send: at most InfoLen bytes
	PrivateData []byte // to send: at most SIDRREPPrivateLen bytes; received: see Event
}

// EventKind is the kind of an event.
type EventKind uint8

// The kinds of events. Those of one connection come in this order, each at most once, but Suspect
// at most once per second. At most one of Rejected, Unreachable and Disconnected occurs. Closed is
// always the last one.
const (
	EventNone            EventKind = iota
	EventConnectRequest            // Request, Listener: answer with Accept, Reject or Abort
	EventSIDRRequest               // Request (partly), Listener: answer with ReplySIDR
	EventConnectResponse           // Response: bring the QP to RTS and call Ready, Reject or Abort
	EventSIDRResponse              // Reply
	EventEstablished               // passive side: the peer is ready
	EventSuspect                   // the peer may have forgotten the connection; see below
	EventRejected                  // Reason, Info: by the peer, or for a stale connection (Local)
	EventUnreachable               // no answer in time
	EventDisconnected              // by either side; Reason: by a REJ or for a stale connection
	EventClosed                    // the ID is invalid from now on
)

// EventSuspect means that a REQ or REP names the peer's QP of an established connection as the QP
// of a new one. Either the peer has restarted, and the connection is stale (IBA 12.9.8.3.1), or the
// message is forged. So the user should check whether the peer's QP still answers, and call
// Disconnect if it does not.

var eventNames = [...]string{
	"none", "connect request", "SIDR request", "connect response", "SIDR response", "established",
	"suspect",
	"rejected", "unreachable", "disconnected", "closed",
}

func (k EventKind) String() string {
	if int(k) < len(eventNames) {
		return eventNames[k]
	}
	return fmt.Sprintf("event %d", uint8(k))
}

// Event reports a change of a connection or SIDR exchange. The CM keeps no reference to its
// contents.
type Event struct {
	Kind     EventKind
	ID       CommID
	Listener ListenerID
	Request  *Request
	Response *Response
	Reply    *SIDRReply
	Reason   Reason
	Local    bool   // EventRejected: this side refused
	Info     []byte // additional information of a REJ
	// PrivateData is the whole field, without the rdma_cm header: zeros follow the data that the
	// peer's user sent, also in place of a trailer with features.
	PrivateData []byte
}

// exponentTime returns 4.096 us x 2^t.
func exponentTime(t uint8) Time { return Time(4096) << min(t, maxExponent) }

// peerTime is exponentTime for a value that a peer chose.
func peerTime(t uint8) Time {
	return exponentTime(min(max(t, minPeerExponent), maxPeerExponent))
}
