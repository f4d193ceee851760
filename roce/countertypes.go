package roce

import (
	"iter"

	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/roce/cm"
)

// EngineCounters are the counters of the protocol engine, a part of Counters. Where it fits, the
// names are those of the kernel's rxe driver (rdma statistic show).
type EngineCounters struct {
	SentPkts            uint64 // packets built
	RcvdPkts            uint64 // packets received
	SentBytes           uint64 // payload, bytes
	RcvdBytes           uint64
	DuplicateRequest    uint64 // responder: PSN received before
	OutOfSeqRequest     uint64 // responder: PSN after a gap
	SentRNR             uint64 // RNR NAKs sent
	RcvdRNR             uint64
	SentSeqNAK          uint64
	RcvdSeqNAK          uint64
	SentSelAcks         uint64 // acknowledgments with a SelACK
	HeldPkts            uint64 // responder: packets after a gap that were held
	PlacedPkts          uint64 // of these, packets whose data went to memory at once
	ReorderDrops        uint64 // responder: packets after a gap for which there was no memory
	ParkedBytes         uint64 // gauge: memory in use for held packets, bytes
	SentErrNAK          uint64 // invalid request, access error, operational error
	RcvdErrNAK          uint64
	SentAcks            uint64
	ImpliedNAK          uint64 // responses that showed a lost READ response
	AckTimeouts         uint64 // Local ACK Timeouts
	Probes              uint64 // packets that ask for an acknowledgment
	Retransmits         uint64 // retransmitted packets
	SpuriousRetransmits uint64 // packets retransmitted too early, reported by selective repeat
	RetryExceeded       uint64
	RNRRetryExceeded    uint64
	MarkedPkts          uint64 // received with the ECN mark "congestion experienced" (RC)
	SentCNPs            uint64 // congestion notification packets (CNPs) sent
	RcvdCNPs            uint64 // CNPs received from the peers of RC QPs
	Timers              uint64
	Completions         uint64
	CompletionErrors    uint64 // with a status other than Success or WRFlushErr
	Flushed             uint64

	BadRKey     uint64 // requests refused: wrong R_Key, range or access right
	OutOfWindow uint64 // packets of connected QPs with an implausible PSN

	DropNoQP      uint64 // the QP does not exist, or is in RESET, INIT or ERR
	DropType      uint64 // opcode of another transport than the QP's
	DropAddress   uint64 // source, destination or VLAN is not that of the QP's path
	DropPKey      uint64
	DropQKey      uint64
	DropNoRecv    uint64 // UC and UD: no receive posted
	DropLength    uint64 // UC and UD: wrong length; sent packets: longer than the port's MTU
	DropSequence  uint64 // UC: message lost in a gap
	DropAccess    uint64 // UC: wrong R_Key or access
	DropGhost     uint64 // requester: response to nothing outstanding
	DropReplay    uint64 // responder: duplicate that cannot be answered any more
	DropMulticast uint64 // no QP is attached to the multicast group
	EventsLost    uint64
}

// CMCounters are the counters of the connection manager, a part of Counters. The indexes of the
// arrays are the types of its messages, in the order of package roce/cm: REQ, MRA, REJ ...
type CMCounters struct {
	Received      [cm.NumAttributes]uint64 // well-formed MADs
	Sent          [cm.NumAttributes]uint64 // including retransmissions
	Retransmitted [cm.NumAttributes]uint64 // after a timeout, or to answer a duplicate
	Duplicate     [cm.NumAttributes]uint64 // duplicates received, and answered as before
	Late          [cm.NumAttributes]uint64 // dropped because the state does not expect them

	BadLength       uint64 // MADs that are not 256 bytes long
	BadHeader       uint64 // wrong base version, class version or method
	BadClass        uint64 // another management class
	BadAttribute    uint64 // unknown message
	BadSource       uint64 // from a multicast or zero address
	Malformed       uint64 // invalid field
	UnknownID       uint64 // unknown communication ID
	WrongPeer       uint64 // communication ID of another peer's connection
	DropRate        uint64 // messages without connection dropped: rate limit
	DropPeer        uint64 // requests dropped: Config.Peers or ListenParams.Peers
	DropBacklog     uint64 // requests dropped: the listener's backlog is full
	DropSource      uint64 // requests dropped: their source has used its share of the backlog
	DropHalfOpen    uint64 // requests dropped: too many half-open connections
	DropFull        uint64 // requests dropped: too many connections
	DropAnswer      uint64 // answers dropped: too many are queued
	BadPKey         uint64 // requests refused: they name a partition that the port is not in
	DropUnverified  uint64 // messages not sent: the peer may have forged its address
	Stale           uint64 // messages that name the peer's QP of another connection
	EvictedHalfOpen uint64 // accepted connections given up for a new request
	EvictedTimeWait uint64 // TIME-WAITs ended early to free a slot
	EvictedRelease  uint64 // connections removed before their DREP, to free a slot
	EvictedLinger   uint64 // refusals and SIDR replies removed early to free a slot
	Timeouts        uint64 // answers that did not arrive in time
	GaveUp          uint64 // exchanges given up without an answer
}

// All returns an iterator over the names and values of all counters, in a fixed order:
// received_req, received_mra ...
func (c CMCounters) All() iter.Seq2[string, uint64] { return cm.Counters(c).All() }

// DropReason is why the decoder dropped a frame: an index of Counters.Drops. Its String method
// returns a description such as "bad ICRC". Package frame lists the reasons.
type DropReason = frame.Reason

// PortStats are the counters of a Port since it was opened, a part of Counters.
type PortStats struct {
	RxFrames, RxBytes uint64
	TxFrames, TxBytes uint64
	RxDropped         uint64 // frames lost before the Device received them: rings full, no buffers
	TxDropped         uint64 // frames passed to the port but not put on the wire
	TxRuns            uint64 // runs of packets that the kernel got as one message (UDP_SEGMENT)
	Kicks             uint64 // system calls that start transmission
	Waits             uint64 // system calls that block
}
