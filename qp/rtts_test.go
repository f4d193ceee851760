package qp

import "testing"

func TestRTTHistogram(t *testing.T) {
	var h RTTHistogram
	for _, test := range []struct {
		rtt    Time
		bucket int
	}{
		{1, 0}, {1023, 0}, {1024, 1}, {2047, 1}, {2048, 2},
		{RTTBound(NumRTTBuckets-2) - 1, NumRTTBuckets - 2},
		{RTTBound(NumRTTBuckets - 2), NumRTTBuckets - 1}, {1 << 62, NumRTTBuckets - 1},
	} {
		before := h
		h.add(test.rtt)
		if h.Counts[test.bucket] != before.Counts[test.bucket]+1 || h.Sum != before.Sum+test.rtt {
			t.Errorf("add(%d): %+v, want one more in bucket %d", test.rtt, h, test.bucket)
		}
	}
}
