package roce

import (
	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/qp"
)

// The engine's types, under the names that a user of verbs expects, so that a program imports roce alone.
type (
	// SendWR is a work request for PostSend (ibv_send_wr).
	SendWR = qp.SendWR
	// RecvWR is a work request for PostRecv (ibv_recv_wr).
	RecvWR = qp.RecvWR
	// SGE names a piece of registered memory (ibv_sge). MR.SGE makes one.
	SGE = qp.SGE
	// WC is a work completion (ibv_wc).
	WC = qp.WC
	// Status is a completion's status (ibv_wc_status).
	Status = qp.Status
	// WCOpcode says what completed (ibv_wc_opcode).
	WCOpcode = qp.WCOpcode
	// WCFlags are a completion's flags (ibv_wc_flags).
	WCFlags = qp.WCFlags
	// Op is the operation of a SendWR (ibv_wr_opcode).
	Op = qp.Op
	// SendFlags are the flags of a SendWR (ibv_send_flags).
	SendFlags = qp.SendFlags
	// Placement is what an OpFlush is to achieve (ibv_placement_type).
	Placement = qp.Placement
	// Level is how much an OpFlush is about (ibv_selectivity_level).
	Level = qp.Level
	// State is the state of a QP (ibv_qp_state).
	State = qp.State
	// QPType is the transport service of a QP: RC, UC or UD.
	QPType = qp.Type
	// Attr holds a QP's attributes, for Modify and Query (ibv_qp_attr).
	Attr = qp.Attr
	// AttrMask says which fields of an Attr count (ibv_qp_attr_mask).
	AttrMask = qp.AttrMask
	// Path is the path to a peer: the addresses of both sides and the prepared Ethernet, IP and UDP headers.
	// Device.ResolvePath makes one.
	Path = frame.Path

	// Access are the rights that a memory region grants.
	Access = mr.Access

	// GID is an address in RoCEv2: an IPv6 address, or an IPv4 address as ::ffff:a.b.c.d.
	GID = bth.GID
	// QPN is the number of a queue pair, 24 bits.
	QPN = bth.QPN
	// PSN is a packet sequence number, 24 bits.
	PSN = bth.PSN
	// RKey is the key by which a peer names a memory region.
	RKey = bth.RKey
	// LKey is the key by which the owner's own work requests name a memory region.
	LKey = bth.LKey
	// PKey is a partition key; RoCE uses DefaultPKey.
	PKey = bth.PKey
	// QKey protects a UD queue pair.
	QKey = bth.QKey
	// MTU is a path MTU: 256, 512, 1024, 2048 or 4096 bytes of payload a packet.
	MTU = bth.MTU
)

// The transport services.
const (
	RC = qp.RC
	UC = qp.UC
	UD = qp.UD
)

// The states of a queue pair.
const (
	StateReset = qp.Reset
	StateInit  = qp.Init
	StateRTR   = qp.RTR
	StateRTS   = qp.RTS
	StateSQD   = qp.SQD
	StateSQE   = qp.SQE
	StateErr   = qp.Err
)

// The operations of a SendWR.
const (
	OpSend     = qp.OpSend
	OpSendImm  = qp.OpSendImm
	OpSendInv  = qp.OpSendInv
	OpWrite    = qp.OpWrite
	OpWriteImm = qp.OpWriteImm
	OpRead     = qp.OpRead
	OpCmpSwap  = qp.OpCmpSwap
	OpFetchAdd = qp.OpFetchAdd

	OpFlush       = qp.OpFlush
	OpAtomicWrite = qp.OpAtomicWrite

	// The next three are local: nothing is sent. See MW and FastMR.
	OpBindMW   = qp.OpBindMW
	OpLocalInv = qp.OpLocalInv
	OpRegMR    = qp.OpRegMR
)

// What an OpFlush is to achieve, and how much it is about.
const (
	PlaceGlobal     = qp.PlaceGlobal
	PlacePersistent = qp.PlacePersistent
	FlushRange      = qp.FlushRange
	FlushRegion     = qp.FlushRegion
)

// The flags of a SendWR.
const (
	Signaled  = qp.Signaled
	Fence     = qp.Fence
	Solicited = qp.Solicited
)

// What completed.
const (
	WCSend         = qp.WCSend
	WCWrite        = qp.WCWrite
	WCRead         = qp.WCRead
	WCCmpSwap      = qp.WCCmpSwap
	WCFetchAdd     = qp.WCFetchAdd
	WCRecv         = qp.WCRecv
	WCRecvWriteImm = qp.WCRecvWriteImm
	WCFlush        = qp.WCFlush
	WCAtomicWrite  = qp.WCAtomicWrite
	WCBindMW       = qp.WCBindMW
	WCLocalInv     = qp.WCLocalInv
	WCRegMR        = qp.WCRegMR
)

// The flags of a completion.
const (
	WCWithImm = qp.WCWithImm
	WCWithInv = qp.WCWithInv
	WCGRH     = qp.WCGRH
)

// The statuses of a completion, by their verbs names.
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
)

// The rights of a memory region.
const (
	LocalWrite       = mr.LocalWrite
	RemoteWrite      = mr.RemoteWrite
	RemoteRead       = mr.RemoteRead
	RemoteAtomic     = mr.RemoteAtomic
	ZeroBased        = mr.ZeroBased
	RemoteInvalidate = mr.RemoteInvalidate
	MWBind           = mr.MWBind
	FlushGlobal      = mr.FlushGlobal
	FlushPersistent  = mr.FlushPersistent
)

// What Modify changes.
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
)

// DefaultPKey is the only partition key that RoCE uses.
const DefaultPKey = bth.DefaultPKey

// GRHLen is the number of bytes that a UD receive buffer gives up at its front for the sender's
// network header (IBA 11.4.1.2): 40 for IPv6; an IPv4 header stands in the last 20 of them.
const GRHLen = 40

// RemoteBuffer is what an end tells its peer about a memory region, so that the peer can WRITE, READ or do atomics
// on it. It marshals to JSON.
type RemoteBuffer struct {
	Addr uint64 `json:"addr"` // virtual address of the region's first byte, as the peer puts it into RemoteAddr
	RKey RKey   `json:"rkey"`
	Len  uint64 `json:"len"` // bytes
}

// Endpoint is what two ends tell each other out of band before Connect: over TCP, a file, or the connection manager.
// It marshals to JSON, the GID as text.
type Endpoint struct {
	QPN  QPN  `json:"qpn"`
	PSN  PSN  `json:"psn"`  // the first PSN that this end sends
	GID  GID  `json:"gid"`  // this end's address
	MTU  MTU  `json:"mtu"`  // the largest path MTU that this end's interface carries
	PKey PKey `json:"pkey"` // DefaultPKey
	QKey QKey `json:"qkey"` // UD only
}
