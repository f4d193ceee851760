package roce

import (
	"encoding/json"
	"slices"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/qp"
)

// report describes a device for package internal/status, which decodes it from JSON: the report of
// another program is not trusted.
type report struct {
	Counters Counters       `json:"counters"`
	RTTs     reportRTTs     `json:"rtts"`
	Objects  inside.Objects `json:"objects"`
	QPs      []reportQP     `json:"qps"`
}

// reportRTTs is qp.RTTHistogram.
type reportRTTs struct {
	Counts [qp.NumRTTBuckets]uint64 `json:"counts"`
	Sum    qp.Time                  `json:"sum_ns"`
}

// reportQPRTTs has the round trips of a QP. Counts ends with the last bucket that is not empty,
// because the size of a report is limited.
type reportQPRTTs struct {
	Counts []uint64 `json:"counts"`
	Sum    qp.Time  `json:"sum_ns"`
}

// reportQP describes a QP in any state.
type reportQP struct {
	QPStats
	RTTs      *reportQPRTTs `json:"rtts,omitempty"` // nil: none was measured
	Type      string        `json:"type"`
	State     string        `json:"state"`
	RemoteQPN QPN           `json:"remote_qpn"`
	MTU       int           `json:"path_mtu"`
}

// reporter is an optional interface of a Port whose node service shows what its programs do.
type reporter interface {
	// SetReport sets the function that returns the report of the device.
	SetReport(report func() []byte)
}

// maxReportQPs limits the queue pairs in a report to a node service, whose size is limited.
const maxReportQPs = 200

// reportTo makes d answer the node service of a port, if the port belongs to one.
func (d *Device) reportTo(port driver.Port) {
	if r, ok := driver.Find[reporter](port); ok {
		r.SetReport(func() []byte { return d.reportJSON(maxReportQPs) })
	}
}

// reportJSON implements inside.Report.
func (d *Device) reportJSON(maxQPs int) []byte {
	b, err := json.Marshal(d.status(maxQPs))
	if err != nil {
		return nil // a number that JSON cannot express, such as an infinite rate
	}
	return b
}

// status returns a description of the device with at most maxQPs queue pairs, those with the lowest
// numbers.
func (d *Device) status(maxQPs int) *report {
	r := &report{Counters: d.Counters(), QPs: []reportQP{}}
	d.ctl.Lock()
	qps := d.sortedQPs()
	r.Objects = inside.Objects{PDs: len(d.pds), CQs: len(d.cqs), QPs: len(d.qps), SRQs: len(d.srqs),
		MRs: len(d.mems), Memory: d.mem.used.Load()}
	d.ctl.Unlock()
	err := d.do(func(qp.Time) {
		h := d.eng.RTTs()
		r.RTTs = reportRTTs{h.Counts, h.Sum}
	})
	qps = qps[:min(len(qps), maxQPs)]
	for batch := range slices.Chunk(qps, statsBatch) {
		if err != nil {
			return r
		}
		err = d.do(func(qp.Time) {
			for _, q := range batch {
				if !q.closed.Load() {
					a := q.qp.Query()
					r.QPs = append(r.QPs, reportQP{QPStats: q.stats(), RTTs: q.reportRTTs(),
						Type: q.Type().String(), State: q.State().String(), RemoteQPN: a.DestQPN,
						MTU: int(a.PathMTU)})
				}
			}
		})
	}
	return r
}

// reportRTTs returns the round trips of a QP, or nil if it has not measured any. Owner only.
func (q *QP) reportRTTs() *reportQPRTTs {
	t, _ := q.qp.Traffic()
	n := len(t.RTTs.Counts)
	for n > 0 && t.RTTs.Counts[n-1] == 0 {
		n--
	}
	if n == 0 {
		return nil
	}
	return &reportQPRTTs{slices.Clone(t.RTTs.Counts[:n]), t.RTTs.Sum}
}
