package roce

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/service"
	"github.com/gorxe/gorxe/loopback"
)

// A report has the counters, the round trips and the QPs of a device in any state.
func TestReport(t *testing.T) {
	a, b := newRig(t, rigConfig{})
	extra, err := a.CreateQP(a.pd, QPConfig{Type: UD, SendCQ: a.cq, SendDepth: 1})
	must(t, err)
	var r struct {
		Counters map[string]uint64
		RTTs     struct {
			Counts []uint64
			Sum    int64 `json:"sum_ns"`
		}
		Objects map[string]uint64
		QPs     []struct {
			QPStats
			Type, State string
			RemoteQPN   QPN `json:"remote_qpn"`
			RTTs        struct {
				Counts []uint64
				Sum    int64 `json:"sum_ns"`
			}
		}
	}
	var samples uint64
	writes := uint64(0)
	for samples == 0 { // a retransmission is not measured
		if writes++; writes > 1000 {
			t.Fatal("no round trip was measured")
		}
		must(t, a.qp.PostSend(SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{a.mr.SGE(0, 100)},
			RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
		pollOK(t, 0, WCWrite, a.cq)
		must(t, json.Unmarshal(a.reportJSON(10), &r))
		for _, n := range r.RTTs.Counts {
			samples += n
		}
	}
	if r.RTTs.Sum <= 0 {
		t.Errorf("%d round trips take %d ns", samples, r.RTTs.Sum)
	}
	if r.Counters["completions"] < writes || r.Objects["qps"] != 2 || r.Objects["mrs"] != 1 {
		t.Errorf("counters %v, objects %v", r.Counters, r.Objects)
	}
	found := 0
	for _, q := range r.QPs {
		switch q.QPN {
		case a.qp.QPN():
			found++
			if q.Type != "RC" || q.State != "RTS" || q.RemoteQPN != b.qp.QPN() ||
				q.Remote != b.qp.Local().GID || q.Acked != writes || !q.Metered ||
				q.SentBytes < 100*writes || q.RTTs.Sum != r.RTTs.Sum || len(q.RTTs.Counts) == 0 ||
				!slices.Equal(q.RTTs.Counts, r.RTTs.Counts[:len(q.RTTs.Counts)]) {
				t.Errorf("the report of a connected QP is %+v", q)
			}
		case extra.QPN():
			found++
			if q.Type != "UD" || q.State != extra.State().String() {
				t.Errorf("the report of an idle QP is %+v", q)
			}
		}
	}
	if found != 2 || len(r.QPs) != 2 {
		t.Errorf("the report has the QPs %+v, want those of the device", r.QPs)
	}
	if err := json.Unmarshal(a.reportJSON(1), &r); err != nil || len(r.QPs) != 1 {
		t.Errorf("a report of 1 QP has %d (%v)", len(r.QPs), err)
	}
}

// reportingPort is a port of a node service.
type reportingPort struct {
	driver.Port
	report func() []byte
}

func (p *reportingPort) Unwrap() driver.Port            { return p.Port }
func (p *reportingPort) SetReport(report func() []byte) { p.report = report }

// A device answers its node service. The answer fits the service's limit, whatever the number of
// queue pairs, and is empty of queue pairs when the device is closed.
func TestReportToService(t *testing.T) {
	link, err := loopback.NewLink(loopback.Config{})
	must(t, err)
	port := &reportingPort{Port: link.Port(0)}
	dev, err := New(port)
	must(t, err)
	defer dev.Close()
	pd, err := dev.AllocPD()
	must(t, err)
	for range maxReportQPs + 1 {
		_, err := dev.CreateQP(pd, QPConfig{Type: UD, SendDepth: 1, RecvDepth: 1})
		must(t, err)
	}
	var r struct {
		Objects map[string]uint64
		QPs     []QPStats
	}
	b := port.report()
	must(t, json.Unmarshal(b, &r))
	// Counters have up to 20 digits; those of new queue pairs have 1.
	if len(r.QPs) != maxReportQPs || r.Objects["qps"] != maxReportQPs+1 || len(b) > service.MaxReport*4/5 {
		t.Errorf("a report of %d bytes has %d of %d queue pairs", len(b), len(r.QPs), r.Objects["qps"])
	}
	must(t, dev.Close())
	if err := json.Unmarshal(port.report(), &r); err != nil || len(r.QPs) != 0 {
		t.Errorf("the report of a closed device has %d queue pairs (%v)", len(r.QPs), err)
	}
}
