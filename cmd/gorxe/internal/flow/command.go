package flow

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/flowplan"
	"github.com/gorxe/gorxe/transport/flow"
)

// Command returns the command "gorxe flow".
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "flow",
		Short: "Check and run flows with priorities and deadlines",
		Long: `Check and run a description of flows: messages with periods, priorities and deadlines that share a
link. The file is YAML or JSON:

  link:
    rate: 1Gb/s
    delay: 5us
  tasks:
    - {name: grab, period: 33ms, time: 2ms}
  flows:
    - {name: brake, priority: 7, size: 64, period: 1ms, deadline: 500us}
    - {name: camera, priority: 2, size: 1MiB, part: 16KiB, after: grab}
    - {name: log, size: 64KiB, part: 16KiB, burst: 1MiB, rate: 100Mb/s}

A link has the keys rate, mtu, overhead, delay, gap, backlog and in_flight. A task has the keys name,
period and phase, or after (the tasks and flows whose ends activate it), and time. A flow has the keys
name, priority (0 to 63), class (the traffic class; the priority, 7 at most, if missing), size, period,
phase, jitter, or burst and rate, or after, part or split, deadline (the period if missing), on_late
(warn, retry, drop), retries and max_age.

By default a scheduler sends one part of a message at a time, in the order of priorities. With the key
classes, the traffic classes of the device order the packets instead, and the class is the priority:

  classes:
    0: {preempt: 16KiB}     # packet (if missing), end, or a size

An invalid description has exit status 2, and nothing is sent.`,
		Example: `  gorxe flow check flows.yaml --svg timeline.svg
  gorxe flow run flows.yaml`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("there is no command flow %q: choose check, run or serve",
					args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(checkCommand(), runCommand(), serveCommand())
	return cmd
}

// load reads a description. "-" is the standard input.
func load(cmd *cobra.Command, name string) (*flowplan.Plan, error) {
	in := cmd.InOrStdin()
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, flowplan.MaxText+1))
	if err != nil {
		return nil, err
	}
	p, err := flowplan.Parse(text)
	if err != nil {
		return nil, cli.Usage(fmt.Errorf("%s: %w", name, err))
	}
	return p, nil
}

// admitted turns the error of flow.Admit into one line per flow on w, and a short error.
func admitted(w io.Writer, err error) error {
	var a *flow.AdmitError
	if !errors.As(err, &a) {
		return err
	}
	for i := range a.Misfits {
		if _, err := fmt.Fprintln(w, a.Misfits[i].String()); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s not meet the deadline in the worst case",
		doNot(len(a.Misfits)))
}

// doNot returns "1 flow does" or "3 flows do".
func doNot(n int) string {
	if n == 1 {
		return "1 flow does"
	}
	return fmt.Sprintf("%d flows do", n)
}

// text formats a duration with three digits after the decimal point; 0 is "-".
func text(d time.Duration) string {
	switch {
	case d == flow.Unbounded || d < 0:
		return "none"
	case d == 0:
		return "-"
	case d < time.Millisecond:
		return fmt.Sprintf("%.3f us", float64(d)/1e3)
	case d < time.Second:
		return fmt.Sprintf("%.3f ms", float64(d)/1e6)
	}
	return fmt.Sprintf("%.3f s", d.Seconds())
}
