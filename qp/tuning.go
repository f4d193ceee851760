package qp

// Sending.
const (
	quantum      = 16 << 10     // bytes that a QP may send before the next QP is served
	longTurn     = 64 << 10     // the same with Config.Runs while few QPs have packets to send
	longRound    = 8 * longTurn // bytes of all their turns, but at least a quantum each
	minDeferred  = 1024         // shortest piece of a payload that is worth deferring, bytes
	ackInterval  = 32           // largest number of packets between two with AckReq
	minReadPart  = 8            // packets of a part of a READ, at least; see sendRead
	minReadRetry = 2            // packets that a retry of a READ requests, at least; see retryRead
)

// Delays of ACKs.
//
// An immediate ACK costs a frame and a system call for every message and delays the data that the
// user posts in response. ACKs are therefore delayed. If the requester set AckReq, the ACK is sent
// in the first later step in which no data is sent, after ackSoon at the latest, or when ackBatch
// packets wait for it. Otherwise only the requester's queue slots wait for it, and it is sent after
// ackLate, well before the requester's first probe. IBA 9.7.5.1.2 allows both: an ACK covers all
// packets before it, and any packet may be acknowledged.
//
// On a host where programs need all CPUs, a process wakes up for each ACK at either side. There the
// ACK of a message waits for the program's reply, if it usually replies; see Engine.KeepAcks. It
// waits as long as programs that poll often have to wait for a CPU.
const (
	ackSoon  Time = 4_000     // ns
	ackLate  Time = 50_000    // ns
	ackKept  Time = 1_000_000 // ns
	ackBatch      = 16        // packets

	patient = 10 // the smallest Attr.Timeout, 4.2 ms, with which ACKs are kept

	manyReplies = 32 // answered messages from which on ACKs wait for replies
	maxReplies  = 63 // so one message without an answer halves it to less than manyReplies
)

// starvedDelay is by how much the timeouts of a QP are postponed that waits for its turn among
// traffic classes or for tokens, in ns. It bounds the cost of the timers of many such QPs.
const starvedDelay Time = 10_000_000

// DefaultPrefetch is the default window in QPs. The paper's formula (sched.Window) with 300 ns per
// message and 5 links of up to 200 ns each gives half of it. It is doubled because a message takes
// less time if everything is in the cache.
const DefaultPrefetch = 8

// Prefetching.
const (
	fewQPs           = 64   // QPs that stay in the nearest caches anyway
	nearQPs          = 2048 // with at most this many QPs and nearKeys R_Keys, prefetching for
	nearKeys         = 4096 // received packets costs more than it saves
	nearBuckets      = 1024 // buckets of a QP table that stays in the caches
	maxPrefetchBatch = 64   // received packets in a batch
)

// Times in which the loop around the engine changes its behavior.
const (
	calmAfter Time = 1_000_000_000 // ns without a go-back; see Engine.Calm
	gapMemory Time = 10_000_000    // ns after a gap; see Engine.RecentGaps
)
