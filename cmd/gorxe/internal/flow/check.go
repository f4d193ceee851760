package flow

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/flowplan"
	"github.com/gorxe/gorxe/transport/flow"
)

type checkFlags struct {
	json   bool
	svg    string
	length cli.Duration
}

func checkCommand() *cobra.Command {
	f := &checkFlags{length: cli.Duration{Min: time.Microsecond, Max: time.Hour}}
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Compute the worst-case response times of flows",
		Long: `Compute the worst-case response time of each flow and compare it with its deadline. The bounds hold
for the scheduler of gorxe (package transport/flow), or for traffic classes if the description has the
key classes, without packet loss, if nothing else uses the link and the processors keep up.

The columns: share of the link that the flow and all of the same and of higher priorities take; the
response time alone; how long lower priorities block it at most; the bound; the deadline; what is left.
With tasks also the bound of the time since the chain has begun that the flow belongs to.

The exit status is 1 if a flow may miss its deadline, and 2 if the description is invalid.`,
		Example: `  gorxe flow check flows.yaml
  gorxe flow check flows.yaml --svg timeline.svg --length 20ms
  gorxe flow check --json - < flows.json`,
		Args: cli.Named("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	fs := cmd.Flags()
	cli.JSONVar(fs, &f.json, "print one JSON array")
	fs.StringVar(&f.svg, "svg", "", "draw how the messages share the link into this file")
	fs.Var(&f.length, "length", "length of the drawing (default: three times the longest period)")
	cli.HideDefaults(fs, "length")
	return cmd
}

func (f *checkFlags) run(cmd *cobra.Command, file string) error {
	p, err := load(cmd, file)
	if err != nil {
		return err
	}
	var drawing []byte
	if f.svg != "" {
		if drawing, err = f.draw(p); err != nil {
			return cli.Usage(err)
		}
	}
	bounds, failed := flow.Admit(p.Link, p.Model())
	if bounds == nil {
		return failed
	}
	if f.json {
		err = cli.JSON(cmd.OutOrStdout(), rows(p, bounds))
	} else {
		err = table(p, bounds).Write(cmd.OutOrStdout())
	}
	if err != nil {
		return err
	}
	if f.svg != "" {
		if err := os.WriteFile(f.svg, drawing, 0o644); err != nil {
			return err
		}
	}
	return admitted(cmd.ErrOrStderr(), failed)
}

// draw returns the timeline as SVG.
func (f *checkFlags) draw(p *flowplan.Plan) ([]byte, error) {
	length := f.length.D
	if length == 0 {
		for i := range p.Flows {
			length = max(length, 3*p.Flows[i].Period)
		}
		if length == 0 {
			length = 100 * time.Millisecond // only token buckets
		}
	}
	t, err := flowplan.NewTimeline(p, length)
	if err != nil {
		return nil, fmt.Errorf("--length: %w", err)
	}
	var b bytes.Buffer
	err = t.SVG(&b)
	return b.Bytes(), err
}

// row is one flow of the JSON output. Durations are in nanoseconds.
type row struct {
	Flow     string        `json:"flow"`
	Priority int           `json:"priority"`
	Load     float64       `json:"load"`
	Alone    time.Duration `json:"alone_ns"`
	Blocking time.Duration `json:"blocking_ns"`
	Bound    time.Duration `json:"bound_ns"`    // -1: none
	Deadline time.Duration `json:"deadline_ns"` // 0: none
	Fits     bool          `json:"fits"`
	Chain    time.Duration `json:"chain_bound_ns,omitempty"` // -1: none; 0: not in a chain
}

func rows(p *flowplan.Plan, bounds []flow.Response) []row {
	list := make([]row, len(bounds))
	for i, b := range bounds {
		f := &p.Flows[i]
		list[i] = row{Flow: b.Flow, Priority: f.Priority, Load: b.Load, Alone: b.Alone,
			Blocking: b.Blocking, Bound: b.Bound, Deadline: f.EffectiveDeadline()}
		r := &list[i]
		r.Fits = b.Bound < flow.Unbounded && (r.Deadline == 0 || b.Bound <= r.Deadline)
		if len(f.After) > 0 {
			r.Chain = f.Chain(b.Bound)
		}
		if b.Bound == flow.Unbounded {
			r.Bound = -1
			if len(f.After) > 0 {
				r.Chain = -1
			}
		}
	}
	return list
}

func table(p *flowplan.Plan, bounds []flow.Response) *cli.Table {
	t := &cli.Table{Columns: []cli.Column{{Title: "flow"}, {Title: "priority", Align: cli.Right},
		{Title: "load", Align: cli.Right}, {Title: "alone", Align: cli.Right},
		{Title: "blocking", Align: cli.Right}, {Title: "bound", Align: cli.Right},
		{Title: "deadline", Align: cli.Right}, {Title: "left", Align: cli.Right}}}
	list := rows(p, bounds)
	chains := slices.ContainsFunc(list, func(r row) bool { return r.Chain != 0 })
	if chains {
		t.Columns = append(t.Columns, cli.Column{Title: "chain", Align: cli.Right})
	}
	for _, r := range list {
		left := "-"
		switch {
		case !r.Fits && r.Bound < 0:
			left = "never"
		case r.Deadline > 0 && r.Fits:
			left = text(r.Deadline - r.Bound)
		case r.Deadline > 0:
			left = "-" + text(r.Bound-r.Deadline)
		}
		cells := []any{r.Flow, r.Priority, fmt.Sprintf("%.1f %%", 100*r.Load), text(r.Alone),
			text(r.Blocking), text(r.Bound), text(r.Deadline), left}
		if chains {
			cells = append(cells, text(r.Chain))
		}
		t.Row(cells...)
	}
	return t
}
