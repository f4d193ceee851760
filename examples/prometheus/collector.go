package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gorxe/gorxe/roce"
)

// collector exports the counters of a device, and the numbers of its connected RC QPs, as
// gorxe_NAME with the label device. Counters get the suffix _total.
type collector struct{ dev *roce.Device }

// Describe implements prometheus.Collector. It sends nothing: the QPs, and thereby the metrics,
// come and go.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	name := c.dev.Info().Name
	for m := range c.dev.Counters().Metrics() {
		ch <- convert(name, m)
	}
	for _, s := range c.dev.QPStats() {
		for m := range s.Metrics() {
			ch <- convert(name, m)
		}
	}
}

func convert(device string, m roce.Metric) prometheus.Metric {
	name, kind := "gorxe_"+m.Name, prometheus.GaugeValue
	if m.Kind == roce.MetricCounter {
		name, kind = name+"_total", prometheus.CounterValue
	}
	keys, values := []string{"device"}, []string{device}
	for _, l := range m.Labels {
		keys, values = append(keys, l.Name), append(values, l.Value)
	}
	desc := prometheus.NewDesc(name, m.Help, keys, nil)
	return prometheus.MustNewConstMetric(desc, kind, m.Value, values...)
}
