package flow

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/flowplan"
)

type runFlags struct {
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
		Use:   "run FILE",
		Short: "Send the messages of flows and compare the response times with their bounds",
		Long: `Send the messages of a description between two devices, and compare the observed response times with
the bounds. The response time ends when the sender knows that the message is in the receiver's memory.

--link virtual is a link in memory in virtual time with the rate and delay of the description: no
response time exceeds its bound there, otherwise the exit status is 1. --link memory and --link veth
(as root) run in real time on this machine. They have another rate than the description, and their
response times depend on the load of the machine, so bounds are no guarantee there.`,
		Example: `  gorxe flow run flows.yaml
  gorxe flow run flows.yaml --link veth --duration 10s --json`,
		Args: cli.Named("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	fs := cmd.Flags()
	fs.Var(&f.link, "link", "virtual, memory or veth")
	fs.VarP(&f.duration, "duration", "D", "how long to send")
	cli.JSONVar(fs, &f.json, "print one JSON array")
	return cmd
}

func (f *runFlags) run(cmd *cobra.Command, file string) error {
	p, err := load(cmd, file)
	if err != nil {
		return err
	}
	kind := flowplan.LinkKind(f.link.Value)
	list, err := flowplan.Run(cmd.Context(), p, kind, f.duration.D)
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

func observed(list []flowplan.Observed) *cli.Table {
	t := &cli.Table{Columns: []cli.Column{{Title: "flow"}, {Title: "priority", Align: cli.Right},
		{Title: "sent", Align: cli.Right}, {Title: "mean", Align: cli.Right},
		{Title: "max", Align: cli.Right}, {Title: "bound", Align: cli.Right},
		{Title: "deadline", Align: cli.Right}, {Title: "late", Align: cli.Right},
		{Title: "dropped", Align: cli.Right}, {Title: "missed", Align: cli.Right}}}
	for _, o := range list {
		t.Row(o.Flow, o.Priority, o.Sent, text(o.Mean), text(o.Max), text(o.Bound),
			text(o.Deadline), o.Late, o.Dropped, o.Missed)
	}
	return t
}
