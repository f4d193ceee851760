package demo

import (
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/roce"
)

// Report is the result of a demo.
type Report struct {
	Datapath string   `json:"datapath"` // "afxdp-native", "afxdp-generic", "udp" or "memory"
	PathMTU  roce.MTU `json:"path_mtu"`
	Loss     float64  `json:"loss"`     // fraction of the packets that was dropped on purpose
	Verified bool     `json:"verified"` // every byte and every atomic was checked and correct
	Ops      []Op     `json:"ops"`

	Lost int64 `json:"-"` // UC and UD messages that were lost
}

// Op is the result of one operation with one message size.
type Op struct {
	Op          string  `json:"op"`
	Bytes       int     `json:"bytes"` // size of a message
	Count       int64   `json:"count"` // messages that arrived and were checked
	Gbps        float64 `json:"gbps"`  // payload, 10^9 bits per second
	P50         float64 `json:"p50_us"`
	P99         float64 `json:"p99_us"`
	Retransmits uint64  `json:"retransmits"` // packets
}

// newOp returns the result for batched messages of one size that took a time.
func newOp(name string, size int, batched int64, took time.Duration, lat *cli.Latency) Op {
	return Op{
		Op: name, Bytes: size, Gbps: cli.Round(cli.Gbps(batched*int64(size), took), 3),
		P50: cli.Micros(lat.Percentile(50)), P99: cli.Micros(lat.Percentile(99)),
	}
}
