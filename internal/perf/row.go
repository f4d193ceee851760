package perf

import (
	"fmt"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

// The units of bandwidth. A MB of perftest is 2^20 bytes.
const (
	UnitMB = "MB/sec"
	UnitGb = "Gb/sec"
	MB     = 1 << 20
	// Gb is the number of bytes in 10^9 bits.
	Gb = 1e9 / 8
)

// errOutcome means that the peer's outcome lacks a result.
var errOutcome = fmt.Errorf("%w: its result is missing", exchange.ErrProtocol)

// LatencyResult is what one side measured in one run of a latency test.
type LatencyResult struct {
	Samples int64 `json:"samples"`
	LatencyColumns
}

// NewLatencyResult returns the result for the recorded times.
func NewLatencyResult(l *cli.Latency) *LatencyResult {
	return &LatencyResult{l.Count(), LatencyColumns{
		Min: cli.Micros(l.Min()), Max: cli.Micros(l.Max()),
		Typical: cli.Micros(l.Percentile(50)),
		Avg:     cli.Round(cli.Micros(l.Mean()), 3), StdDev: cli.Round(cli.Micros(l.StdDev()), 3),
		P99: cli.Micros(l.Percentile(99)), P999: cli.Micros(l.Percentile(99.9)),
		Unit: "usec",
	}}
}

// Row is the result of one run: perftest's columns and the conditions of the run.
type Row struct {
	Op            string   `json:"op"`
	Datapath      string   `json:"datapath"`
	PathMTU       roce.MTU `json:"path_mtu"`
	AskedMTU      roce.MTU `json:"path_mtu_asked,omitempty"` // -m, if the path MTU is smaller
	QPs           int      `json:"qps"`
	Bidirectional bool     `json:"bidirectional,omitempty"`

	Bytes      int   `json:"bytes"`
	Iterations int64 `json:"iterations"` // of all queue pairs

	*BandwidthColumns
	*LatencyColumns

	Network *session.Network `json:"network,omitempty"` // of this side
}

// BandwidthColumns are the columns of a bandwidth test.
type BandwidthColumns struct {
	Peak    float64 `json:"bw_peak"`
	Average float64 `json:"bw_average"`
	Unit    string  `json:"bw_unit"`  // UnitMB or UnitGb
	MsgRate float64 `json:"msg_rate"` // 10^6 messages per second
}

// LatencyColumns are the columns of a latency test.
type LatencyColumns struct {
	Min     float64 `json:"t_min"`
	Max     float64 `json:"t_max"`
	Typical float64 `json:"t_typical"` // median
	Avg     float64 `json:"t_avg"`
	StdDev  float64 `json:"t_stdev"`
	P99     float64 `json:"t_99"`
	P999    float64 `json:"t_99_9"`
	Unit    string  `json:"t_unit"`
}

// NewRow returns the row of a run that the two sides have measured. The bandwidth is their sum.
func NewRow(p *Params, r Run, s *session.Session, own, peer Outcome) (*Row, error) {
	row := &Row{
		Op: p.Op, Datapath: s.Dev.Info().Datapath, PathMTU: s.PathMTU(),
		AskedMTU: p.ReducedMTU(s.PathMTU()),
		QPs:      p.QPs, Bidirectional: p.Bidirectional, Bytes: r.Bytes, Network: s.Network(),
	}
	if p.Operation.Latency {
		t := own.Latency
		if t == nil {
			t = peer.Latency
		}
		if t == nil {
			return nil, errOutcome
		}
		row.Iterations, row.LatencyColumns = t.Samples, &t.LatencyColumns
		return row, nil
	}
	if own.Bandwidth == nil && peer.Bandwidth == nil {
		return nil, errOutcome
	}
	row.Iterations, row.BandwidthColumns = sum(r.Bytes, own.Bandwidth, peer.Bandwidth)
	return row, nil
}

// sum returns the number of messages and the bandwidth of both sides together. A result may be nil.
func sum(bytes int, results ...*BandwidthResult) (messages int64, c *BandwidthColumns) {
	c = &BandwidthColumns{Unit: UnitMB}
	for _, o := range results {
		if o == nil {
			continue
		}
		messages += o.Messages
		c.Peak += o.Peak / MB
		c.Average += o.Rate(bytes) / MB
		c.MsgRate += o.Rate(1) / 1e6
	}
	c.Peak, c.Average = cli.Round(c.Peak, 3), cli.Round(c.Average, 3)
	c.MsgRate = cli.Round(c.MsgRate, 6)
	return messages, c
}

// Gigabits converts the bandwidth from UnitMB to UnitGb.
func (r *Row) Gigabits() {
	if c := r.BandwidthColumns; c != nil && c.Unit == UnitMB {
		c.Unit = UnitGb
		c.Peak = cli.Round(c.Peak*MB/Gb, 3)
		c.Average = cli.Round(c.Average*MB/Gb, 3)
	}
}
