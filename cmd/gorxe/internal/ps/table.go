package ps

import (
	"fmt"
	"io"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/status"
)

// unknown is the text for a value that is not known.
const unknown = "-"

// write writes what gorxe ps prints about a service.
func write(w io.Writer, s *status.Snapshot) error {
	fmt.Fprintln(w, summary(s))
	programs := cli.Table{Columns: []cli.Column{{Title: "SLOT", Align: cli.Right},
		{Title: "PID", Align: cli.Right}, {Title: "USER"}, {Title: "PROGRAM"},
		{Title: "AGE", Align: cli.Right}, {Title: "QPS", Align: cli.Right},
		{Title: "MRS", Align: cli.Right}, {Title: "MEMORY", Align: cli.Right},
		{Title: "SENT", Align: cli.Right}, {Title: "RECEIVED", Align: cli.Right},
		{Title: "RETR", Align: cli.Right}, {Title: "RTT-P50", Align: cli.Right},
		{Title: "RTT-P99", Align: cli.Right}}}
	for i := range s.Programs {
		p := &s.Programs[i]
		row := []any{p.Slot, p.PID, userName(p.UID), p.Name, age(s.Time.Sub(p.Joined))}
		if p.Error != "" {
			programs.Row(append(row, unknown, unknown, p.Error)...)
			continue
		}
		programs.Row(append(row, p.Objects.QPs, p.Objects.MRs, size(float64(p.Objects.Memory)),
			size(float64(p.Counters["sent_bytes"])), size(float64(p.Counters["rcvd_bytes"])),
			p.Counters["retransmits"], duration(p.RTTs.P50), duration(p.RTTs.P99))...)
	}
	if err := programs.Write(w); err != nil {
		return err
	}
	qps := cli.Table{Columns: []cli.Column{{Title: "QP", Align: cli.Right}, {Title: "PROGRAM"},
		{Title: "TYPE"}, {Title: "STATE"}, {Title: "PEER"}, {Title: "PEER-QP", Align: cli.Right},
		{Title: "CLASS", Align: cli.Right}, {Title: "SENT", Align: cli.Right},
		{Title: "RECEIVED", Align: cli.Right}, {Title: "REQUESTS", Align: cli.Right},
		{Title: "PEER-REQUESTS", Align: cli.Right}, {Title: "RETR", Align: cli.Right},
		{Title: "RTT", Align: cli.Right}, {Title: "P50", Align: cli.Right},
		{Title: "P99", Align: cli.Right}, {Title: "WINDOW", Align: cli.Right}}}
	n, omitted := 0, 0
	for i := range s.Programs {
		p := &s.Programs[i]
		for j := range p.QPs {
			q := &p.QPs[j]
			sent, rcvd := unknown, unknown
			if q.Metered {
				sent, rcvd = size(float64(q.SentBytes)), size(float64(q.RcvdBytes))
			}
			p50, p99 := trips(q)
			qps.Row(number(uint32(q.QPN)), p.Name, q.Type, q.State, peer(q), number(uint32(q.RemoteQPN)),
				q.Class, sent, rcvd, q.Requested, q.Accepted, q.Retransmits, duration(int64(q.RTT)), p50,
				p99, q.Window)
			n++
		}
		omitted += p.Omitted
	}
	if n > 0 {
		fmt.Fprintln(w)
		if err := qps.Write(w); err != nil {
			return err
		}
	}
	if omitted > 0 {
		fmt.Fprintf(w, "%s more not listed\n", cli.Count(omitted, "queue pair"))
	}
	return nil
}

// summary describes the device of a service in one line.
func summary(s *status.Snapshot) string {
	d := &s.Device
	link := "up"
	if !d.Up {
		link = "down"
	}
	var addrs []string
	for _, a := range d.Addresses {
		addrs = append(addrs, a.Addr.String())
	}
	return fmt.Sprintf("%s: %s, link %s, MTU %d, path MTU %d, %s; %s at %s", d.Name, d.Datapath, link,
		d.MTU, d.ActiveMTU, strings.Join(addrs, " "), cli.Count(len(s.Programs), "program"), s.Socket)
}

// trips returns the median and the 99th percentile of the round trips of a queue pair.
func trips(q *status.QP) (p50, p99 string) {
	if q.RTTs == nil {
		return unknown, unknown
	}
	return duration(q.RTTs.P50), duration(q.RTTs.P99)
}

// peer returns the address of the peer of a queue pair.
func peer(q *status.QP) string {
	a := q.Remote.Addr()
	if !a.IsValid() || a.IsUnspecified() {
		return unknown
	}
	return a.String()
}

// number formats the number of a queue pair; 0 is none.
func number(n uint32) string {
	if n == 0 {
		return unknown
	}
	return fmt.Sprintf("0x%06x", n)
}

func userName(uid int) string {
	id := strconv.Itoa(uid)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return id
}

func age(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
}

// scaled formats a value with the largest unit in which it is at least 1, with 3 digits.
func scaled(v, step float64, units ...string) string {
	i := 0
	for v >= step && i < len(units)-1 {
		v /= step
		i++
	}
	digits := 0
	if i > 0 && v < 100 {
		digits = 1
	}
	return strconv.FormatFloat(v, 'f', digits, 64) + units[i]
}

func size(v float64) string  { return scaled(v, 1024, "B", "K", "M", "G", "T") }
func bits(v float64) string  { return scaled(v*8, 1000, "b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s") }
func count(v float64) string { return scaled(v, 1000, "", "k", "M", "G", "T") }

// duration formats nanoseconds; 0 is not known.
func duration(ns int64) string {
	if ns == 0 {
		return unknown
	}
	return scaled(float64(ns), 1000, "ns", "us", "ms", "s")
}
