package perf

import (
	"fmt"
	"io"
	"strings"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/perf"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

const ruler = "---------------------------------------------------------------------------------------"

// The column titles of perftest.
const (
	latencyTitles = " #bytes        #iterations       t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]" +
		"    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]"
	bandwidthTitles = " #bytes        #iterations    BW peak[%s]    BW average[%s]   MsgRate[Mpps]\n"
)

// maxShownQPs is the number of queue pairs of each side whose addresses are printed.
const maxShownQPs = 4

// printer prints results as columns or as JSON.
type printer struct {
	w           io.Writer
	json, gbits bool
	headed      bool
	network     *session.Network // of the last row
}

// waiting says that a server is ready.
func (o *printer) waiting(op, protocol string, port int, dev *roce.Device) {
	if info := dev.Info(); !o.json {
		fmt.Fprintf(o.w, "\n* Waiting for a client of %s on %s port %d, %s (%s) *\n\n",
			op, protocol, port, info.Name, info.Datapath)
	}
}

// head prints the head of the columns once.
func (o *printer) head(p *perf.Params, s *session.Session, peer []exchange.QP) {
	if !o.json && !o.headed {
		o.printHead(p, s, peer)
	}
	o.headed = true
}

func (o *printer) row(r *perf.Row) error {
	if o.gbits {
		r.Gigabits()
	}
	if o.json {
		return cli.JSON(o.w, r)
	}
	o.network = r.Network
	printRow(o.w, r)
	return nil
}

func (o *printer) foot() {
	if o.json || !o.headed {
		return
	}
	fmt.Fprintln(o.w, ruler)
	if o.network != nil {
		printNetwork(o.w, o.network)
		fmt.Fprintln(o.w, ruler)
	}
}

// printNetwork prints how this side has used the network.
func printNetwork(w io.Writer, n *session.Network) {
	recovery := "go-back-N"
	if n.SelectiveRepeat {
		recovery = "selective repeat"
	}
	fmt.Fprintf(w, " Lost packets: %s, %d retransmitted, %d of them needlessly\n", recovery,
		n.Retransmits, n.Spurious)
	fmt.Fprintf(w, " Congestion: %v, %d ECN marks received, %d CNPs sent, %d received\n",
		n.Congestion, n.Marked, n.CNPsSent, n.CNPsRcvd)
	fmt.Fprintf(w, " RTT: %.2f usec, window: %s", n.RTT, cli.Count(int(n.Window), "packet"))
	if n.Rate > 0 {
		fmt.Fprintf(w, ", largest delivery rate: %.2f Gb/sec", n.Rate)
	}
	fmt.Fprintln(w)
}

// printHead prints what perftest prints before its columns.
func (o *printer) printHead(p *perf.Params, s *session.Session, peer []exchange.QP) {
	info, mtu := s.Dev.Info(), s.PathMTU()
	pair := func(l string, a any, r string, b any) {
		fmt.Fprintf(o.w, " %-16s: %-16v %-16s: %v\n", l, a, r, b)
	}
	fmt.Fprintln(o.w, ruler)
	fmt.Fprintf(o.w, "                    %s\n", title(p))
	pair("Device", info.Name, "Datapath", info.Datapath)
	pair("Number of qps", p.QPs, "Transport type", "RC, RoCE v2")
	if !p.Operation.Latency {
		pair("TX depth", p.Depth, "CQ Moderation", p.Batch(p.Bytes))
	}
	pair("Mtu", fmt.Sprintf("%d[B]", mtu), "GID", s.QP.Local().GID)
	if asked := p.ReducedMTU(mtu); asked != 0 {
		fmt.Fprintf(o.w, " Path MTU %d, not %d as -m requests: an interface or the peer's -m does not allow more\n",
			mtu, asked)
	}
	fmt.Fprintln(o.w, ruler)
	printQPs(o.w, "local", s.Local())
	printQPs(o.w, "remote", peer)
	fmt.Fprintln(o.w, ruler)
	o.printTitles(p.Operation.Latency)
}

func title(p *perf.Params) string {
	t := p.Operation.Title
	if p.Operation.Atomic {
		t = strings.Replace(t, "Atomic", "Atomic "+p.Atomic, 1)
	}
	if p.Bidirectional {
		t = strings.Replace(t, "BW", "Bidirectional BW", 1)
	}
	return t
}

func printQPs(w io.Writer, side string, qps []exchange.QP) {
	for i := range qps {
		if i == maxShownQPs {
			fmt.Fprintf(w, " %6s address: and %d more\n", side, len(qps)-i)
			return
		}
		e, b := &qps[i].Endpoint, &qps[i].Buffer
		fmt.Fprintf(w, " %6s address: QPN %#06x PSN %#06x RKey %#010x VAddr %#016x GID %v\n",
			side, uint32(e.QPN), uint32(e.PSN), uint32(b.RKey), b.Addr, e.GID)
	}
}

func (o *printer) printTitles(latency bool) {
	if latency {
		fmt.Fprintln(o.w, latencyTitles)
		return
	}
	unit := perf.UnitMB
	if o.gbits {
		unit = perf.UnitGb
	}
	fmt.Fprintf(o.w, bandwidthTitles, unit, unit)
}

// printRow prints a row below the titles.
func printRow(w io.Writer, r *perf.Row) {
	if c := r.LatencyColumns; c != nil {
		fmt.Fprintf(w, " %-13d %-15d %13.2f %14.2f %16.2f %14.2f %16.2f %22.2f %24.2f\n",
			r.Bytes, r.Iterations, c.Min, c.Max, c.Typical, c.Avg, c.StdDev, c.P99, c.P999)
		return
	}
	c := r.BandwidthColumns
	fmt.Fprintf(w, " %-13d %-14d %-18.2f %-21.2f %.6f\n", r.Bytes, r.Iterations, c.Peak, c.Average,
		c.MsgRate)
}
