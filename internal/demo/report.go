package demo

import (
	"fmt"
	"io"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/roce"
)

// Report is what --json prints.
type Report struct {
	Datapath string   `json:"datapath"` // "afxdp-native", "afxdp-generic" or "memory"
	PathMTU  roce.MTU `json:"path_mtu"`
	Loss     float64  `json:"loss"`     // fraction of the packets that was dropped on purpose
	Verified bool     `json:"verified"` // every byte and every atomic was checked and right
	Ops      []Op     `json:"ops"`

	lost int64 // UC and UD messages
}

// Op is one operation with one size.
type Op struct {
	Op          string  `json:"op"`
	Bytes       int     `json:"bytes"` // of a message
	Count       int64   `json:"count"` // messages that arrived and were checked
	Gbps        float64 `json:"gbps"`  // 10^9 bits of payload a second
	P50         float64 `json:"p50_us"`
	P99         float64 `json:"p99_us"`
	Retransmits uint64  `json:"retransmits"` // packets
}

// print writes the report for people.
func (r *Report) print(w io.Writer, s *settings) error {
	t := cli.Table{Columns: []cli.Column{
		{Title: "operation"}, {Title: "size", Align: cli.Right}, {Title: "count", Align: cli.Right}, {Title: "Gb/s", Align: cli.Right},
		{Title: "p50 us", Align: cli.Right}, {Title: "p99 us", Align: cli.Right}, {Title: "retransmissions", Align: cli.Right},
	}}
	for i := range r.Ops {
		o := &r.Ops[i]
		t.Row(o.Op, cli.FormatSize(int64(o.Bytes)), o.Count, fmt.Sprintf("%.3f", o.Gbps),
			fmt.Sprintf("%.1f", o.P50), fmt.Sprintf("%.1f", o.P99), o.Retransmits)
	}
	if err := t.Write(w); err != nil {
		return err
	}
	where := "two devices on a veth pair"
	if r.Datapath == "memory" {
		where = "two devices in memory"
	}
	fmt.Fprintf(w, "\nData path: %s, %s, path MTU %d", r.Datapath, where, r.PathMTU)
	if s.loss > 0 {
		fmt.Fprintf(w, ", %s of the packets dropped on the way (seed %d)", cli.FormatPercent(s.loss), s.seed)
	}
	fmt.Fprintln(w)
	if r.lost > 0 {
		fmt.Fprintf(w, "UC and UD lost %d messages for good, as they may: those that arrived are counted.\n", r.lost)
	}
	if r.Verified {
		fmt.Fprintln(w, "Verified: every byte and every atomic was checked, and all are right.")
	}
	return nil
}
