package statusbyte

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/papers/kit/paper"
)

type flags struct {
	link     cli.Choice
	rounds   cli.Int
	duration cli.Duration
	only     []string
	plot     string
	trace    string
	size     cli.Size // of the blocks that are traced
	cpus     []int
	json     bool
}

// Defaults and bounds of the flags.
const (
	defaultRounds   = 5
	maxRounds       = 100
	defaultDuration = 150 * time.Millisecond
	minDuration     = 10 * time.Millisecond
	maxDuration     = time.Minute
)

// Command is "gorxe bench statusbyte".
func Command() *cobra.Command {
	f := &flags{
		link:     cli.Choice{Value: linkVeth, Words: []string{linkVeth, linkMemory}},
		rounds:   cli.Int{N: defaultRounds, Min: 1, Max: maxRounds},
		duration: cli.Duration{D: defaultDuration, Min: minDuration, Max: maxDuration},
	}
	cmd := &cobra.Command{
		Use:   "statusbyte",
		Short: "Rerun the status byte paper's experiments: status byte against sliding window",
		Long: fmt.Sprintf(`Rerun the experiments of Xiao et al., "Status-Byte-Assisted RDMA Transmission Mechanism for Optimizing Multi-Task Video Streaming
in Edge Computing" (Appl. Sci. 2024, 14, 7437): the status byte against the sliding window, with three blocks, on a veth pair
over AF_XDP or on an in-memory link, the paper's figure beside ours.

Both take turns, round by round; values are medians. Ratios are statusbyte/slidingwindow: of latencies, CPU and memory less is better.

With --trace DIR it captures %d blocks of either transport (--trace-size: of this many bytes) as seen by the sender, and then measures
anew, without capturing, what a block of that size costs each end: the time that it works and the time that it looks for frames in vain.
Capturing takes time itself: of the pcap files believe the order of frames rather than their times.

Experiments: `+strings.Join([]string{groupSync, groupLatency, groupThroughput, groupCPU, groupRetained, groupCameras, groupQueues}, ", ")+`.`, traceBlocks),
		Example: `  sudo gorxe bench statusbyte --plot statusbyte.svg
  gorxe bench statusbyte --link memory --json
  sudo gorxe bench statusbyte --only throughput_256B --only sync_latency --rounds 11
  gorxe bench statusbyte --link memory --only throughput_256KiB --trace /tmp/trace --trace-size 256KiB`,
		Args: cli.Named(),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fs := cmd.Flags()
	fs.Var(&f.link, "link", "veth (AF_XDP between two namespaces, as root) or memory")
	fs.Var(&f.rounds, "rounds", "rounds, each measuring everything once")
	fs.Var(&f.duration, "duration", "how long a single throughput measurement takes")
	fs.StringSliceVar(&f.only, "only", nil, "measure only these experiments, or these results")
	fs.StringVar(&f.plot, "plot", "", "draw the results into this file, .svg or .png; another name makes both")
	f.size = cli.Size{Bytes: headlineSize, Min: 1, Max: largest}
	fs.StringVar(&f.trace, "trace", "", "capture some blocks of either transport as pcap files in this directory, for 'gorxe dump', and say what a block costs")
	fs.Var(&f.size, "trace-size", "the size of those blocks, as in 256KiB")
	fs.IntSliceVar(&f.cpus, "cpus", nil, "the two CPUs of the sending and the receiving thread (default: the first two)")
	fs.BoolVar(&f.json, "json", false, "print one JSON array")
	return cmd
}

func (f *flags) check() error {
	if err := kit.Known("experiment", f.only, names(experiments())); err != nil {
		return err
	}
	err := kit.CheckPlot(f.plot, true)
	if err != nil {
		return err
	}
	f.cpus, err = paper.TwoCPUs(f.cpus)
	return err
}

func (f *flags) run(cmd *cobra.Command) (err error) {
	if err := f.check(); err != nil {
		return err
	}
	// A thread for each side: the sliding window's sender and its ACK poller take turns on theirs, which costs a fraction of
	// a microsecond, instead of fighting the receiver for its CPU.
	runtime.GOMAXPROCS(2)
	b := &bench{
		link: f.link.Value, cpus: f.cpus, duration: f.duration.D, chosen: choose(experiments(), f.only),
		values: map[string]map[string][]float64{}, series: map[string][]float64{}, tails: map[string][]float64{},
		stalled: map[string][][]float64{}, frames: map[string][]float64{}, naps: map[string][]float64{}, films: map[string]video{},
	}
	if b.w, err = newWorld(b.link, b.cpus, manual); err != nil {
		if kit.NoVeth(err) {
			err = fmt.Errorf("%w: run it as root, or with --link memory", err)
		}
		return err
	}
	defer func() { err = errors.Join(err, b.w.close()) }()
	if err := b.w.warm(cmd.Context()); err != nil {
		return err
	}
	if err := paper.Rounds(cmd.Context(), f.rounds.N, b.steps(), cmd.ErrOrStderr()); err != nil {
		return err
	}
	kit.WarnStarved(cmd.ErrOrStderr(), b.starved, f.rounds.N*len(b.chosen)*len(laneNames), "the receiving thread")
	if f.trace != "" {
		if err := b.trace(cmd.Context(), f.trace, f.size.Int()); err != nil {
			return err
		}
		if err := b.observe(cmd.Context(), f.size.Int(), f.rounds.N); err != nil {
			return err
		}
	}
	var plots []string
	var missing error // of the plot: what was measured is told all the same
	if f.plot != "" {
		plots, missing = paper.SavePlots(f.plot, b.panels())
	}
	rows := b.rows()
	paper.WarnScattered(cmd.ErrOrStderr(), rows)
	return errors.Join(f.report(b, rows, plots, cmd.OutOrStdout()), missing)
}

func (f *flags) report(b *bench, rows []paper.Row, plots []string, w io.Writer) error {
	if f.json {
		return cli.JSON(w, paper.Results(rows))
	}
	where := "a veth pair between two namespaces"
	if b.link == linkMemory {
		where = "an in-memory link"
	}
	fmt.Fprintf(w, "%s on %s; CPUs %d and %d; %d blocks unless said otherwise; medians of %s\n\n",
		b.w.datapath, where, b.cpus[0], b.cpus[1], blocks, cli.Count(f.rounds.N, "round"))
	if err := paper.WriteTable(w, laneStatus, rows); err != nil {
		return err
	}
	fmt.Fprint(w, remarks)
	if b.costs != nil {
		if err := b.writeCosts(w, f.size.Int()); err != nil {
			return err
		}
	}
	for _, p := range plots {
		fmt.Fprintf(w, "\nPlot: %s\n", p)
	}
	return nil
}
