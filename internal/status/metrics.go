package status

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce"
)

// namespace begins the names of all metrics.
const namespace = "gorxe_"

// maxMetricQPs is the largest number of queue pairs with metrics of their own.
const maxMetricQPs = 1000

// maxMetricRTTs is the largest number of queue pairs with a histogram of their own, which is as
// large as their other metrics.
const maxMetricRTTs = 200

// counterMetrics are the counters of a device as metrics, with the keys of Program.Counters.
var counterMetrics = func() (list []counterMetric) {
	for m := range (roce.Counters{}).Metrics() {
		list = append(list, counterMetric{counterName(&m), m})
	}
	return list
}()

type counterMetric struct {
	counter string
	roce.Metric
}

// counterName returns the name of a metric's counter in Counters.All. Metrics have labels for a
// part of the name.
func counterName(m *roce.Metric) string {
	if len(m.Labels) == 0 {
		return m.Name
	}
	l := m.Labels[0]
	if l.Name == "class" {
		return "class" + l.Value + m.Name[len("class"):]
	}
	return m.Name + "_" + l.Value
}

// programLabels distinguish the programs of a device.
var programLabels = []string{"device", "slot", "program"}

// The metrics besides those of roce.Counters and roce.QPStats.
var (
	deviceInfo = desc("device_info", "describes the device; always 1",
		"device", "datapath", "mac", "socket", "version")
	deviceUp   = desc("device_up", "whether the link is up, 0 or 1", "device")
	deviceMTU  = desc("device_mtu_bytes", "MTU of the interface, bytes of IP packets", "device")
	programs   = desc("programs", "programs that use the device", "device")
	pathMTU    = desc("device_path_mtu_bytes", "the largest path MTU, bytes of payload", "device")
	silent     = desc("program_silent", "whether the program did not report, 0 or 1", programLabels...)
	started    = desc("program_joined_seconds", "when the program joined, Unix time", programLabels...)
	memory     = desc("program_memory_bytes", "memory of the verbs objects, bytes", programLabels...)
	objects    = desc("program_objects", "number of verbs objects", append(programLabels, "type")...)
	roundTrips = desc("rtt_seconds", "round trips of RC queue pairs, without retransmitted packets",
		programLabels...)
	qpRoundTrips = desc("qp_round_trip_seconds",
		"round trips of a queue pair, without retransmitted packets",
		append(programLabels, "qpn", "remote")...)
	omittedQPs = desc("qps_omitted", "queue pairs without metrics of their own", "device")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(namespace+name, help, labels, nil)
}

// exporter implements prometheus.Collector.
type exporter struct{ k *Collector }

// Describe implements prometheus.Collector. It sends nothing: programs and queue pairs, and thereby
// the metrics, come and go.
func (exporter) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (e exporter) Collect(ch chan<- prometheus.Metric) {
	s := e.k.Snapshot()
	d := &s.Device
	put := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	put(deviceInfo, 1, d.Name, d.Datapath, d.MAC, s.Socket, s.Version)
	put(deviceUp, number(d.Up), d.Name)
	put(deviceMTU, float64(d.MTU), d.Name)
	put(pathMTU, float64(d.ActiveMTU), d.Name)
	put(programs, float64(len(s.Programs)), d.Name)
	free, histograms, omitted := maxMetricQPs, maxMetricRTTs, 0
	for i := range s.Programs {
		p := &s.Programs[i]
		labels := []string{d.Name, strconv.Itoa(int(p.Slot)), p.Name}
		put(silent, number(p.Error != ""), labels...)
		put(started, float64(p.Joined.UnixMilli())/1e3, labels...)
		if p.Error != "" {
			continue
		}
		o := &p.Objects
		put(memory, float64(o.Memory), labels...)
		for _, n := range []struct {
			name  string
			count int
		}{{"pd", o.PDs}, {"cq", o.CQs}, {"qp", o.QPs}, {"srq", o.SRQs}, {"mr", o.MRs}} {
			put(objects, float64(n.count), append(labels, n.name)...)
		}
		ch <- p.RTTs.metric(roundTrips, labels)
		for _, c := range counterMetrics {
			v := p.Counters[c.counter]
			if v != 0 || p.Slot == 0 { // there are many counters and programs
				c.Value = float64(v)
				ch <- convert(&c.Metric, labels)
			}
		}
		n := min(len(p.QPs), free)
		for _, q := range p.QPs[:n] {
			var own []roce.Label
			for m := range q.QPStats.Metrics() {
				ch <- convert(&m, labels)
				own = m.Labels
			}
			if q.RTTs != nil && histograms > 0 {
				histograms--
				ch <- q.RTTs.metric(qpRoundTrips, append(labels, own[0].Value, own[1].Value))
			}
		}
		free -= n
		omitted += len(p.QPs) - n + p.Omitted
	}
	put(omittedQPs, float64(omitted), d.Name)
}

// convert returns a metric of package roce with the labels of a program.
func convert(m *roce.Metric, program []string) prometheus.Metric {
	name, kind := m.Name, prometheus.GaugeValue
	if m.Kind == roce.MetricCounter {
		name, kind = name+"_total", prometheus.CounterValue
	}
	keys := append([]string(nil), programLabels...)
	values := append([]string(nil), program...)
	for _, l := range m.Labels {
		keys, values = append(keys, l.Name), append(values, l.Value)
	}
	return prometheus.MustNewConstMetric(desc(name, m.Help, keys...), kind, m.Value, values...)
}

// metric returns the histogram as a metric of Prometheus, whose buckets are cumulative.
func (h *Histogram) metric(d *prometheus.Desc, labels []string) prometheus.Metric {
	buckets, n := map[float64]uint64{}, uint64(0)
	for i := range qp.NumRTTBuckets - 1 {
		n += h.Counts[i]
		buckets[float64(qp.RTTBound(i))/1e9] = n
	}
	return prometheus.MustNewConstHistogram(d, h.total(), float64(h.Sum)/1e9, buckets, labels...)
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
