package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/papers/indirect"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/papers/kit/paper"
	"github.com/gorxe/gorxe/papers/prefetch/scale"
	"github.com/gorxe/gorxe/papers/statusbyte"
	"github.com/gorxe/gorxe/xdp"
	"github.com/gorxe/gorxe/xdp/veth"
)

// flags are what the user gave.
type flags struct {
	rounds   cli.Int
	duration cli.Duration
	only     []string
	plot     string
	mode     cli.Choice
	cpus     []int
	json     bool
	memory   bool
	profile  string
}

// Defaults and bounds of the flags.
const (
	// A shared machine changes its speed within seconds. The sides of a short round see the same, and of many rounds the median is
	// sure where that of few long ones is not.
	defaultRounds   = 25
	maxRounds       = 1000
	defaultDuration = 80 * time.Millisecond
	minDuration     = 10 * time.Millisecond
	maxDuration     = time.Minute
)

// Command is "gorxe bench".
func Command() *cobra.Command {
	f := &flags{
		rounds:   cli.Int{N: defaultRounds, Min: 1, Max: maxRounds},
		duration: cli.Duration{D: defaultDuration, Min: minDuration, Max: maxDuration},
		mode:     cli.Choice{Value: xdp.Auto.String(), Words: []string{xdp.Auto.String(), xdp.Native.String(), xdp.Generic.String()}},
	}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure gorxe beside bare AF_XDP and kernel TCP and UDP, on a veth pair of its own",
		Long: `Measure message rate, bandwidth, latency and goodput under loss, side by side with bare AF_XDP frames of the same size and
with the kernel's TCP and UDP: in one run, on one veth pair between two namespaces of its own, two processes, a CPU each.

All competitors take turns, round by round; values are medians, and ratios are what to compare between machines. Without
root, or without AF_XDP, gorxe and bare frames are measured on an in-memory link.

Figures: ` + strings.Join(names(figures()), ", ") + `.`,
		Example: `  sudo gorxe bench
  sudo gorxe bench --plot bench.svg
  sudo gorxe bench --only write_lat_8B --rounds 100 --json`,
		Args: cli.Named(),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fs := cmd.Flags()
	fs.Var(&f.rounds, "rounds", "rounds, each measuring everything once")
	fs.Var(&f.duration, "duration", "how long each single measurement takes; those with loss five times as long, in every fifth round")
	fs.StringSliceVar(&f.only, "only", nil, "measure only these figures")
	fs.StringVar(&f.plot, "plot", "", "draw the results into this file, .svg or .png")
	fs.Var(&f.mode, "mode", "XDP mode: auto (generic on veth), native or generic")
	fs.IntSliceVar(&f.cpus, "cpus", nil, "the two CPUs to pin the sides to (default: the first two)")
	fs.BoolVar(&f.json, "json", false, "print one JSON array")
	fs.BoolVar(&f.memory, "memory", false, "use the in-memory link even as root")
	fs.StringVar(&f.profile, "cpuprofile", "", "write CPU profiles of gorxe and of bare frames on a veth pair into files whose names begin so")
	_ = fs.MarkHidden("cpuprofile") // for make pgo
	cmd.AddCommand(newSideCommand(), indirect.Command(), scale.Command(), statusbyte.Command())
	return cmd
}

func newSideCommand() *cobra.Command {
	var o sideOptions
	cmd := &cobra.Command{
		Use:    sideCommand,
		Hidden: true,
		Args:   cli.Named(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			addr, err := netip.ParseAddr(o.addr)
			if err != nil {
				return cli.Usage(err)
			}
			return serve(cmd.InOrStdin(), cmd.OutOrStdout(), &world{
				cpu: o.cpu, port: openXDP(o.iface), used: cpuTime, profile: o.profile,
				kernel: func(s *spec) (job, error) { return asJob(newKernel(s, o.iface, addr)) },
			})
		},
	}
	cmd.Flags().StringVar(&o.iface, "iface", "", "interface")
	cmd.Flags().StringVar(&o.addr, "addr", "", "its IPv4 address")
	cmd.Flags().IntVar(&o.cpu, "cpu", -1, "CPU")
	cmd.Flags().StringVar(&o.profile, "cpuprofile", "", "where CPU profiles go")
	return cmd
}

// asJob keeps a nil pointer from becoming a job that is not nil.
func asJob(k *kernel, err error) (job, error) {
	if err != nil {
		return nil, err
	}
	return k, nil
}

// check refuses what the flags' types cannot.
func (f *flags) check() error {
	if err := kit.Known("figure", f.only, names(figures())); err != nil {
		return err
	}
	err := kit.CheckPlot(f.plot, false)
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
	b := &bench{rounds: f.rounds.N, duration: f.duration.D, mode: f.mode.Value}
	stop, err := f.open(b, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if f.cpus[0] == f.cpus[1] {
		fmt.Fprintln(cmd.ErrOrStderr(), "Both sides share one CPU: latencies show the scheduler, not the network.")
	}
	if err := f.measure(cmd.Context(), b, cmd.ErrOrStderr()); err != nil {
		return err
	}
	kit.WarnStarved(cmd.ErrOrStderr(), b.starved, b.steps(), "a side")
	plot := f.plot
	var missing error // of the plot: what was measured is told all the same
	if plot != "" {
		if missing = b.plot(plot); missing != nil {
			plot = ""
		}
	}
	return errors.Join(f.report(b, plot, cmd.OutOrStdout(), cmd.ErrOrStderr()), missing)
}

func (f *flags) measure(ctx context.Context, b *bench, stderr io.Writer) error {
	bar := kit.Bar(stderr, b.steps())
	err := b.run(ctx, func(figure, lane string) {
		bar.Describe(figure + " " + lane)
		_ = bar.Add(1)
	})
	_ = bar.Exit()
	if cli.Interrupted(ctx) {
		return cli.ErrInterrupted
	}
	return err
}

func (f *flags) report(b *bench, plot string, w, errs io.Writer) error {
	list := b.results()
	kit.WarnScattered(errs, list, func(r *Result) *kit.Row { return &r.Row })
	if f.json {
		return cli.JSON(w, list)
	}
	b.writeHead(w, f.cpus)
	if err := writeTable(w, list); err != nil {
		return err
	}
	fmt.Fprint(w, notes)
	if plot != "" {
		fmt.Fprintf(w, "\nPlot: %s\n", plot)
	}
	return nil
}

// choose keeps the figures that were asked for.
func (f *flags) choose(list []figure) []figure {
	if len(f.only) == 0 {
		return list
	}
	return slices.DeleteFunc(list, func(g figure) bool { return !slices.Contains(f.only, g.name) })
}

// open makes the two sides: on a veth pair, or where that cannot be, in memory.
func (f *flags) open(b *bench, stderr io.Writer) (stop func() error, err error) {
	if f.memory {
		return f.openMemory(b)
	}
	stop, err = f.openVeth(b)
	if err == nil || !kit.NoVeth(err) {
		return stop, err
	}
	why := "no AF_XDP here"
	if !errors.Is(err, xdp.ErrUnsupported) {
		why = "not root"
	}
	fmt.Fprintf(stderr, "On an in-memory link, without kernel baselines: %s (%s).\n", why, strings.Join(strings.Fields(err.Error()), " "))
	return f.openMemory(b)
}

func (f *flags) openVeth(b *bench) (stop func() error, err error) {
	pair, err := veth.New(veth.Options{MTU: pairMTU, Offloads: true})
	if err != nil {
		return nil, err
	}
	parts := []func() error{pair.Close}
	stop = func() error {
		var err error
		for _, part := range slices.Backward(parts) {
			err = errors.Join(err, part())
		}
		return err
	}
	if _, err := kit.Probe(&pair.A, f.mode.Value); err != nil {
		return nil, errors.Join(err, stop())
	}
	b.figures = f.choose(figures())
	b.softirqs = findSoftirqs()
	for i, end := range []struct {
		name string
		end  *veth.End
		side **side
	}{{"A", &pair.A, &b.a}, {"B", &pair.B, &b.b}} {
		s, err := startProcess(end.name, end.end, &sideOptions{cpu: f.cpus[i], profile: f.profile})
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		*end.side = s
		parts = append(parts, s.close)
	}
	return stop, nil
}

// openMemory makes two sides in this process, which get the two ports of a new link for each measurement.
func (f *flags) openMemory(b *bench) (stop func() error, err error) {
	b.figures = f.choose(memoryFigures())
	// Two spinning threads, and room for what else this process does.
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 4))
	var link *loopback.Link
	world := func(i int) *world {
		return &world{
			cpu: f.cpus[i], used: threadTime,
			kernel: func(*spec) (job, error) { return nil, errors.New("no kernel sockets on an in-memory link") },
			port: func(s *spec) (driver.Port, error) {
				if !s.Active { // the passive side comes first
					var err error
					if link, err = loopback.NewLink(loopback.Config{}); err != nil {
						return nil, err
					}
				}
				return link.Port(i), nil
			},
		}
	}
	b.a, b.b = startLocal("A", world(0)), startLocal("B", world(1))
	return func() error { return errors.Join(b.a.close(), b.b.close()) }, nil
}
