package roce

import (
	"slices"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/roce/cm"
)

// Metrics has the numbers of All, each with a description, and equal names follow each other with
// the same labels.
func TestMetrics(t *testing.T) {
	var c Counters
	for _, n := range counterNames {
		*n.of(&c) = 1
	}
	c.Classes[3].SentPkts, c.CM.Received[1], c.Drops[frame.NumReasons-1] = 1, 1, 1
	all, sum := 0, 0.0
	for range c.All() {
		all++
	}
	var names []string
	labels := map[string]string{}
	used := map[string]bool{}
	for m := range c.Metrics() {
		all--
		sum += m.Value
		used[m.Name] = true
		if m.Help == "" || strings.HasSuffix(m.Help, ".") {
			t.Errorf("%s: help %q", m.Name, m.Help)
		}
		if (m.Kind == MetricGauge) != (m.Name == "parked_bytes") {
			t.Errorf("%s is a %v", m.Name, m.Kind)
		}
		var keys, values string
		for _, l := range m.Labels {
			keys += l.Name
			values += l.Value
		}
		if last := len(names) - 1; last >= 0 && names[last] == m.Name {
			if labels[m.Name] != keys || values == "" {
				t.Errorf("%s has labels %q and %q", m.Name, labels[m.Name], keys)
			}
			continue
		}
		if slices.Contains(names, m.Name) {
			t.Errorf("the metrics of %s do not follow each other", m.Name)
		}
		names, labels[m.Name] = append(names, m.Name), keys
	}
	if all != 0 || sum != float64(len(counterNames)+3) {
		t.Errorf("%d metrics are missing, and their sum is %v, want %d", all, sum,
			len(counterNames)+3)
	}
	for _, n := range []string{"class_sent_pkts", "cm_received", "drop_frame", "cm_timeouts"} {
		if !used[n] {
			t.Errorf("there is no metric %s", n)
		}
	}
	for n := range counterHelp {
		if !used[n] {
			t.Errorf("the help of %s belongs to no metric", n)
		}
	}
	if cmMessage("nothing") || !cmMessage(strings.ToLower(cm.AttrREQ.String())) {
		t.Error("cmMessage() is wrong")
	}
	for range c.Metrics() { // stops early
		break
	}
}

// The metrics of a QP name it and its peer.
func TestQPMetrics(t *testing.T) {
	a, b := newRig(t, rigConfig{})
	must(t, a.qp.PostSend(SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{a.mr.SGE(0, 8)},
		RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
	pollOK(t, 0, WCWrite, a.cq, b.cq)
	s, err := a.qp.Stats()
	must(t, err)
	seen := map[string]float64{}
	for m := range s.Metrics() {
		if m.Help == "" || !strings.HasPrefix(m.Name, "qp_") || len(m.Labels) != 2 ||
			m.Labels[1].Value != b.qp.Local().GID.String() {
			t.Errorf("metric %+v", m)
		}
		if _, twice := seen[m.Name]; twice {
			t.Errorf("two metrics are named %s", m.Name)
		}
		seen[m.Name] = m.Value
	}
	if seen["qp_sent_bytes"] < 8 {
		t.Errorf("%v bytes were sent, want at least 8", seen["qp_sent_bytes"])
	}
	s.Metered = false
	for m := range s.Metrics() {
		if m.Name == "qp_sent_bytes" || m.Name == "qp_rcvd_bytes" {
			t.Errorf("a QP that is not metered has the metric %s", m.Name)
		}
	}
	if seen["qp_window_packets"] != float64(s.Window) || s.Window == 0 {
		t.Errorf("window %v, want %d", seen["qp_window_packets"], s.Window)
	}
}
