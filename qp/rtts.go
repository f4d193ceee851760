package qp

import "math/bits"

// NumRTTBuckets is the number of buckets of an RTTHistogram.
const NumRTTBuckets = 24

// firstRTTBits makes the first bucket end at 2^10 ns.
const firstRTTBits = 10

// RTTHistogram counts the round trips that RC QPs have measured. Bucket i has those shorter than
// RTTBound(i) that do not belong to a bucket before it. The last bucket has all longer ones.
type RTTHistogram struct {
	Counts [NumRTTBuckets]uint64
	Sum    Time // of all round trips, ns
}

// RTTBound returns the upper bound of bucket i, in nanoseconds: 1,024 ns doubled i times. The last
// bucket, NumRTTBuckets-1, has no bound.
func RTTBound(i int) Time { return 1 << (firstRTTBits + i) }

// add counts a round trip, which is at least 1 ns.
func (h *RTTHistogram) add(rtt Time) {
	i := bits.Len64(uint64(rtt) >> firstRTTBits)
	h.Counts[min(i, NumRTTBuckets-1)]++
	h.Sum += rtt
}

// RTTs returns the round trips of all RC QPs since the engine was created. Round trips of
// retransmitted packets are not measured, and at most one of each QP at a time. Only the owner may
// call it.
func (e *Engine) RTTs() *RTTHistogram { return &e.rtts }
