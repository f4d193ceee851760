package roce

import "github.com/gorxe/gorxe/qp"

// The types of this file and of completion.go and attr.go have the memory layout of the engine's
// types, so that passing them to the engine costs nothing: see engine_unsafe.go.

// SendWR is a send work request for QP.PostSend (ibv_send_wr). Op says which of the fields are
// used.
type SendWR struct {
	ID    uint64 // returned in WC.ID
	Op    Op
	Flags SendFlags

	// SGEs name the memory to send (SEND, WRITE, ATOMIC WRITE), or the memory for the result (READ,
	// atomics: 8 bytes). At most QPConfig.MaxSendSGE.
	SGEs []SGE
	// Inline are the bytes to send, instead of SGEs, for SEND, WRITE and ATOMIC WRITE. PostSend
	// copies them. At most QPConfig.MaxInline bytes.
	Inline []byte

	RemoteAddr uint64 // WRITE, READ, atomics, FLUSH: address of the peer's memory
	RKey       RKey   // its key; OpBindMW, OpRegMR: the key that becomes valid

	Imm    uint32 // OpSendImm, OpWriteImm: immediate data, host byte order
	InvKey RKey   // OpSendInv, OpLocalInv: the key to invalidate

	Compare uint64 // OpCmpSwap: the value that is expected
	SwapAdd uint64 // OpCmpSwap: the new value; OpFetchAdd: the addend

	Length    uint32    // OpFlush: bytes, at most 2^31
	Placement Placement // OpFlush
	Level     Level     // OpFlush

	Access Access // OpBindMW: rights that the window grants

	AH         *AH  // UD: the receiver's address
	RemoteQPN  QPN  // UD: the receiver's QP
	RemoteQKey QKey // UD: the receiver's Q_Key
}

// RecvWR is a receive work request for QP.PostRecv and SRQ.PostRecv (ibv_recv_wr).
type RecvWR struct {
	ID   uint64 // returned in WC.ID
	SGEs []SGE  // memory for the message, at most QPConfig.MaxRecvSGE
}

// SGE is a range of registered memory (ibv_sge). MR.SGE returns one.
type SGE struct {
	Addr   uint64 // see MR.Addr
	Length uint32 // bytes
	LKey   LKey
}

// Op is the operation of a SendWR (ibv_wr_opcode).
type Op uint8

// The operations.
const (
	OpSend     Op = iota // SEND
	OpSendImm            // SEND with immediate data
	OpSendInv            // SEND that invalidates SendWR.InvKey at the peer
	OpWrite              // RDMA WRITE
	OpWriteImm           // RDMA WRITE with immediate data, which consumes a receive of the peer
	OpRead               // RDMA READ
	OpCmpSwap            // atomic compare and swap of 8 bytes
	OpFetchAdd           // atomic fetch and add of 8 bytes

	OpFlush       // FLUSH (IBA annex A19)
	OpAtomicWrite // ATOMIC WRITE of 8 aligned bytes (IBA annex A19)

	// Local operations, which send no packet. See MW and FastMR.
	OpBindMW   // binds a memory window
	OpLocalInv // invalidates a key
	OpRegMR    // makes a registration of a FastMR valid
)

// String returns the name of the operation as in ibv_wr_opcode, for example "RDMA_WRITE".
func (o Op) String() string { return qp.Op(o).String() }

// SendFlags are the flags of a SendWR (ibv_send_flags).
type SendFlags uint8

// The flags of a SendWR.
const (
	Signaled  SendFlags = 1 << iota // success completes with a WC, too
	Fence                           // start only after earlier READs, atomics and FLUSHes
	Solicited                       // the peer's completion is solicited: see CQ.WaitSolicited
)

// Placement is what an OpFlush guarantees about earlier WRITEs (ibv_placement_type).
type Placement uint8

// The placements. They can be combined.
const (
	PlaceGlobal     Placement = 1 << iota // they are visible to all observers
	PlacePersistent                       // they survive a loss of power
)

// Level is the range of memory that an OpFlush covers (ibv_selectivity_level).
type Level uint8

// The levels.
const (
	FlushRange  Level = iota // SendWR.Length bytes at SendWR.RemoteAddr
	FlushRegion              // the whole region or window
)

// SRQConfig describes the shared receive queue that Device.CreateSRQ creates.
type SRQConfig struct {
	Depth  int // receive work requests, 1 to MaxQueueDepth
	MaxSGE int // SGEs per receive work request, at most MaxSGE; 0: 4
}

// Footprint returns the memory of the queue in bytes, which counts towards Expert.MaxMemory.
func (c *SRQConfig) Footprint() int { return (*qp.SRQConfig)(c).Footprint() }
