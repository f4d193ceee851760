package qp

// Counters count what an engine did. Names follow the kernel rxe's hw counters where one fits
// (rdma statistic show). They belong to the engine's thread.
type Counters struct {
	SentPkts         uint64 // packets built
	RcvdPkts         uint64 // packets taken in
	SentBytes        uint64 // payload
	RcvdBytes        uint64
	DuplicateRequest uint64 // responder: PSN seen before
	OutOfSeqRequest  uint64 // responder: PSN ahead of the expected one
	SentRNR          uint64 // RNR NAKs sent
	RcvdRNR          uint64
	SentSeqNAK       uint64
	RcvdSeqNAK       uint64
	SentErrNAK       uint64 // invalid request, access, operational
	RcvdErrNAK       uint64
	SentAcks         uint64
	ImpliedNAK       uint64 // answers that showed a lost READ response
	AckTimeouts      uint64 // Local ACK Timeouts
	Probes           uint64 // early probes (see retry.go)
	Retransmits      uint64 // packets sent again
	RetryExceeded    uint64
	RNRRetryExceeded uint64
	Timers           uint64
	Completions      uint64
	CompletionErrors uint64 // with a status other than Success, flushes excepted
	Flushed          uint64

	DropNoQP      uint64 // packets for a QPN that is not here, or in RESET, INIT or ERR
	DropType      uint64 // opcode of another transport than the QP's
	DropAddress   uint64 // source or destination is not the QP's peer
	DropPKey      uint64
	DropQKey      uint64
	DropNoRecv    uint64 // UC and UD: no receive posted
	DropLength    uint64 // UC and UD: wrong length; to send: longer than the port carries by now
	DropSequence  uint64 // UC: message lost in a gap
	DropAccess    uint64 // UC: rkey or access wrong
	DropGhost     uint64 // requester: answer to nothing outstanding
	DropReplay    uint64 // responder: duplicate that cannot be answered any more
	DropMulticast uint64 // to the multicast QPN, and no QP is attached to the group
	EventsLost    uint64
}
