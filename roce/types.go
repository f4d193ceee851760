package roce

import (
	"net/netip"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce/cm"
)

// Work requests, completions and attributes. The comments name their counterparts in libibverbs.
type (
	// SendWR is a send work request for QP.PostSend (ibv_send_wr). Its fields are:
	//
	//	ID         uint64    // returned in WC.ID
	//	Op         Op
	//	Flags      SendFlags
	//	SGEs       []SGE     // source of SEND and WRITE, destination of READ and atomics
	//	Inline     []byte    // source instead of SGEs, copied by PostSend
	//	RemoteAddr uint64    // WRITE, READ, atomics, FLUSH: the peer's memory
	//	RKey       RKey      // its key; OpBindMW, OpRegMR: the key that becomes valid
	//	Imm        uint32    // OpSendImm, OpWriteImm: immediate data, host byte order
	//	InvKey     RKey      // OpSendInv, OpLocalInv
	//	Compare    uint64    // OpCmpSwap
	//	SwapAdd    uint64    // OpCmpSwap: the new value; OpFetchAdd: the addend
	//	Length     uint32    // OpFlush: bytes
	//	Placement  Placement // OpFlush
	//	Level      Level     // OpFlush
	//	Access     Access    // OpBindMW: rights that the window grants
	//	AH         *AH       // UD: the receiver's address
	//	RemoteQPN  QPN       // UD: the receiver's QP
	//	RemoteQKey QKey      // UD: the receiver's Q_Key
	SendWR = qp.SendWR
	// RecvWR is a receive work request for PostRecv (ibv_recv_wr). Its fields are:
	//
	//	ID   uint64 // returned in WC.ID
	//	SGEs []SGE  // destination
	RecvWR = qp.RecvWR
	// SGE is a range of registered memory (ibv_sge). MR.SGE returns one. Its fields are:
	//
	//	Addr   uint64 // see MR.Addr
	//	Length uint32 // bytes
	//	LKey   LKey
	SGE = qp.SGE
	// WC is a work completion (ibv_wc). Only ID, Status and QPN are set unless Status is Success.
	// Its fields are:
	//
	//	ID      uint64 // of the work request
	//	Status  Status
	//	Opcode  WCOpcode
	//	Flags   WCFlags
	//	ByteLen uint32 // bytes received or transferred, GRHLen included
	//	Imm     uint32 // with WCWithImm, host byte order
	//	InvKey  RKey   // with WCWithInv
	//	QPN     QPN    // the local QP
	//	SrcQP   QPN    // UD: the sender's QP
	WC = qp.WC
	// Status is the status of a work completion (ibv_wc_status).
	Status = qp.Status
	// WCOpcode is the operation that completed (ibv_wc_opcode).
	WCOpcode = qp.WCOpcode
	// WCFlags are the flags of a work completion (ibv_wc_flags).
	WCFlags = qp.WCFlags
	// Op is the operation of a SendWR (ibv_wr_opcode).
	Op = qp.Op
	// SendFlags are the flags of a SendWR (ibv_send_flags).
	SendFlags = qp.SendFlags
	// Placement is what an OpFlush guarantees (ibv_placement_type).
	Placement = qp.Placement
	// Level is the range of memory that an OpFlush covers (ibv_selectivity_level).
	Level = qp.Level
	// State is the state of a QP (ibv_qp_state).
	State = qp.State
	// QPType is the transport service of a QP: RC, UC or UD.
	QPType = qp.Type
	// Attr holds the attributes of a QP for Modify and Query (ibv_qp_attr). Its fields are:
	//
	//	State           State
	//	PathMTU         MTU
	//	QKey            QKey   // UD
	//	RQPSN, SQPSN    PSN    // first PSN expected, first PSN sent
	//	DestQPN         QPN
	//	Access          Access // rights of the peer
	//	PKey            PKey
	//	Path            Path
	//	MaxRdAtomic     uint8  // outstanding READs and atomics as requester
	//	MaxDestRdAtomic uint8  // as responder
	//	MinRNRTimer     uint8  // timer code of RNR NAKs, 0 to 31
	//	Timeout         uint8  // Local ACK Timeout, 4.096 us << n, n up to 31; 0: never
	//	RetryCnt        uint8  // retries after timeouts, 0 to 7
	//	RNRRetry        uint8  // retries after RNR NAKs, 0 to 6; 7: no limit
	//	Selective       bool   // RC: use selective repeat; both sides must agree
	//	Congestion      CongestionControl // RC: what limits this side's packets
	//	Class           uint8  // traffic class; the Path has its DSCP
	//	Rate            uint64 // bytes of frames per second; 0: no limit
	//	Burst           int    // bytes sent at once after a pause
	Attr = qp.Attr
	// AttrMask selects fields of an Attr (ibv_qp_attr_mask).
	AttrMask = qp.AttrMask
	// Path holds the addresses and the prepared Ethernet, IP and UDP headers of packets to a peer.
	// Device.ResolvePath returns one.
	Path = frame.Path
	// Access is a set of access rights of a memory region, window or QP (ibv_access_flags).
	Access = mr.Access
)

// Addresses, numbers and keys. They are unsigned integers in host byte order, except GID and MAC,
// which are byte arrays.
type (
	// GID is an address in RoCEv2: an IPv6 address, or an IPv4 address as ::ffff:a.b.c.d.
	GID = bth.GID
	// MAC is an Ethernet address.
	MAC = bth.MAC
	// QPN is the number of a queue pair, 24 bits.
	QPN = bth.QPN
	// PSN is a packet sequence number, 24 bits.
	PSN = bth.PSN
	// RKey is the key with which a peer names a memory region or window.
	RKey = bth.RKey
	// LKey is the key with which local work requests name a memory region.
	LKey = bth.LKey
	// PKey is a partition key: bit 15 marks a full member, the other bits name the partition. See
	// WithPKeys.
	PKey = bth.PKey
	// QKey authorizes datagrams to a UD queue pair.
	QKey = bth.QKey
	// MTU is a path MTU: at most 256, 512, 1024, 2048 or 4096 bytes of payload per packet.
	MTU = bth.MTU
)

// GIDFromAddr returns the GID of an IP address. A zone is ignored.
func GIDFromAddr(a netip.Addr) GID { return bth.GIDFromAddr(a) }

// ParseGID parses a GID in the notation of an IPv4 or IPv6 address.
func ParseGID(s string) (GID, error) { return bth.ParseGID(s) }

// Types of the connection manager and of counters that occur in this package's API.
type (
	// ConnRequest is what a peer asks for in a connection request. Request.Params returns one.
	ConnRequest = cm.Request
	// RejectReason is the reason for refusing a connection (IBA 12.6.7.2).
	RejectReason = cm.Reason
	// CMCounters are the counters of the connection manager.
	CMCounters = cm.Counters
	// EngineCounters are the counters of the protocol engine.
	EngineCounters = qp.Counters
	// DropReason is why the decoder dropped a frame: an index of Counters.Drops.
	DropReason = frame.Reason
)

// Transport services (ibv_qp_type).
const (
	RC = qp.RC // reliable connection
	UC = qp.UC // unreliable connection
	UD = qp.UD // unreliable datagram
)

// States of a queue pair (ibv_qp_state).
const (
	StateReset = qp.Reset
	StateInit  = qp.Init // receives can be posted
	StateRTR   = qp.RTR  // ready to receive
	StateRTS   = qp.RTS  // ready to send
	StateSQD   = qp.SQD  // send queue drained, or draining
	StateSQE   = qp.SQE  // send queue in error (UC, UD)
	StateErr   = qp.Err
)

// Operations of a SendWR (ibv_wr_opcode).
const (
	OpSend     = qp.OpSend
	OpSendImm  = qp.OpSendImm
	OpSendInv  = qp.OpSendInv // SEND that invalidates SendWR.InvKey at the peer
	OpWrite    = qp.OpWrite
	OpWriteImm = qp.OpWriteImm
	OpRead     = qp.OpRead
	OpCmpSwap  = qp.OpCmpSwap
	OpFetchAdd = qp.OpFetchAdd

	OpFlush       = qp.OpFlush       // FLUSH (IBA annex A19)
	OpAtomicWrite = qp.OpAtomicWrite // ATOMIC WRITE of 8 aligned bytes (IBA annex A19)

	// Local operations, which send no packet. See MW and FastMR.
	OpBindMW   = qp.OpBindMW
	OpLocalInv = qp.OpLocalInv
	OpRegMR    = qp.OpRegMR
)

// Flags of a SendWR (ibv_send_flags).
const (
	Signaled  = qp.Signaled  // success completes with a WC, too
	Fence     = qp.Fence     // start only after earlier READs, atomics and FLUSHes
	Solicited = qp.Solicited // the peer's completion is a solicited one: see CQ.WaitSolicited
)

// Placements and levels of an OpFlush.
const (
	PlaceGlobal     = qp.PlaceGlobal     // earlier WRITEs are visible to all observers
	PlacePersistent = qp.PlacePersistent // and survive a loss of power
	FlushRange      = qp.FlushRange      // SendWR.Length bytes at SendWR.RemoteAddr
	FlushRegion     = qp.FlushRegion     // the whole region or window
)

// Operations of a completion (ibv_wc_opcode).
const (
	WCSend         = qp.WCSend
	WCWrite        = qp.WCWrite
	WCRead         = qp.WCRead
	WCCmpSwap      = qp.WCCmpSwap
	WCFetchAdd     = qp.WCFetchAdd
	WCRecv         = qp.WCRecv         // a SEND was received
	WCRecvWriteImm = qp.WCRecvWriteImm // a WRITE with immediate was received
	WCFlush        = qp.WCFlush
	WCAtomicWrite  = qp.WCAtomicWrite
	WCBindMW       = qp.WCBindMW
	WCLocalInv     = qp.WCLocalInv
	WCRegMR        = qp.WCRegMR
)

// Flags of a completion (ibv_wc_flags).
const (
	WCWithImm   = qp.WCWithImm   // WC.Imm is set
	WCWithInv   = qp.WCWithInv   // the peer invalidated WC.InvKey
	WCGRH       = qp.WCGRH       // the first GRHLen bytes received are the network header
	WCSolicited = qp.WCSolicited // the peer set the flag Solicited
)

// Statuses of a completion (ibv_wc_status).
const (
	Success        = qp.Success
	LocLenErr      = qp.LocLenErr
	LocQPOpErr     = qp.LocQPOpErr
	LocProtErr     = qp.LocProtErr
	WRFlushErr     = qp.WRFlushErr
	MWBindErr      = qp.MWBindErr
	BadRespErr     = qp.BadRespErr
	LocAccessErr   = qp.LocAccessErr
	RemInvReqErr   = qp.RemInvReqErr
	RemAccessErr   = qp.RemAccessErr
	RemOpErr       = qp.RemOpErr
	RetryExcErr    = qp.RetryExcErr
	RNRRetryExcErr = qp.RNRRetryExcErr
	RemAbortErr    = qp.RemAbortErr
	FatalErr       = qp.FatalErr
	GeneralErr     = qp.GeneralErr
)

// Access rights (ibv_access_flags).
const (
	LocalWrite       = mr.LocalWrite       // receives, READs and atomics may store their results
	RemoteWrite      = mr.RemoteWrite      // needs LocalWrite
	RemoteRead       = mr.RemoteRead       //
	RemoteAtomic     = mr.RemoteAtomic     // needs LocalWrite
	ZeroBased        = mr.ZeroBased        // the first byte has address 0
	RemoteInvalidate = mr.RemoteInvalidate // the peer's OpSendInv may end the R_Key
	MWBind           = mr.MWBind           // memory windows may be bound to the region
	FlushGlobal      = mr.FlushGlobal      // OpFlush with PlaceGlobal
	FlushPersistent  = mr.FlushPersistent  // OpFlush with PlacePersistent; see WithPersist
)

// Attributes that Modify changes (ibv_qp_attr_mask).
const (
	AttrState           = qp.AttrState
	AttrPathMTU         = qp.AttrPathMTU
	AttrQKey            = qp.AttrQKey
	AttrRQPSN           = qp.AttrRQPSN
	AttrSQPSN           = qp.AttrSQPSN
	AttrDestQPN         = qp.AttrDestQPN
	AttrAccess          = qp.AttrAccess
	AttrPKey            = qp.AttrPKey
	AttrPath            = qp.AttrPath
	AttrMaxRdAtomic     = qp.AttrMaxRdAtomic
	AttrMaxDestRdAtomic = qp.AttrMaxDestRdAtomic
	AttrMinRNRTimer     = qp.AttrMinRNRTimer
	AttrTimeout         = qp.AttrTimeout
	AttrRetryCnt        = qp.AttrRetryCnt
	AttrRNRRetry        = qp.AttrRNRRetry
	AttrSelective       = qp.AttrSelective
	AttrCongestion      = qp.AttrCongestion
	AttrClass           = qp.AttrClass
	AttrRate            = qp.AttrRate // Rate and Burst
)

// Limits of queues, work requests and QP attributes.
const (
	MaxQueueDepth = qp.MaxQueueDepth // work requests of a send, receive or shared receive queue
	MaxCQDepth    = qp.MaxCQDepth    // completions of a CQ
	MaxSGE        = qp.MaxSGE        // SGEs of a work request
	MaxInline     = qp.MaxInline     // bytes of SendWR.Inline
	MaxMessage    = qp.MaxMessage    // bytes of a message
	MaxRdAtomic   = qp.MaxRdAtomic   // outstanding READs and atomics
	MaxAckTimeout = cm.MaxAckTimeout // Local ACK Timeout that Accept takes from the peer: 4.3 s
)

// DefaultPKey is the key of a full member of the default partition, the only one of the kernel's
// rxe.
const DefaultPKey = bth.DefaultPKey

// GRHLen is the number of bytes at the front of a UD receive buffer that hold the sender's network
// header (IBA 11.4.1.2): an IPv6 header, or an IPv4 header in the last 20 bytes.
const GRHLen = qp.GRHLen

// RemoteBuffer describes a memory region to a peer, which needs it for WRITE, READ and atomics. It
// marshals to JSON, and to a binary form of RemoteBufferLen bytes that fits in the private data of
// a connection.
type RemoteBuffer struct {
	Addr uint64 `json:"addr"` // address of the first byte, for SendWR.RemoteAddr
	RKey RKey   `json:"rkey"`
	Len  uint64 `json:"len"` // bytes
}

// Endpoint describes one side of a connection to the other side, which passes it to QP.Connect.
// Exchange it over any channel. It marshals to JSON.
type Endpoint struct {
	QPN  QPN  `json:"qpn"`
	PSN  PSN  `json:"psn"`  // the first PSN that this side sends
	GID  GID  `json:"gid"`  // this side's address
	MTU  MTU  `json:"mtu"`  // the largest path MTU that this side's interface supports
	PKey PKey `json:"pkey"` // the partition; 0: not known
	QKey QKey `json:"qkey"` // UD only
	// Features are the extensions of RoCEv2 that this side supports (RC). JSON without them, as of
	// peers that do not know them, means none.
	Features Features `json:"features,omitzero"`
	// Class is the traffic class that this side has chosen: see QPConfig.Class. JSON without it, as
	// of peers that do not know it, means 0.
	Class uint8 `json:"class,omitzero"`
}
