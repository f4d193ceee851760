package qp

// Counters are the counters of an engine. Where it fits, the names are those of the kernel's rxe
// driver (rdma statistic show). Only the owner may read them.
type Counters struct {
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
	Probes              uint64 // probes; see retry.go
	Retransmits         uint64 // retransmitted packets
	SpuriousRetransmits uint64 // packets retransmitted too early, reported by selective repeat
	RetryExceeded       uint64
	RNRRetryExceeded    uint64
	MarkedPkts          uint64 // received with the ECN mark "congestion experienced" (RC)
	SentCNPs            uint64 // congestion notification packets (CNPs) sent; see cnp.go
	RcvdCNPs            uint64 // CNPs received from the peers of RC QPs
	Timers              uint64
	Completions         uint64
	CompletionErrors    uint64 // with a status other than Success or WRFlushErr
	Flushed             uint64

	BadRKey     uint64 // requests refused: wrong R_Key, range or access right
	OutOfWindow uint64 // packets of connected QPs with an implausible PSN: see checkDistance

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
