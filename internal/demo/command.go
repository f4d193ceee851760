package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/xdp"
)

// The bounds and defaults of the flags.
const (
	maxLoss     = 0.10
	defaultMTU  = 1024
	defaultBulk = 256 << 20
	lossyBulk   = 64 << 20
	maxBulk     = 1 << 40
)

type flags struct {
	mtu    cli.Int
	mode   cli.Choice
	loss   cli.Percent
	bulk   cli.Size
	seed   uint64
	memory bool
	json   bool
}

// Command is "gorxe demo".
func Command() *cobra.Command {
	f := new(flags)
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run every operation on a veth pair of its own, verify it and time it",
		Long: `Run every operation between two devices, verify every byte and print what it took.

As root it makes two network namespaces and a veth pair of its own, which vanish with it however it
ends, and sends real RoCEv2 packets over AF_XDP. Not root, or without AF_XDP, it does the same
on an in-memory link. The exit status is 0 only if everything was verified.

Latencies are of single messages: to the completion for RC, to the arrival for UC and UD. Rates are of batches
of up to 64 messages outstanding.`,
		Example: `  sudo gorxe demo

  # drop 1 % of the packets on the way: it still verifies
  sudo gorxe demo --loss 1%

  # large packets, in the driver, as JSON
  sudo gorxe demo --mtu 4096 --mode native --json`,
		Args: cli.Named(),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.mtu = cli.Int{N: defaultMTU, Min: 256, Max: 4096}
	f.mode = cli.Choice{Value: xdp.Auto.String(), Words: []string{xdp.Auto.String(), xdp.Native.String(), xdp.Generic.String()}}
	f.loss = cli.Percent{Max: maxLoss}
	f.bulk = cli.Size{Bytes: defaultBulk, Min: bulkMessage, Max: maxBulk}
	fs := cmd.Flags()
	fs.Var(&f.mtu, "mtu", "path MTU: 256, 512, 1024, 2048 or 4096")
	fs.Var(&f.mode, "mode", "XDP mode: auto (generic on veth), native or generic; other than auto, it fails rather than run in memory")
	fs.Var(&f.loss, "loss", "share of the packets to drop on the way, up to 10%")
	fs.Uint64Var(&f.seed, "seed", 0, "seed of the data and the losses (default: a new one each time)")
	fs.Var(&f.bulk, "bulk", "how much the bulk WRITE moves, rounded up to whole MiB (default 256 MiB, with --loss 64 MiB)")
	fs.Lookup("bulk").DefValue = ""
	fs.BoolVar(&f.memory, "memory", false, "use the in-memory link, even as root")
	fs.BoolVar(&f.json, "json", false, "print one JSON object")
	return cmd
}

// settings checks the flags against each other.
func (f *flags) settings(cmd *cobra.Command) (settings, error) {
	mode, err := xdp.ParseMode(f.mode.Value)
	if err != nil {
		return settings{}, cli.Usage(err)
	}
	s := settings{mtu: roce.MTU(f.mtu.N), mode: mode, loss: f.loss.Fraction, seed: f.seed, memory: f.memory, strict: mode != xdp.Auto}
	if !s.mtu.Valid() {
		return s, cli.Usagef("path MTU %d: choose 256, 512, 1024, 2048 or 4096 with --mtu", f.mtu.N)
	}
	if s.memory && s.strict {
		return s, cli.Usagef("--memory and --mode %v exclude each other: leave one of them out", mode)
	}
	if !cmd.Flags().Changed("seed") {
		s.seed = newSeed()
	}
	if s.loss > 0 && !cmd.Flags().Changed("bulk") {
		f.bulk.Bytes = lossyBulk
	}
	return s, nil
}

func (f *flags) run(cmd *cobra.Command) (err error) {
	ctx := cmd.Context()
	s, err := f.settings(cmd)
	if err != nil {
		return err
	}
	r, note, err := newRig(ctx, s)
	if note != "" {
		fmt.Fprintln(cmd.ErrOrStderr(), "gorxe demo: "+note)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()

	report := &Report{Datapath: r.a.dev.Info().Datapath, PathMTU: r.mtu, Loss: s.loss, Ops: []Op{}}
	err = r.demo(ctx, report, f.bulk.Bytes, cmd.ErrOrStderr())
	if errors.Is(err, cli.ErrInterrupted) {
		return err
	}
	report.Verified = err == nil
	if err != nil {
		err = fmt.Errorf("%w (repeat with --seed %d)", err, s.seed)
	}
	if f.json {
		return errors.Join(err, cli.JSON(cmd.OutOrStdout(), report))
	}
	return errors.Join(err, report.print(cmd.OutOrStdout(), &s))
}

// demo runs all steps, then the bulk WRITE.
func (r *rig) demo(ctx context.Context, report *Report, bulkBytes int64, diag io.Writer) error {
	for t := range transports {
		for slot := range depth {
			if err := r.b.postRecv(t, slot, stride); err != nil {
				return err
			}
		}
	}
	bar := newBar(diag, int64(len(steps)))
	for i := range steps {
		bar.Describe(steps[i].name)
		if err := r.step(ctx, &steps[i], report); err != nil {
			_ = bar.Clear()
			return err
		}
		_ = bar.Add(1) // a terminal that is gone is no reason to fail
	}
	_ = bar.Clear()
	if err := r.keyIsDead(ctx); err != nil {
		return err
	}
	total := (bulkBytes + bulkMessage - 1) / bulkMessage * bulkMessage
	bar = newBar(diag, total, progressbar.OptionShowBytes(true), progressbar.OptionUseIECUnits(true))
	bar.Describe("bulk WRITE")
	op, err := r.bulk(ctx, total, func(n int) { _ = bar.Add(n) })
	_ = bar.Clear()
	if err != nil {
		return err
	}
	report.Ops = append(report.Ops, *op)
	return nil
}

// step runs one operation: the sizes around packet boundaries once, then each size that is timed.
func (r *rig) step(ctx context.Context, st *step, report *Report) error {
	for _, size := range st.edges(r.mtu) {
		r.b.cleanSlots(st)
		if err := st.run(newTrial(ctx, r, st, size), 2, 2); err != nil {
			return err
		}
	}
	for _, size := range st.rows(&r.settings) {
		r.b.cleanSlots(st)
		before := r.retransmits()
		t := newTrial(ctx, r, st, size)
		if err := st.run(t, r.fewer(singles), 1); err != nil {
			return err
		}
		if err := st.run(t, r.fewer(st.batch(size)), st.depth(size, r.mtu)); err != nil {
			return err
		}
		report.lost += t.lost
		report.Ops = append(report.Ops, Op{
			Op: st.name, Bytes: size, Count: t.arrived, Gbps: cli.Round(cli.Gbps(t.batched*int64(size), t.batchTime), 3),
			P50: cli.Micros(t.lat.Percentile(50)), P99: cli.Micros(t.lat.Percentile(99)),
			Retransmits: r.retransmits() - before,
		})
	}
	return nil
}

// newBar is a progress bar on a terminal, and nothing elsewhere.
func newBar(w io.Writer, total int64, opts ...progressbar.Option) *progressbar.ProgressBar {
	f, ok := w.(*os.File)
	visible := ok && term.IsTerminal(int(f.Fd()))
	const width = 30
	return progressbar.NewOptions64(total, append([]progressbar.Option{
		progressbar.OptionSetWriter(w), progressbar.OptionSetVisibility(visible), progressbar.OptionSetWidth(width),
		progressbar.OptionThrottle(100_000_000), progressbar.OptionClearOnFinish(), progressbar.OptionSetRenderBlankState(false),
	}, opts...)...)
}
