package flow

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/flowplan"
	"github.com/gorxe/gorxe/roce"
)

type runFlags struct {
	device   device.Flags
	port     cli.Int
	json     bool
	link     cli.Choice
	duration cli.Duration
}

func runCommand() *cobra.Command {
	f := &runFlags{
		link: cli.Choice{Value: string(flowplan.Virtual), Words: []string{
			string(flowplan.Virtual), string(flowplan.Memory), string(flowplan.Veth)}},
		duration: cli.Duration{D: time.Second, Min: time.Millisecond, Max: time.Hour},
	}
	cmd := &cobra.Command{
		Use:   "run FILE [HOST]",
		Short: "Send the messages of flows and compare the response times with their bounds",
		Long: `Send the messages of a description between two devices, and compare the observed response times with
the bounds. The response time ends when the sender knows that the message is in the receiver's memory.

With HOST, the messages go to 'gorxe flow serve FILE' on another host. Otherwise both devices are in
this process. --link virtual is a link in memory with the rate of the description, in virtual time. No
response time exceeds its bound there, otherwise the exit status is 1. --link memory, with that rate, and
--link veth (as root), which the processors limit, run in real time. Response times in real time depend on
the load of the machine, so bounds are no guarantee there.

The columns chain and chain max are about flows that are activated by others: the bound of the time since
their chain has begun, and the longest time.`,
		Example: `  gorxe flow run flows.yaml
  gorxe flow run flows.yaml --link veth --duration 10s --json
  gorxe flow run flows.yaml 10.0.0.2`,
		Args: cli.Named("FILE", "[HOST]"),
		RunE: f.run,
	}
	fs := cmd.Flags()
	fs.Var(&f.link, "link", "without HOST: virtual, memory or veth")
	cli.PortVar(fs, &f.port, "port", "p", flowplan.DefaultPort,
		"with HOST: its RDMA port of the first flow")
	f.device.RegisterIface(fs, "that of the route to HOST")
	f.device.Register(fs)
	fs.VarP(&f.duration, "duration", "D", "how long to send")
	cli.JSONVar(fs, &f.json, "print one JSON array")
	return cmd
}

func (f *runFlags) run(cmd *cobra.Command, args []string) error {
	p, err := load(cmd, args[0])
	if err != nil {
		return err
	}
	kind := flowplan.LinkKind(f.link.Value)
	var list []flowplan.Observed
	if len(args) == 2 {
		if cmd.Flags().Changed("link") {
			return cli.Usagef("--link is for runs without HOST")
		}
		kind = ""
		list, err = f.send(cmd.Context(), p, args[1])
	} else {
		if err := f.checkLocal(cmd.Flags()); err != nil {
			return err
		}
		list, err = flowplan.Run(cmd.Context(), p, kind, f.duration.D)
	}
	if err != nil && !(cli.Interrupted(cmd.Context()) && errors.Is(err, cli.ErrInterrupted)) {
		return err
	}
	if f.json {
		err = cli.JSON(cmd.OutOrStdout(), list)
	} else {
		err = observed(list).Write(cmd.OutOrStdout())
	}
	if err != nil || kind != flowplan.Virtual {
		return err
	}
	for _, o := range list {
		if !o.Within {
			return fmt.Errorf("flow %q took %s, more than its bound of %s", o.Flow, text(o.Max),
				text(o.Bound))
		}
	}
	return nil
}

// checkLocal refuses the flags that have no effect without HOST: all about a device.
func (f *runFlags) checkLocal(fs *pflag.FlagSet) (err error) {
	fs.Visit(func(given *pflag.Flag) {
		switch given.Name {
		case "link", "duration", "json":
		default:
			err = cli.Usagef("--%s is for runs with HOST: add HOST, or leave it out", given.Name)
		}
	})
	return err
}

// send sends to another host.
func (f *runFlags) send(ctx context.Context, p *flowplan.Plan, host string) (
	list []flowplan.Observed, err error) {
	if f.port.N+len(p.Flows) > endPort {
		return nil, cli.Usagef("--port %d: %d flows need more ports than there are", f.port.N,
			len(p.Flows))
	}
	peer, err := f.device.FindPeer(ctx, host)
	if err != nil {
		return nil, err
	}
	dev, err := f.device.OpenContext(ctx, roce.Auto, p.DeviceOptions()...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	ctx, stop := device.WhilePresent(ctx, dev)
	defer stop()
	return flowplan.Send(ctx, p, dev, peer.Addr, uint16(f.port.N), f.duration.D)
}

func observed(list []flowplan.Observed) *cli.Table {
	t := &cli.Table{Columns: []cli.Column{{Title: "flow"}, {Title: "priority", Align: cli.Right},
		{Title: "sent", Align: cli.Right}, {Title: "mean", Align: cli.Right},
		{Title: "max", Align: cli.Right}, {Title: "bound", Align: cli.Right},
		{Title: "deadline", Align: cli.Right}, {Title: "late", Align: cli.Right},
		{Title: "dropped", Align: cli.Right}, {Title: "missed", Align: cli.Right}}}
	chains := slices.ContainsFunc(list, func(o flowplan.Observed) bool { return o.Chain != 0 })
	if chains {
		t.Columns = append(t.Columns, cli.Column{Title: "chain", Align: cli.Right},
			cli.Column{Title: "chain max", Align: cli.Right})
	}
	for _, o := range list {
		row := []any{o.Flow, o.Priority, o.Sent, text(o.Mean), text(o.Max), text(o.Bound),
			text(o.Deadline), o.Late, o.Dropped, o.Missed}
		if chains {
			row = append(row, text(o.Chain), text(o.MaxChain))
		}
		t.Row(row...)
	}
	return t
}
