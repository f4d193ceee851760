package perf

import (
	"fmt"
	"io"
	"strings"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

// latTimes is what the measuring end of a latency test tells the other.
type latTimes struct {
	Samples int64 `json:"samples"`
	latColumns
}

func newLatTimes(l *cli.Latency) *latTimes {
	return &latTimes{l.Count(), latColumns{
		Min: cli.Micros(l.Min()), Max: cli.Micros(l.Max()),
		Typical: cli.Micros(l.Percentile(50)),
		Avg:     cli.Round(cli.Micros(l.Mean()), 3), StdDev: cli.Round(cli.Micros(l.StdDev()), 3),
		P99: cli.Micros(l.Percentile(99)), P999: cli.Micros(l.Percentile(99.9)),
		Unit: "usec",
	}}
}

// Row is the result of one run: perftest's columns, and what they were measured on.
type Row struct {
	Op            string   `json:"op"`
	Datapath      string   `json:"datapath"`
	PathMTU       roce.MTU `json:"path_mtu"`
	AskedMTU      roce.MTU `json:"path_mtu_asked,omitempty"` // -m, where that was more than the path carries
	QPs           int      `json:"qps"`
	Bidirectional bool     `json:"bidirectional,omitempty"`

	Bytes      int   `json:"bytes"`
	Iterations int64 `json:"iterations"` // of all QPs together

	*bwColumns
	*latColumns
}

// bwColumns are a bandwidth test's columns: 2^20 bytes a second and 10^6 messages a second.
type bwColumns struct {
	Peak    float64 `json:"bw_peak"`
	Average float64 `json:"bw_average"`
	Unit    string  `json:"bw_unit"` // "MB/sec" or "Gb/sec"
	MsgRate float64 `json:"msg_rate"`
}

// latColumns are a latency test's columns.
type latColumns struct {
	Min     float64 `json:"t_min"`
	Max     float64 `json:"t_max"`
	Typical float64 `json:"t_typical"` // the median
	Avg     float64 `json:"t_avg"`
	StdDev  float64 `json:"t_stdev"`
	P99     float64 `json:"t_99"`
	P999    float64 `json:"t_99_9"`
	Unit    string  `json:"t_unit"`
}

// The units of bandwidth. perftest's MB are 2^20 bytes.
const (
	unitMB = "MB/sec"
	unitGb = "Gb/sec"
	mega   = 1 << 20
)

// newRow makes a row of what the ends have measured; with -b it is the sum.
func newRow(p *Params, r Run, s *session.Session, own, peer outcome) (*Row, error) {
	row := &Row{
		Op: p.Op, Datapath: s.Dev.Info().Datapath, PathMTU: s.PathMTU(),
		QPs: p.QPs, Bidirectional: p.Bidirectional, Bytes: r.Bytes, AskedMTU: p.tooLarge(s.PathMTU()),
	}
	if p.op.latency {
		t := own.Latency
		if t == nil {
			t = peer.Latency
		}
		if t == nil {
			return nil, errOutcome
		}
		row.Iterations = t.Samples
		row.latColumns = &t.latColumns
		return row, nil
	}
	c := &bwColumns{Unit: unitMB}
	for _, o := range []*result{own.Bandwidth, peer.Bandwidth} {
		if o == nil {
			continue
		}
		row.Iterations += o.Messages
		c.Peak += cli.Round(o.Peak/mega, 3)
		c.Average += cli.Round(o.rate(r.Bytes)/mega, 3)
		c.MsgRate += cli.Round(o.rate(1)/1e6, 6)
	}
	if own.Bandwidth == nil && peer.Bandwidth == nil {
		return nil, errOutcome
	}
	row.bwColumns = c
	return row, nil
}

// tooLarge is the path MTU that was asked for, if it is more than the one that there is, else 0.
func (p *Params) tooLarge(is roce.MTU) roce.MTU {
	if p.MTU > is {
		return p.MTU
	}
	return 0
}

// gigabits turns the row's bandwidth into 10^9 bits a second (--report_gbits).
func (r *Row) gigabits() {
	if c := r.bwColumns; c != nil && c.Unit == unitMB {
		c.Unit = unitGb
		c.Peak = cli.Round(c.Peak*mega*8/1e9, 3)
		c.Average = cli.Round(c.Average*mega*8/1e9, 3)
	}
}

const ruler = "---------------------------------------------------------------------------------------"

// printHead prints what perftest prints in front of its columns.
func printHead(w io.Writer, p *Params, s *session.Session, peer []exchange.QP, gbits bool) {
	info := s.Dev.Info()
	side := func(l string, a any, r string, b any) {
		fmt.Fprintf(w, " %-16s: %-16v %-16s: %v\n", l, a, r, b)
	}
	title := p.op.title
	if p.op.atomic {
		title = strings.Replace(title, "Atomic", "Atomic "+p.Atomic, 1)
	}
	if p.Bidirectional {
		title = strings.Replace(title, "BW", "Bidirectional BW", 1)
	}
	fmt.Fprintln(w, ruler)
	fmt.Fprintf(w, "                    %s\n", title)
	side("Device", info.Name, "Datapath", info.Datapath)
	side("Number of qps", p.QPs, "Transport type", "RC, RoCE v2")
	if p.op.latency {
		side("Mtu", fmt.Sprintf("%d[B]", s.PathMTU()), "GID", s.QPs[0].Local().GID)
	} else {
		side("TX depth", p.Depth, "CQ Moderation", p.batch(p.Bytes))
		side("Mtu", fmt.Sprintf("%d[B]", s.PathMTU()), "GID", s.QPs[0].Local().GID)
	}
	if asked := p.tooLarge(s.PathMTU()); asked != 0 {
		fmt.Fprintf(w, " Path MTU %d, not %d as -m asks: one of the two interfaces, or the peer's own -m, has no room for more\n", s.PathMTU(), asked)
	}
	fmt.Fprintln(w, ruler)
	printEnds(w, "local", s.Local())
	printEnds(w, "remote", peer)
	fmt.Fprintln(w, ruler)
	printTitles(w, p.op.latency, gbits)
}

// shownQPs bounds the addresses printed of each end.
const shownQPs = 4

func printEnds(w io.Writer, which string, qps []exchange.QP) {
	for i := range qps {
		if i == shownQPs {
			fmt.Fprintf(w, " %6s address: and %d more\n", which, len(qps)-i)
			return
		}
		e, b := &qps[i].Endpoint, &qps[i].Buffer
		fmt.Fprintf(w, " %6s address: QPN %#06x PSN %#06x RKey %#010x VAddr %#016x GID %v\n",
			which, uint32(e.QPN), uint32(e.PSN), uint32(b.RKey), b.Addr, e.GID)
	}
}

func printTitles(w io.Writer, latency, gbits bool) {
	if latency {
		fmt.Fprintln(w, " #bytes        #iterations       t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]")
		return
	}
	unit := unitMB
	if gbits {
		unit = unitGb
	}
	fmt.Fprintf(w, " #bytes        #iterations    BW peak[%s]    BW average[%s]   MsgRate[Mpps]\n", unit, unit)
}

// print writes the row under its titles.
func (r *Row) print(w io.Writer) {
	if c := r.latColumns; c != nil {
		fmt.Fprintf(w, " %-13d %-15d %13.2f %14.2f %16.2f %14.2f %16.2f %22.2f %24.2f\n",
			r.Bytes, r.Iterations, c.Min, c.Max, c.Typical, c.Avg, c.StdDev, c.P99, c.P999)
		return
	}
	c := r.bwColumns
	fmt.Fprintf(w, " %-13d %-14d %-18.2f %-21.2f %.6f\n", r.Bytes, r.Iterations, c.Peak, c.Average, c.MsgRate)
}
