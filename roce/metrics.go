package roce

import (
	"cmp"
	"fmt"
	"iter"
	"strconv"
	"strings"

	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/roce/cm"
)

// Metric is one value for a monitoring system, such as Prometheus.
type Metric struct {
	Name   string // for example "sent_pkts"
	Help   string // what it counts, in one line, with the unit
	Kind   MetricKind
	Labels []Label
	Value  float64
}

// MetricKind says how a Metric changes.
type MetricKind uint8

const (
	MetricCounter MetricKind = iota // only grows
	MetricGauge                     // goes up and down
)

// String returns "counter" or "gauge", as in the text format of Prometheus.
func (k MetricKind) String() string {
	if k == MetricGauge {
		return "gauge"
	}
	return "counter"
}

// Label distinguishes Metrics of the same name.
type Label struct{ Name, Value string }

// gauges are the counters of All that go down, too.
var gauges = map[string]bool{"parked_bytes": true}

// Metrics returns an iterator over all counters with their descriptions, in a fixed order. Counters
// that exist for several things have one name and a label: the traffic class ("class"), the message
// of the connection manager ("message") or the reason for which a frame was dropped ("reason"). All
// Metrics of one name follow each other and have the same labels.
func (c Counters) Metrics() iter.Seq[Metric] {
	return func(yield func(Metric) bool) {
		for _, n := range counterNames {
			m := Metric{Name: n.name, Help: counterHelp[n.name], Value: float64(*n.of(&c))}
			if gauges[n.name] {
				m.Kind = MetricGauge
			}
			if !yield(m) {
				return
			}
		}
		for _, n := range classCounterNames {
			for i := range c.Classes {
				if !yield(Metric{Name: "class_" + n.name, Help: counterHelp["class_"+n.name],
					Labels: []Label{{"class", strconv.Itoa(i)}},
					Value:  float64(*n.of(&c.Classes[i]))}) {
					return
				}
			}
		}
		for n, v := range c.CM.All() {
			m := Metric{Name: "cm_" + n, Value: float64(v)}
			for _, p := range cmMessageCounters {
				if msg, ok := strings.CutPrefix(n, p+"_"); ok && cmMessage(msg) {
					m.Name, m.Labels = "cm_"+p, []Label{{"message", msg}}
				}
			}
			m.Help = counterHelp[m.Name]
			if !yield(m) {
				return
			}
		}
		for r := frame.ReasonOK + 1; r < frame.NumReasons; r++ {
			if !yield(Metric{Name: "drop_frame", Help: counterHelp["drop_frame"],
				Labels: []Label{{"reason", reasonName(r)}}, Value: float64(c.Drops[r])}) {
				return
			}
		}
	}
}

// cmMessageCounters are the counters of the connection manager that exist for each message.
var cmMessageCounters = []string{"received", "sent", "repeated", "duplicate", "late"}

// cmMessage reports whether the connection manager has a message of that name.
func cmMessage(name string) bool {
	for a := cm.AttrREQ; a <= cm.AttrAPR; a++ {
		if strings.EqualFold(a.String(), name) {
			return true
		}
	}
	return false
}

// Metrics returns an iterator over the numbers of s with their descriptions, in a fixed order. The
// labels are "qpn" and "remote", the peer's address. The names begin with "qp_". The bytes of a QP
// that is not metered are left out.
func (s QPStats) Metrics() iter.Seq[Metric] {
	labels := []Label{{"qpn", fmt.Sprintf("%#x", uint32(s.QPN))}, {"remote", s.Remote.String()}}
	return func(yield func(Metric) bool) {
		for _, n := range qpMetrics {
			if !s.Metered && strings.HasSuffix(n.name, "_bytes") {
				continue
			}
			if !yield(Metric{Name: "qp_" + n.name, Help: cmp.Or(n.help, counterHelp[n.name]),
				Kind: n.kind, Labels: labels, Value: n.of(&s)}) {
				return
			}
		}
	}
}

// qpMetrics lists the numbers of QPStats. Without a help text, that of the Device applies.
var qpMetrics = []struct {
	name, help string
	kind       MetricKind
	of         func(*QPStats) float64
}{
	{"window_packets", "packets that may be in flight", MetricGauge,
		func(s *QPStats) float64 { return float64(s.Window) }},
	{"in_flight_packets", "packets sent and not acknowledged", MetricGauge,
		func(s *QPStats) float64 { return float64(s.InFlight) }},
	{"rtt_seconds", "smoothed round trip time; 0: not measured", MetricGauge,
		func(s *QPStats) float64 { return s.RTT.Seconds() }},
	{"rtt_var_seconds", "mean variation of the round trip time", MetricGauge,
		func(s *QPStats) float64 { return s.RTTVar.Seconds() }},
	{"min_rtt_seconds", "shortest round trip time of the last seconds; 0: not measured", MetricGauge,
		func(s *QPStats) float64 { return s.MinRTT.Seconds() }},
	{"delivery_rate", "rate at which packets arrive at the peer, bytes of payload per second",
		MetricGauge, func(s *QPStats) float64 { return s.DeliveryRate }},
	{"pacing_rate", "limit of what the QP sends, bytes of payload per second; 0: none", MetricGauge,
		func(s *QPStats) float64 { return s.PacingRate }},
	{"requested_psns", "PSNs of the QP's requests, retransmissions excluded", MetricCounter,
		func(s *QPStats) float64 { return float64(s.Requested) }},
	{"acked_psns", "PSNs that the peer has acknowledged", MetricCounter,
		func(s *QPStats) float64 { return float64(s.Acked) }},
	{"accepted_psns", "PSNs of the peer's requests that were accepted", MetricCounter,
		func(s *QPStats) float64 { return float64(s.Accepted) }},
	{"sent_bytes", "payload sent, bytes", MetricCounter,
		func(s *QPStats) float64 { return float64(s.SentBytes) }},
	{"rcvd_bytes", "payload received, bytes", MetricCounter,
		func(s *QPStats) float64 { return float64(s.RcvdBytes) }},
	{"retransmits", "packets sent again", MetricCounter,
		func(s *QPStats) float64 { return float64(s.Retransmits) }},
	{"spurious_retransmits", "", MetricCounter,
		func(s *QPStats) float64 { return float64(s.Spurious) }},
	{"rcvd_ecn_marked", "data packets received with the ECN mark congestion experienced",
		MetricCounter, func(s *QPStats) float64 { return float64(s.Marked) }},
	{"duplicate_request", "requests received again, also keepalives", MetricCounter,
		func(s *QPStats) float64 { return float64(s.Duplicates) }},
	{"out_of_seq_request", "", MetricCounter,
		func(s *QPStats) float64 { return float64(s.OutOfSeq) }},
	{"send_rnr_err", "", MetricCounter,
		func(s *QPStats) float64 { return float64(s.SentRNR) }},
	{"rcvd_rnr_err", "", MetricCounter,
		func(s *QPStats) float64 { return float64(s.RcvdRNR) }},
	{"send_seq_err", "", MetricCounter,
		func(s *QPStats) float64 { return float64(s.SentSeqNAK) }},
	{"rcvd_seq_err", "", MetricCounter,
		func(s *QPStats) float64 { return float64(s.RcvdSeqNAK) }},
	{"completer_retry_err", "", MetricCounter,
		func(s *QPStats) float64 { return float64(s.Timeouts) }},
	{"completion_errors", "", MetricCounter,
		func(s *QPStats) float64 { return float64(s.Errors) }},
	{"flushed", "", MetricCounter,
		func(s *QPStats) float64 { return float64(s.Flushed) }},
	{"sent_cnps", "", MetricCounter,
		func(s *QPStats) float64 { return float64(s.CNPsSent) }},
	{"rcvd_cnps", "congestion notification packets received and not ignored", MetricCounter,
		func(s *QPStats) float64 { return float64(s.CNPsRcvd) }},
}
