package demo

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/demo"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/xdp"
)

// Bounds and defaults of the flags.
const (
	maxLoss     = 0.10
	defaultMTU  = 1024
	defaultBulk = 256 << 20
	lossyBulk   = 64 << 20
	minBulk     = 1 << 20
	maxBulk     = 1 << 40
)

type flags struct {
	mtu    cli.MTU
	mode   cli.Choice
	loss   cli.Percent
	bulk   cli.Size
	seed   uint64
	memory bool
	path   cli.Choice
	json   bool

	transport device.Transport
}

// Command returns the command "gorxe demo".
func Command() *cobra.Command {
	f := new(flags)
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run, verify and time every operation on a temporary veth pair",
		Long: `Run every operation between two devices, verify all data and print the times.

As root it creates two network namespaces and a veth pair, which disappear when the
demo ends for any reason, and sends real RoCEv2 packets over AF_XDP. Without root or
AF_XDP it sends them over UDP sockets on two loopback addresses. The exit status is 0
only if all data is correct.

Latencies are those of single messages: until the completion for RC, until the
arrival for UC and UD. Rates are those of batches of up to 64 messages in flight.`,
		Example: `  sudo gorxe demo

  # drop 1 % of the packets
  sudo gorxe demo --loss 1%

  # large packets, XDP in the driver, JSON
  sudo gorxe demo --mtu 4096 --mode native --json`,
		Args: cli.Named(),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.mtu = cli.MTU{N: defaultMTU}
	f.mode = cli.Choice{Value: xdp.Auto.String(),
		Words: []string{xdp.Auto.String(), xdp.Native.String(), xdp.Generic.String()}}
	f.loss = cli.Percent{Max: maxLoss}
	f.bulk = cli.Size{Bytes: defaultBulk, Min: minBulk, Max: maxBulk}
	fs := cmd.Flags()
	fs.Var(&f.mtu, "mtu", "path MTU: 256, 512, 1024, 2048 or 4096")
	fs.Var(&f.mode, "mode",
		"XDP mode: auto (generic on veth), native or generic; native and generic fail without AF_XDP")
	fs.Var(&f.loss, "loss", "percentage of the packets to drop, up to 10%")
	fs.Uint64Var(&f.seed, "seed", 0, "seed of the data and the losses (default: random)")
	fs.Var(&f.bulk, "bulk",
		"size of the bulk WRITE, rounded up to whole MiB (default 256 MiB, with --loss 64 MiB)")
	cli.HideDefaults(fs, "bulk")
	auto := roce.PortAuto.String()
	f.path = cli.Choice{Value: auto,
		Words: []string{auto, roce.PortXDP.String(), roce.PortUDP.String()}}
	fs.Var(&f.path, "datapath",
		"how to send packets: xdp (fails without AF_XDP), udp (UDP sockets on "+
			"two loopback addresses) or auto")
	f.transport.Register(fs)
	fs.BoolVar(&f.memory, "memory", false, "use an in-memory link instead of sockets")
	cli.JSONVar(fs, &f.json, "print one JSON object")
	return cmd
}

// config checks the flags and turns them into the configuration of a demo.
func (f *flags) config(cmd *cobra.Command) (demo.Config, error) {
	mode, err := xdp.ParseMode(f.mode.Value)
	if err != nil {
		return demo.Config{}, cli.Usage(err)
	}
	c := demo.Config{
		MTU: roce.MTU(f.mtu.N), Mode: mode, Loss: f.loss.Fraction, Seed: f.seed, Bulk: f.bulk.Bytes,
		Memory: f.memory, Strict: mode != xdp.Auto || f.path.Value == roce.PortXDP.String(),
		UDP: f.path.Value == roce.PortUDP.String(), Options: f.transport.Options(),
	}
	if c.Memory && f.path.Value != roce.PortAuto.String() {
		return c, cli.Usagef("--memory and --datapath %v exclude each other: choose one of them",
			f.path.Value)
	}
	if c.UDP && mode != xdp.Auto {
		return c, cli.Usagef("--datapath udp and --mode %v exclude each other: choose one of them",
			mode)
	}
	if c.Memory && c.Strict {
		return c, cli.Usagef("--memory and --mode %v exclude each other: choose one of them", mode)
	}
	if !cmd.Flags().Changed("seed") {
		c.Seed = rand.Uint64() >> 32
	}
	if c.Loss > 0 && !cmd.Flags().Changed("bulk") {
		c.Bulk = lossyBulk
	}
	return c, nil
}

func (f *flags) run(cmd *cobra.Command) (err error) {
	c, err := f.config(cmd)
	if err != nil {
		return err
	}
	d, note, err := demo.New(cmd.Context(), c)
	if note != "" {
		fmt.Fprintln(cmd.ErrOrStderr(), "gorxe demo: "+note)
	}
	if cli.Interrupted(cmd.Context()) && err != nil {
		return cli.ErrInterrupted
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	report, err := d.Run(cmd.Context(), cmd.ErrOrStderr())
	if errors.Is(err, cli.ErrInterrupted) {
		return err
	}
	if err != nil {
		err = fmt.Errorf("%w (reproduce with --seed %d)", err, c.Seed)
	}
	if f.json {
		return errors.Join(err, cli.JSON(cmd.OutOrStdout(), report))
	}
	return errors.Join(err, printReport(cmd.OutOrStdout(), report, c.Seed))
}

// printReport writes the report as a table.
func printReport(w io.Writer, r *demo.Report, seed uint64) error {
	t := cli.Table{Columns: []cli.Column{
		{Title: "operation"}, {Title: "size", Align: cli.Right}, {Title: "count", Align: cli.Right},
		{Title: "Gb/s", Align: cli.Right},
		{Title: "p50 us", Align: cli.Right}, {Title: "p99 us", Align: cli.Right},
		{Title: "retransmissions", Align: cli.Right},
	}}
	for i := range r.Ops {
		o := &r.Ops[i]
		t.Row(o.Op, cli.FormatSize(int64(o.Bytes)), o.Count, fmt.Sprintf("%.3f", o.Gbps),
			fmt.Sprintf("%.1f", o.P50), fmt.Sprintf("%.1f", o.P99), o.Retransmits)
	}
	if err := t.Write(w); err != nil {
		return err
	}
	link := "a veth pair"
	switch r.Datapath {
	case "memory":
		link = "an in-memory link"
	case "udp":
		link = "two loopback addresses"
	}
	fmt.Fprintf(w, "\nData path: %s, two devices on %s, path MTU %d", r.Datapath, link, r.PathMTU)
	if r.Loss > 0 {
		fmt.Fprintf(w, ", %s of the packets dropped (seed %d)", cli.FormatPercent(r.Loss), seed)
	}
	fmt.Fprintln(w)
	if r.Lost > 0 {
		fmt.Fprintf(w, "UC and UD lost %d messages, which they do not retransmit. The count has only those that arrived.\n", r.Lost)
	}
	if r.Verified {
		fmt.Fprintln(w, "Verified: all data and all atomics are correct.")
	}
	return nil
}
