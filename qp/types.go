package qp

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

// Time is a time in nanoseconds on the clock of the engine's owner. Only differences matter.
type Time int64

// Never is later than any other Time.
const Never Time = 1<<63 - 1

// Limits of parameters.
const (
	MaxQueueDepth = 1 << 15   // work requests in an SQ, RQ or SRQ
	MaxCQDepth    = 1 << 22   // CQEs in a CQ
	MaxSGE        = 16        // SGEs of a work request
	MaxInline     = 1024      // bytes of inline data of a work request
	MaxMessage    = 1 << 31   // bytes of a message (IBA 9.7.7)
	MaxRdAtomic   = 128       // outstanding READs and atomics, in each direction
	GRHLen        = 40        // bytes before the payload of every UD receive (IBA 11.4.1.2)
	maxPSNCount   = 1 << 23   // half of the PSN space: the limit of packets in flight
	atomicLen     = 8         // bytes of an atomic operand
	DefaultMaxQP  = 1 << 16   // QPs of an engine
	maxMaxQP      = 1 << 20   // limit of Config.MaxQP
	eventRing     = 1 << 10   // asynchronous events kept until polled
	psnMask       = 1<<24 - 1 // the low 24 bits of a packet count
	AckNever      = uint8(0)  // Attr.Timeout: no Local ACK Timeout
	RNRInfinite   = uint8(7)  // Attr.RNRRetry: no limit (IBA 9.7.5.2.8)
	DefaultWindow = 256       // limit of packets in flight of an RC QP
)

// Type is the transport service of a QP.
type Type uint8

// The transport services.
const (
	RC Type = iota // reliable connection
	UC             // unreliable connection
	UD             // unreliable datagram
	numTypes
)

// String returns "RC", "UC" or "UD".
func (t Type) String() string {
	return name([]string{"RC", "UC", "UD"}, int(t))
}

// State is the state of a QP (IBA 10.3.1).
type State uint8

// The states.
const (
	Reset State = iota
	Init
	RTR
	RTS
	SQD // send queue drained or draining
	SQE // send queue in error, receive queue working (UC and UD)
	Err
	numStates
)

// String returns the name of the state.
func (s State) String() string {
	return name([]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}, int(s))
}

// Op is the operation of a send work request.
type Op uint8

// The operations.
const (
	OpSend Op = iota
	OpSendImm
	OpSendInv // SEND that invalidates InvKey at the responder
	OpWrite
	OpWriteImm
	OpRead
	OpCmpSwap
	OpFetchAdd
	// OpFlush flushes RemoteAddr and Length, or the whole region; see Placement and Level (IBA
	// annex A19)
	OpFlush
	OpAtomicWrite // atomic WRITE of 8 aligned bytes, after everything flushed before it

	// Local operations, which send no packet. See local.go.
	OpBindMW   // binds the window named by RKey (mr.Table.NextRKey) to the SGE, granting Access
	OpLocalInv // invalidates InvKey, of a type 2 window or a fast MR
	OpRegMR    // makes the registration named by RKey live (mr.Table.Prepare)
	numOps
)

// local reports whether the operation sends no packet.
func (o Op) local() bool { return o >= OpBindMW }

// String returns the name of the operation, as in ibv_wr_opcode.
func (o Op) String() string { return name(opNames, int(o)) }

var opNames = []string{
	OpSend:        "SEND",
	OpSendImm:     "SEND_WITH_IMM",
	OpSendInv:     "SEND_WITH_INV",
	OpWrite:       "RDMA_WRITE",
	OpWriteImm:    "RDMA_WRITE_WITH_IMM",
	OpRead:        "RDMA_READ",
	OpCmpSwap:     "ATOMIC_CMP_AND_SWP",
	OpFetchAdd:    "ATOMIC_FETCH_AND_ADD",
	OpFlush:       "FLUSH",
	OpAtomicWrite: "ATOMIC_WRITE",
	OpBindMW:      "BIND_MW",
	OpLocalInv:    "LOCAL_INV",
	OpRegMR:       "REG_MR",
}

// SendFlags modify a send work request.
type SendFlags uint8

// The flags of a SendWR.
const (
	Signaled SendFlags = 1 << iota // write a CQE on success
	// Fence starts the request only when all earlier READs, atomics and FLUSHes are complete
	Fence
	Solicited // the responder's CQE is a solicited one
)

// SGE is a piece of local memory within one MR.
type SGE struct {
	Addr   uint64 // in the MR's address space
	Length uint32 // bytes
	LKey   bth.LKey
}

// SendWR is a send work request. PostSend copies it. The caller must not change the memory of the
// SGEs until the completion.
type SendWR struct {
	ID    uint64 // returned in the WC
	Op    Op
	Flags SendFlags
	// SGEs are the source (SEND, WRITE, ATOMIC_WRITE: 8 bytes) or the destination (READ, atomics: 8
	// bytes)
	SGEs []SGE
	// Inline replaces SGEs for SEND and the WRITEs. PostSend copies it. It has at most
	// InitAttr.MaxInline bytes
	Inline []byte

	RemoteAddr uint64   // WRITE, READ, atomics, FLUSH
	RKey       bth.RKey // WRITE, READ, atomics, FLUSH; OpBindMW, OpRegMR: the key that becomes live

	Imm    uint32   // operations with immediate; host order, big endian on the wire
	InvKey bth.RKey // OpSendInv, OpLocalInv; OpBindMW of a tagged window: its present key

	Compare uint64 // OpCmpSwap
	SwapAdd uint64 // OpCmpSwap: the new value; OpFetchAdd: the addend

	Length    uint32    // OpFlush: bytes, at most 2^31
	Placement Placement // OpFlush: purpose
	Level     Level     // OpFlush: extent

	Access mr.Access // OpBindMW: what the window grants

	AH         *AH // UD only, as are the next two fields
	RemoteQPN  bth.QPN
	RemoteQKey bth.QKey
}

// Placement is the purpose of a FLUSH, with the values of the wire format (IBA annex A19).
type Placement uint8

// The placements.
const (
	PlaceGlobal     Placement = 1 << iota // make earlier WRITEs visible
	PlacePersistent                       // make earlier WRITEs survive a power failure
	placements      = PlaceGlobal | PlacePersistent
)

// Level is the extent of a FLUSH.
type Level uint8

// The levels.
const (
	FlushRange  Level = iota // the bytes at RemoteAddr
	FlushRegion              // the whole region or window of RKey
	numLevels
)

// RecvWR is a receive work request.
type RecvWR struct {
	ID   uint64
	SGEs []SGE
}

// Status is the result of a work request. Names and texts are those of ibv_wc_status.
type Status uint8

// The statuses.
const (
	Success Status = iota
	LocLenErr
	LocQPOpErr
	LocProtErr
	WRFlushErr
	MWBindErr
	BadRespErr
	LocAccessErr
	RemInvReqErr
	RemAccessErr
	RemOpErr
	RetryExcErr
	RNRRetryExcErr
	RemAbortErr
	FatalErr
	GeneralErr
)

// String returns the text of ibv_wc_status_str.
func (s Status) String() string { return name(statusTexts, int(s)) }

var statusTexts = []string{
	Success:        "success",
	LocLenErr:      "local length error",
	LocQPOpErr:     "local QP operation error",
	LocProtErr:     "local protection error",
	WRFlushErr:     "Work Request Flushed Error",
	MWBindErr:      "memory management operation error",
	BadRespErr:     "bad response error",
	LocAccessErr:   "local access error",
	RemInvReqErr:   "remote invalid request error",
	RemAccessErr:   "remote access error",
	RemOpErr:       "remote operation error",
	RetryExcErr:    "transport retry counter exceeded",
	RNRRetryExcErr: "RNR retry counter exceeded",
	RemAbortErr:    "operation aborted",
	FatalErr:       "fatal error",
	GeneralErr:     "general error",
}

// WCOpcode is the kind of work that completed.
type WCOpcode uint8

// The opcodes of completions.
const (
	WCSend WCOpcode = iota
	WCWrite
	WCRead
	WCCmpSwap
	WCFetchAdd
	WCRecv         // a SEND was received
	WCRecvWriteImm // a WRITE with immediate was received
	WCFlush
	WCAtomicWrite
	WCBindMW
	WCLocalInv
	WCRegMR
)

// String returns the name of the opcode, as in ibv_wc_opcode.
func (o WCOpcode) String() string { return name(wcOpcodeNames, int(o)) }

var wcOpcodeNames = []string{
	WCSend:         "SEND",
	WCWrite:        "RDMA_WRITE",
	WCRead:         "RDMA_READ",
	WCCmpSwap:      "COMP_SWAP",
	WCFetchAdd:     "FETCH_ADD",
	WCRecv:         "RECV",
	WCRecvWriteImm: "RECV_RDMA_WITH_IMM",
	WCFlush:        "FLUSH",
	WCAtomicWrite:  "ATOMIC_WRITE",
	WCBindMW:       "BIND_MW",
	WCLocalInv:     "LOCAL_INV",
	WCRegMR:        "REG_MR",
}

// wcOpcodes lists the opcode with which each operation completes.
var wcOpcodes = [numOps]WCOpcode{
	OpSend:        WCSend,
	OpSendImm:     WCSend,
	OpSendInv:     WCSend,
	OpWrite:       WCWrite,
	OpWriteImm:    WCWrite,
	OpRead:        WCRead,
	OpCmpSwap:     WCCmpSwap,
	OpFetchAdd:    WCFetchAdd,
	OpFlush:       WCFlush,
	OpAtomicWrite: WCAtomicWrite,
	OpBindMW:      WCBindMW,
	OpLocalInv:    WCLocalInv,
	OpRegMR:       WCRegMR,
}

// WCFlags tell which optional fields of a WC are valid.
type WCFlags uint8

// The flags of a WC.
const (
	WCWithImm   WCFlags = 1 << iota // Imm is valid
	WCWithInv                       // InvKey was invalidated
	WCGRH                           // the first 40 bytes received are the network header
	WCSolicited                     // the sender requested an event
	WCIPv4                          // that header is of IPv4, in the last 20 of the 40 bytes
)

// WC is a work completion. If Status is not Success, only ID, Status and QPN are valid (IBA
// 11.4.2.1).
type WC struct {
	ID      uint64
	Status  Status
	Opcode  WCOpcode
	Flags   WCFlags
	ByteLen uint32 // bytes received or transferred, GRH included
	Imm     uint32
	InvKey  bth.RKey
	QPN     bth.QPN // the QP that completed
	SrcQP   bth.QPN // UD: the sender
}

// EventKind is the kind of an asynchronous event, named after ibv_event_type.
type EventKind uint8

// The kinds of events.
const (
	EventQPFatal EventKind = iota
	EventQPReqErr
	EventQPAccessErr
	EventCommEst
	EventSQDrained
	EventQPLastWQEReached
	EventCQErr
	EventSRQLimitReached
	EventRNR // see stalledRNRs
)

// String returns the name of the event, as in ibv_event_type.
func (k EventKind) String() string { return name(eventNames, int(k)) }

var eventNames = []string{
	EventQPFatal:          "QP_FATAL",
	EventQPReqErr:         "QP_REQ_ERR",
	EventQPAccessErr:      "QP_ACCESS_ERR",
	EventCommEst:          "COMM_EST",
	EventSQDrained:        "SQ_DRAINED",
	EventQPLastWQEReached: "QP_LAST_WQE_REACHED",
	EventCQErr:            "CQ_ERR",
	EventSRQLimitReached:  "SRQ_LIMIT_REACHED",
	EventRNR:              "PEER_NOT_READY",
}

// Event is an asynchronous event (IBA 11.6.3.1). One of QP, CQ and SRQ is set, depending on Kind.
type Event struct {
	Kind EventKind
	QP   *QP
	CQ   *CQ
	SRQ  *SRQ
}

// Errors of posting, Modify and the constructors.
var (
	ErrQPState = errors.New("qp: operation not allowed in this QP state; " +
		"change the state with Modify or Connect first")
	ErrSQFull = errors.New("qp: send queue full; " +
		"wait for completions, or create the QP with a deeper send queue")
	ErrRQFull = errors.New("qp: receive queue full; " +
		"wait for receives to complete, or create a deeper queue")
	ErrForeign   = errors.New("qp: object of another device; use objects of one device together")
	ErrHasSRQ    = errors.New("qp: the QP uses an SRQ; post receives to the SRQ")
	ErrInvalidWR = errors.New("qp: invalid work request")
	// ErrWRLength is an ErrInvalidWR: its operation, or the path MTU for UD, forbids the length.
	ErrWRLength   = fmt.Errorf("%w: wrong length", ErrInvalidWR)
	ErrInvalidKey = errors.New("qp: lkey does not cover the SGE's memory; " +
		"register it with the access that the operation needs")
	ErrInvalidAttr  = errors.New("qp: invalid attribute")
	ErrTooManyQPs   = errors.New("qp: too many QPs; raise the limit or destroy some")
	ErrInvalidDepth = errors.New("qp: queue depth out of range")
)

// verdictStatus returns the completion status of a local key check.
func verdictStatus(v mr.Verdict) Status {
	if v == mr.OK {
		return Success
	}
	return LocProtErr
}

// extend returns the packet count nearest to ref whose low 24 bits are p.
func extend(ref uint64, p bth.PSN) uint64 {
	return ref + uint64(int64(p.Sub(bth.PSN(ref&psnMask))))
}

func wirePSN(n uint64) bth.PSN { return bth.PSN(n & psnMask) }

func name(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return "unknown " + strconv.Itoa(i)
}
