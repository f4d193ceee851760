package ps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/status"
)

// Limits of --interval. A service makes at most two snapshots per second.
const (
	minInterval     = time.Second
	maxInterval     = time.Hour
	defaultInterval = 2 * time.Second
)

// TopCommand returns the command "gorxe top".
func TopCommand() *cobra.Command {
	var t top
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the traffic of the programs of node services, live",
		Long: `Show the traffic of the programs that use the devices of node services (gorxe up), and
of their queue pairs, as averages of the last interval: payload and packets per second,
retransmitted packets, round trip time (RTT), window and packets in flight.

In a terminal it shows a new picture each interval. Keys: s changes the order of the
queue pairs (rate, retransmissions, RTT, number), q ends it. If stdout is not a terminal,
it prints one picture after the first interval and ends, as with --once.`,
		Example: `  gorxe top
  gorxe top --once --interval 10s`,
		Args: cli.Named(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return t.run(cmd.Context(), cmd.OutOrStdout(), os.Stdin)
		},
	}
	fs := cmd.Flags()
	t.services.register(fs)
	t.interval = cli.Duration{D: defaultInterval, Min: minInterval, Max: maxInterval}
	fs.VarP(&t.interval, "interval", "i", "time between pictures")
	fs.BoolVar(&t.once, "once", false, "print one picture and end")
	return cmd
}

type top struct {
	services services
	interval cli.Duration
	once     bool
	order    int // index into orders
}

// orders are the orders of the queue pairs.
var orders = []struct {
	name    string
	compare func(a, b *row) int
}{
	{"rate", func(a, b *row) int { return cmp.Compare(b.rate(), a.rate()) }},
	{"retransmissions", func(a, b *row) int { return cmp.Compare(b.Retransmits, a.Retransmits) }},
	{"RTT", func(a, b *row) int { return cmp.Compare(b.RTT, a.RTT) }},
	{"number", func(a, b *row) int { return cmp.Compare(a.QPN, b.QPN) }},
}

// row is a queue pair and its program.
type row struct {
	*status.QP
	program string
}

// rate returns the packets per second of both directions.
func (r *row) rate() float64 {
	if r.Rates == nil {
		return 0
	}
	return r.Rates.Requested + r.Rates.Accepted
}

// run shows pictures until ctx ends or the user ends it.
func (t *top) run(ctx context.Context, out io.Writer, in *os.File) error {
	list, err := t.services.read(ctx) // the rates of the first picture count from here
	if len(list) == 0 && err != nil {
		return err
	}
	f, ok := out.(*os.File)
	if ok && !t.once && term.IsTerminal(int(f.Fd())) && term.IsTerminal(int(in.Fd())) {
		return t.live(ctx, reading{list, err}, f, in)
	}
	if len(list) == 0 {
		_, err := fmt.Fprintln(out, none)
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(t.interval.D):
	}
	list, err = t.services.read(ctx)
	if len(list) == 0 && err != nil {
		return err
	}
	_, e := io.WriteString(out, t.picture(list))
	return errors.Join(err, e)
}

// reading is what the services have answered.
type reading struct {
	list []*status.Snapshot
	err  error // of some of the services
}

// live shows pictures in a terminal, r first.
func (t *top) live(ctx context.Context, r reading, out, in *os.File) error {
	s, err := openScreen(out, in)
	if err != nil {
		return err
	}
	defer s.close()
	tick := time.NewTicker(t.interval.D)
	defer tick.Stop()
	answers, busy := make(chan reading, 1), false
	for {
		s.show(t.picture(r.list) + notice(r.err))
		select {
		case <-ctx.Done():
			return nil
		case key := <-s.keys:
			switch key {
			case 's':
				t.order = (t.order + 1) % len(orders)
			case 'q', keyInterrupt, 0:
				return nil
			}
		case r = <-answers:
			busy = false
		case <-tick.C:
			if busy {
				continue
			}
			busy = true
			go func() { // a service that does not answer must not delay keys
				list, err := t.services.read(ctx)
				answers <- reading{list, err}
			}()
		}
	}
}

// notice returns the text about services that have failed.
func notice(err error) string {
	if err == nil {
		return ""
	}
	return "\n" + strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return '?' // it could control the terminal
	}, err.Error()) + "\n"
}

// picture returns the text about all services.
func (t *top) picture(list []*status.Snapshot) string {
	if len(list) == 0 {
		return none + "\n"
	}
	var b strings.Builder
	for i, s := range list {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintln(&b, summary(s))
		t.programs(s, &b)
		t.qps(s, &b)
	}
	return b.String()
}

func (t *top) programs(s *status.Snapshot, w io.Writer) {
	table := cli.Table{Columns: []cli.Column{{Title: "SLOT", Align: cli.Right},
		{Title: "PID", Align: cli.Right}, {Title: "PROGRAM"}, {Title: "QPS", Align: cli.Right},
		{Title: "SENT", Align: cli.Right}, {Title: "RECEIVED", Align: cli.Right},
		{Title: "SENT-PKT/S", Align: cli.Right}, {Title: "RCVD-PKT/S", Align: cli.Right},
		{Title: "COMPL/S", Align: cli.Right}, {Title: "RETR/S", Align: cli.Right},
		{Title: "RTT-P50", Align: cli.Right}, {Title: "RTT-P99", Align: cli.Right}}}
	for i := range s.Programs {
		p := &s.Programs[i]
		cells := []any{p.Slot, p.PID, p.Name, p.Objects.QPs}
		switch r := p.Rates; {
		case p.Error != "":
			cells = append(cells, p.Error)
		case r == nil:
			cells = append(cells, unknown, unknown, unknown, unknown, unknown, unknown,
				duration(p.RTTs.P50), duration(p.RTTs.P99))
		default:
			cells = append(cells, bits(r.SentBytes), bits(r.RcvdBytes), count(r.SentPkts),
				count(r.RcvdPkts), count(r.Completions), count(r.Retransmits), duration(p.RTTs.P50),
				duration(p.RTTs.P99))
		}
		table.Row(cells...)
	}
	_ = table.Write(w) // to memory
}

func (t *top) qps(s *status.Snapshot, w io.Writer) {
	var rows []*row
	for i := range s.Programs {
		p := &s.Programs[i]
		for j := range p.QPs {
			rows = append(rows, &row{&p.QPs[j], p.Name})
		}
	}
	if len(rows) == 0 {
		return
	}
	slices.SortStableFunc(rows, orders[t.order].compare)
	fmt.Fprintf(w, "\nQueue pairs by %s\n", orders[t.order].name)
	table := cli.Table{Columns: []cli.Column{{Title: "QP", Align: cli.Right}, {Title: "PROGRAM"},
		{Title: "STATE"}, {Title: "PEER"}, {Title: "SENT", Align: cli.Right},
		{Title: "RECEIVED", Align: cli.Right}, {Title: "REQ/S", Align: cli.Right},
		{Title: "PEER-REQ/S", Align: cli.Right}, {Title: "RETR/S", Align: cli.Right},
		{Title: "RETR", Align: cli.Right}, {Title: "RTT", Align: cli.Right},
		{Title: "P50", Align: cli.Right}, {Title: "P99", Align: cli.Right},
		{Title: "WINDOW", Align: cli.Right}, {Title: "IN-FLIGHT", Align: cli.Right},
		{Title: "PATH-RATE", Align: cli.Right}}}
	for _, q := range rows {
		rates := [5]string{unknown, unknown, unknown, unknown, unknown}
		if r := q.Rates; r != nil {
			rates = [5]string{unknown, unknown, count(r.Requested), count(r.Accepted),
				count(r.Retransmits)}
			if q.Metered {
				rates[0], rates[1] = bits(r.SentBytes), bits(r.RcvdBytes)
			}
		}
		p50, p99 := trips(q.QP)
		path := unknown
		if q.DeliveryRate > 0 {
			path = bits(q.DeliveryRate)
		}
		table.Row(number(uint32(q.QPN)), q.program, q.State, peer(q.QP), rates[0], rates[1], rates[2],
			rates[3], rates[4], q.Retransmits, duration(int64(q.RTT)), p50, p99, q.Window, q.InFlight,
			path)
	}
	_ = table.Write(w)
}
