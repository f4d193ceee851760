package scale

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/papers/kit/paper"
	"github.com/gorxe/gorxe/qp"
)

type flags struct {
	link     cli.Choice
	qps, mrs counts
	windows  counts
	orders   []string
	burst    cli.Int
	rounds   cli.Int
	duration cli.Duration
	cpus     []int
	json     bool
	plot     string
}

// counts is a flag that takes numbers from lo to hi, or none.
type counts struct {
	list   []int
	lo, hi int
	set    bool
}

func (c *counts) Set(text string) error {
	if !c.set {
		c.list, c.set = nil, true // the default gives way
	}
	if text == "none" {
		c.list = nil
		return nil
	}
	for _, word := range strings.Split(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil || n < c.lo || n > c.hi {
			return fmt.Errorf("%q is not a number from %d to %d; give such numbers, as in %d,%d, or none", word, c.lo, c.hi, c.lo, c.hi)
		}
		if !slices.Contains(c.list, n) {
			c.list = append(c.list, n)
		}
	}
	return nil
}

func (c *counts) String() string {
	if len(c.list) == 0 {
		return "none"
	}
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(c.list), " ", ","), "[]")
}

func (c *counts) Type() string { return "numbers" }

// Defaults and bounds of the flags.
const (
	defaultRounds   = 15
	maxRounds       = 1000
	defaultDuration = 100 * time.Millisecond
	minDuration     = 10 * time.Millisecond
	maxDuration     = time.Minute
)

// Command is "gorxe bench scale".
func Command() *cobra.Command {
	some := []int{1, 64, 1024, 16384, 65536}
	f := &flags{
		qps:      counts{list: some, lo: 1, hi: maxCount},
		mrs:      counts{list: some, lo: 1, hi: maxCount},
		windows:  counts{list: []int{0, qp.DefaultPrefetch}, hi: maxWindow},
		link:     cli.Choice{Value: linkMemory, Words: []string{linkMemory, linkVeth}},
		burst:    cli.Int{N: 1, Min: 1, Max: sendDepth},
		rounds:   cli.Int{N: defaultRounds, Min: 1, Max: maxRounds},
		duration: cli.Duration{D: defaultDuration, Min: minDuration, Max: maxDuration},
	}
	cmd := &cobra.Command{
		Use:   "scale",
		Short: "Measure how the message rate holds with thousands of QPs and memory regions",
		Long: `Measure the rate of 64 B WRITEs over 1 to 65,536 QPs and memory regions, each message to another one than the message before,
with the engine's prefetching off and on. All lanes take turns, round by round, on two devices of this process, which have
all QPs and regions from the start; values are medians, ratios are to 64 QPs or 64 MRs.`,
		Example: `  gorxe bench scale
  gorxe bench scale --plot scale.svg
  sudo gorxe bench scale --link veth --qps 16384 --mrs 16384
  gorxe bench scale --mrs none --window 0,2,4,8,16,32`,
		Args: cli.Named(),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fs := cmd.Flags()
	fs.Var(&f.link, "link", "memory, or veth: AF_XDP on a veth pair of its own (needs root)")
	fs.Var(&f.qps, "qps", "numbers of QPs, 1 to 65536, or none")
	fs.Var(&f.mrs, "mrs", "numbers of memory regions, 1 to 65536, or none")
	fs.StringSliceVar(&f.orders, "order", []string{string(roundRobin), string(random)}, "orders: rr (round robin), random")
	fs.Var(&f.windows, "window", "prefetch windows in QPs; 0 = off")
	fs.Var(&f.burst, "burst", "messages in a row to one QP")
	fs.Var(&f.rounds, "rounds", "rounds, each measuring everything once")
	fs.Var(&f.duration, "duration", "how long each single measurement takes")
	fs.IntSliceVar(&f.cpus, "cpus", nil, "the two CPUs to pin the threads to (default: the first two)")
	fs.BoolVar(&f.json, "json", false, "print one JSON array")
	fs.StringVar(&f.plot, "plot", "", "draw the results into this file, .svg or .png")
	return cmd
}

// check refuses what the flags' types cannot.
func (f *flags) check() error {
	for _, o := range f.orders {
		if o != string(roundRobin) && o != string(random) {
			return cli.Usagef("--order %s: choose rr or random", o)
		}
	}
	f.orders = slices.Compact(slices.Sorted(slices.Values(f.orders)))
	slices.Reverse(f.orders) // rr first
	if err := kit.CheckPlot(f.plot, false); err != nil {
		return err
	}
	if len(f.qps.list)+len(f.mrs.list) == 0 || len(f.windows.list) == 0 || len(f.orders) == 0 {
		return cli.Usagef("nothing to measure: give --qps or --mrs, a --window and an --order")
	}
	var err error
	f.cpus, err = paper.TwoCPUs(f.cpus)
	return err
}

func (f *flags) run(cmd *cobra.Command) (err error) {
	if cmd.Flags().Changed("plot") && f.plot == "" {
		return cli.Usagef("--plot: a name is missing, as in --plot scale.svg")
	}
	if err := f.check(); err != nil {
		return err
	}
	orders := make([]order, len(f.orders))
	for i, o := range f.orders {
		orders[i] = order(o)
	}
	b := &bench{rounds: f.rounds.N, burst: f.burst.N, duration: f.duration.D, lanes: plan(f.qps.list, f.mrs.list, orders, f.windows.list)}
	most, regions := 1, 0
	for i := range b.lanes {
		most, regions = max(most, b.lanes[i].qps), max(regions, b.lanes[i].mrs)
	}
	if b.w, err = newWorld(cmd.Context(), f.link.Value, most, regions, f.cpus); err != nil {
		if cli.Interrupted(cmd.Context()) {
			return cli.ErrInterrupted
		}
		return err
	}
	defer func() {
		if e := b.w.close(); err == nil {
			err = e
		}
	}()
	bar := kit.Bar(cmd.ErrOrStderr(), b.rounds*len(b.lanes))
	err = b.run(cmd.Context(), func(l *lane) {
		bar.Describe(l.String())
		_ = bar.Add(1)
	})
	_ = bar.Exit()
	if cli.Interrupted(cmd.Context()) {
		return cli.ErrInterrupted
	}
	if err != nil {
		return err
	}
	return f.report(b, cmd.OutOrStdout(), cmd.ErrOrStderr())
}

func (f *flags) report(b *bench, out, errs io.Writer) error {
	list := b.results()
	if b.rounds == 1 {
		fmt.Fprintln(errs, "One round cannot tell how far rounds scatter: do not trust these ratios, give it more --rounds.")
	}
	kit.WarnScattered(errs, list, func(r *Result) *kit.Row { return &r.Row })
	var err error
	if f.json {
		err = cli.JSON(out, list)
	} else {
		err = b.write(out, list, f.cpus)
	}
	if f.plot != "" { // last: what was measured is told, whatever becomes of the picture
		_, plotted := paper.SavePlots(f.plot, panels(list))
		err = errors.Join(err, plotted)
	}
	return err
}
