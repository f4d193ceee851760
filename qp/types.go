package qp

import (
	"errors"
	"strconv"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

// Time is nanoseconds on the clock of whoever drives the engine. Only differences matter.
type Time int64

// Never is later than every Time.
const Never Time = 1<<63 - 1

// Bounds on what a creator may ask for.
const (
	MaxQueueDepth = 1 << 15   // WRs in an SQ, RQ or SRQ
	MaxCQDepth    = 1 << 22   // CQEs in a CQ
	MaxSGE        = 16        // SGEs of one WR
	MaxInline     = 1024      // bytes of inline data of one WR
	MaxMessage    = 1 << 31   // bytes of one message (IBA 9.7.7)
	MaxRdAtomic   = 128       // outstanding READs and atomics, either direction
	GRHLen        = 40        // bytes in front of every UD receive (IBA 11.4.1.2)
	maxPSNCount   = 1 << 23   // half the PSN space: the bound of what is in flight
	atomicLen     = 8         // bytes of an atomic operand
	defaultMaxQP  = 1 << 16   // QPs of an engine
	maxMaxQP      = 1 << 20   // bound of Config.MaxQP
	eventRing     = 1 << 10   // asynchronous events kept until polled
	psnMask       = 1<<24 - 1 // the low 24 bits of a packet count
	AckNever      = uint8(0)  // Attr.Timeout: no Local ACK Timeout
	RNRInfinite   = uint8(7)  // Attr.RNRRetry: without end (IBA 9.7.5.2.8)
	DefaultWindow = 256       // packets in flight of one RC QP, at most
)

// Type is the transport service of a QP.
type Type uint8

const (
	RC Type = iota // reliable connection
	UC             // unreliable connection
	UD             // unreliable datagram
	numTypes
)

func (t Type) String() string {
	return name([]string{"RC", "UC", "UD"}, int(t))
}

// State is a QP's state (IBA 10.3.1).
type State uint8

const (
	Reset State = iota
	Init
	RTR
	RTS
	SQD // send queue drained or draining
	SQE // send queue in error, receive queue alive (UC and UD)
	Err
	numStates
)

func (s State) String() string {
	return name([]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}, int(s))
}

// Op is what a send work request asks for.
type Op uint8

const (
	OpSend Op = iota
	OpSendImm
	OpSendInv // SEND that invalidates InvKey at the responder
	OpWrite
	OpWriteImm
	OpRead
	OpCmpSwap
	OpFetchAdd
	OpFlush       // RemoteAddr and Length, or the whole region: Placement, Level (IBA annex A19)
	OpAtomicWrite // WRITE of 8 aligned bytes, which are seen whole, after all that was flushed before

	// Local operations: no packet leaves. See local.go.
	OpBindMW   // binds the window that RKey (mr.Table.NextRKey) names to the one SGE, granting Access
	OpLocalInv // ends InvKey: a window of type 2, a fast MR
	OpRegMR    // makes the registration live that RKey names (mr.Table.Prepare)
	numOps
)

// local tells operations that send nothing.
func (o Op) local() bool { return o >= OpBindMW }

func (o Op) String() string {
	return name([]string{"SEND", "SEND_WITH_IMM", "SEND_WITH_INV", "RDMA_WRITE", "RDMA_WRITE_WITH_IMM",
		"RDMA_READ", "ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD", "FLUSH", "ATOMIC_WRITE",
		"BIND_MW", "LOCAL_INV", "REG_MR"}, int(o))
}

// SendFlags modify a send work request.
type SendFlags uint8

const (
	Signaled  SendFlags = 1 << iota // a CQE on success too
	Fence                           // starts only when all earlier READs, atomics and FLUSHes are done
	Solicited                       // the responder's CQE is a solicited one
)

// SGE is a piece of local memory inside one MR.
type SGE struct {
	Addr   uint64 // in the MR's address space
	Length uint32 // bytes
	LKey   bth.LKey
}

// SendWR is a send work request. PostSend copies it; the caller keeps only the memory that the
// SGEs name untouched until the completion.
type SendWR struct {
	ID     uint64 // comes back in the WC
	Op     Op
	Flags  SendFlags
	SGEs   []SGE  // source (SEND, WRITE, ATOMIC_WRITE: 8 bytes), destination (READ, atomics: 8 bytes)
	Inline []byte // instead of SGEs for SEND and the WRITEs: copied while posting, at most MaxInline of the QP

	RemoteAddr uint64   // WRITE, READ, atomics, FLUSH
	RKey       bth.RKey // WRITE, READ, atomics, FLUSH; OpBindMW, OpRegMR: the key that becomes live

	Imm    uint32   // WithImm operations; host order, big endian on the wire
	InvKey bth.RKey // OpSendInv, OpLocalInv

	Compare uint64 // OpCmpSwap
	SwapAdd uint64 // OpCmpSwap: the new value; OpFetchAdd: the addend

	Length    uint32    // OpFlush: bytes, at most 2^31
	Placement Placement // OpFlush: what for
	Level     Level     // OpFlush: how much

	Access mr.Access // OpBindMW: what the window grants

	AH         *AH // UD only, as are the next two fields
	RemoteQPN  bth.QPN
	RemoteQKey bth.QKey
}

// Placement is what a FLUSH is to achieve; the values are the wire's (IBA annex A19).
type Placement uint8

const (
	PlaceGlobal     Placement = 1 << iota // earlier WRITEs are visible to all
	PlacePersistent                       // and survive a loss of power
	placements      = PlaceGlobal | PlacePersistent
)

// Level is how much a FLUSH is about.
type Level uint8

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

// Status is how a work request ended; the names and texts are those of ibv_wc_status.
type Status uint8

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

func (s Status) String() string {
	return name([]string{"success", "local length error", "local QP operation error", "local protection error",
		"Work Request Flushed Error", "memory management operation error", "bad response error",
		"local access error", "remote invalid request error", "remote access error", "remote operation error",
		"transport retry counter exceeded", "RNR retry counter exceeded", "operation aborted",
		"fatal error", "general error"}, int(s))
}

// WCOpcode is the kind of work that a completion ends.
type WCOpcode uint8

const (
	WCSend WCOpcode = iota
	WCWrite
	WCRead
	WCCmpSwap
	WCFetchAdd
	WCRecv         // a SEND arrived
	WCRecvWriteImm // a WRITE with immediate arrived
	WCFlush
	WCAtomicWrite
	WCBindMW
	WCLocalInv
	WCRegMR
)

func (o WCOpcode) String() string {
	return name([]string{"SEND", "RDMA_WRITE", "RDMA_READ", "COMP_SWAP", "FETCH_ADD", "RECV", "RECV_RDMA_WITH_IMM",
		"FLUSH", "ATOMIC_WRITE", "BIND_MW", "LOCAL_INV", "REG_MR"}, int(o))
}

var wcOpcodes = [numOps]WCOpcode{WCSend, WCSend, WCSend, WCWrite, WCWrite, WCRead, WCCmpSwap, WCFetchAdd,
	WCFlush, WCAtomicWrite, WCBindMW, WCLocalInv, WCRegMR}

// WCFlags say which optional fields of a WC hold something.
type WCFlags uint8

const (
	WCWithImm   WCFlags = 1 << iota // Imm
	WCWithInv                       // InvKey was invalidated
	WCGRH                           // the first 40 bytes received are the network header
	WCSolicited                     // the sender asked for an event
)

// WC is a work completion. Where Status is not Success only ID, Status and QPN have a meaning
// (IBA 11.4.2.1).
type WC struct {
	ID      uint64
	Status  Status
	Opcode  WCOpcode
	Flags   WCFlags
	ByteLen uint32 // received or moved, GRH included
	Imm     uint32
	InvKey  bth.RKey
	QPN     bth.QPN // the QP that completed
	SrcQP   bth.QPN // UD: the sender
}

// EventKind names asynchronous events after ibv_event_type.
type EventKind uint8

const (
	EventQPFatal EventKind = iota
	EventQPReqErr
	EventQPAccessErr
	EventCommEst
	EventSQDrained
	EventQPLastWQEReached
	EventCQErr
	EventSRQLimitReached
)

func (k EventKind) String() string {
	return name([]string{"QP_FATAL", "QP_REQ_ERR", "QP_ACCESS_ERR", "COMM_EST", "SQ_DRAINED",
		"QP_LAST_WQE_REACHED", "CQ_ERR", "SRQ_LIMIT_REACHED"}, int(k))
}

// Event is an asynchronous event (IBA 11.6.3.1); the one field that its kind is about is set.
type Event struct {
	Kind EventKind
	QP   *QP
	CQ   *CQ
	SRQ  *SRQ
}

// Errors of the commands.
var (
	ErrQPState      = errors.New("qp: operation not allowed in this QP state; bring the QP to the state that it needs with Modify or Connect")
	ErrSQFull       = errors.New("qp: send queue full; poll completions first, or create the QP with a larger SQDepth")
	ErrRQFull       = errors.New("qp: receive queue full; wait for receives to complete, or create it deeper")
	ErrHasSRQ       = errors.New("qp: QP takes its receives from an SRQ; post them there")
	ErrInvalidWR    = errors.New("qp: invalid work request")
	ErrInvalidKey   = errors.New("qp: lkey does not cover the SGE's memory; register it with the access that the operation needs")
	ErrInvalidAttr  = errors.New("qp: invalid attribute")
	ErrTooManyQPs   = errors.New("qp: no room for another QP; raise the limit of QPs")
	ErrInvalidDepth = errors.New("qp: queue depth out of range")
)

// verdictStatus is the completion status of a local check that failed.
func verdictStatus(v mr.Verdict) Status {
	if v == mr.OK {
		return Success
	}
	return LocProtErr
}

// extend turns a 24-bit PSN into the packet count nearest to ref.
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
