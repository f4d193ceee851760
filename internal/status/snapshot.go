package status

import (
	"time"

	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce"
)

// Snapshot is the state of a device and of the programs that use it. The JSON keys are stable: keys
// are added, but not renamed or removed.
type Snapshot struct {
	Time     time.Time `json:"time"`
	Version  string    `json:"version"`          // of gorxe
	Started  time.Time `json:"started"`          // when the collector was created
	Socket   string    `json:"socket,omitempty"` // of the service; "": other programs cannot join
	Device   Device    `json:"device"`
	Programs []Program `json:"programs"` // in the order of their slots

	// RTTBounds are the upper bounds of the buckets of Program.RTTs, in nanoseconds. The last
	// bucket, for which there is no bound, has longer round trips.
	RTTBounds []int64 `json:"rtt_bounds_ns"`
}

// Device describes the interface and the port.
type Device struct {
	roce.DeviceInfo
	MAC       string          `json:"mac,omitempty"`
	Addresses []roce.GIDEntry `json:"addresses"`
}

// Program is a program that uses the device.
type Program struct {
	Slot   uint8     `json:"slot"` // 0: the owner of the interface; others have joined its service
	PID    int       `json:"pid"`
	UID    int       `json:"uid"`
	Name   string    `json:"name"`
	Joined time.Time `json:"joined"`
	Error  string    `json:"error,omitempty"` // why the fields below are empty

	Objects  Objects           `json:"objects"`
	Counters map[string]uint64 `json:"counters"` // docs/counters.md has the names
	// since the last snapshot; nil: the first one
	Rates   *Rates    `json:"rates,omitempty"`
	RTTs    Histogram `json:"rtts"`        // of all RC queue pairs
	QPs     []QP      `json:"qps"`         // in the order of their numbers
	Omitted int       `json:"qps_omitted"` // queue pairs beyond the limits
}

// Objects has the numbers of verbs objects.
type Objects = inside.Objects

// Rates are differences of counters per second.
type Rates struct {
	SentBytes   float64 `json:"sent_bytes"` // payload
	RcvdBytes   float64 `json:"rcvd_bytes"`
	SentPkts    float64 `json:"sent_pkts"`
	RcvdPkts    float64 `json:"rcvd_pkts"`
	Retransmits float64 `json:"retransmits"`
	Completions float64 `json:"completions"`
}

// Histogram counts round trips. Bucket i has those shorter than Snapshot.RTTBounds[i] that are not
// in an earlier bucket.
type Histogram struct {
	Counts [qp.NumRTTBuckets]uint64 `json:"counts"`
	Sum    int64                    `json:"sum_ns"`
	P50    int64                    `json:"p50_ns"` // upper bound of the bucket with the median
	P99    int64                    `json:"p99_ns"`
}

// QP is a queue pair.
type QP struct {
	roce.QPStats
	Type      string     `json:"type"`
	State     string     `json:"state"`
	RemoteQPN roce.QPN   `json:"remote_qpn"`
	MTU       int        `json:"path_mtu"`
	RTTs      *Histogram `json:"rtts,omitempty"`  // nil: none was measured
	Rates     *QPRates   `json:"rates,omitempty"` // since the last snapshot; nil: new
}

// QPRates are differences per second.
type QPRates struct {
	Requested   float64 `json:"requested_psns"` // request packets of this side
	Accepted    float64 `json:"accepted_psns"`  // request packets of the peer
	Retransmits float64 `json:"retransmits"`

	// payload; 0 if the queue pair is not metered
	SentBytes float64 `json:"sent_bytes"`
	RcvdBytes float64 `json:"rcvd_bytes"`
}

// For returns the part of a snapshot that a user may see: only programs of this user.
func (s *Snapshot) For(uid int) *Snapshot {
	own := *s
	own.Programs = []Program{}
	for _, p := range s.Programs {
		if p.Slot != 0 && p.UID == uid {
			own.Programs = append(own.Programs, p)
		}
	}
	return &own
}

// total returns the number of round trips.
func (h *Histogram) total() (n uint64) {
	for _, c := range h.Counts {
		n += c
	}
	return n
}

// complete computes what a report does not have.
func (h *Histogram) complete() {
	h.Sum = max(h.Sum, 0)
	h.P50, h.P99 = h.quantile(0.5), h.quantile(0.99)
}

// quantile returns the upper bound of the bucket that has the given share of the round trips below
// its end, or 0 if there are none. For the last bucket it returns the lower bound.
func (h *Histogram) quantile(share float64) int64 {
	total, seen := h.total(), uint64(0)
	if total == 0 {
		return 0
	}
	for i, c := range h.Counts {
		if seen += c; float64(seen) >= share*float64(total) {
			return int64(qp.RTTBound(min(i, qp.NumRTTBuckets-2)))
		}
	}
	return 0
}

// rttBounds returns Snapshot.RTTBounds.
func rttBounds() []int64 {
	b := make([]int64, qp.NumRTTBuckets-1)
	for i := range b {
		b[i] = int64(qp.RTTBound(i))
	}
	return b
}
