package rftp

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/netsim"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/papers/rftp/live"
)

// Links that Options.Link names, besides kit.Veth and kit.Memory.
const (
	// Virtual is the simulated paths: no figures in real time.
	Virtual = "virtual"
	// All is the simulated paths, and in real time a veth pair, or the link in memory if that is
	// not available.
	All = "all"
)

// Options are the settings of Run.
type Options struct {
	Seed uint64
	Link string      // Virtual, kit.Veth, kit.Memory or All; the zero value is All
	Live live.Config // of the figures in real time; Link and Only are filled in
	Only []string    // names of figures; empty means all
	Plot string      // file in which a plot of the results will be drawn; empty means none
}

// Check returns a usage error if a name is unknown, or an error if the plot could not be written.
func (o *Options) Check() error {
	if err := kit.Known("figure", o.Only, Names()); err != nil {
		return err
	}
	if len(o.Only) > 0 && !o.simulates() && !o.runsLive() {
		return cli.Usagef("--link %s has none of these figures: choose --link %s", o.Link, All)
	}
	return kit.CheckPlot(o.Plot, true)
}

// simulates reports whether figures in virtual time were chosen.
func (o *Options) simulates() bool {
	if o.Link == kit.Veth || o.Link == kit.Memory {
		return false
	}
	return len(o.Only) == 0 || slices.ContainsFunc(experiments(), func(e experiment) bool {
		return o.wants(&e)
	})
}

// runsLive reports whether figures in real time were chosen.
func (o *Options) runsLive() bool {
	if o.Link == Virtual {
		return false
	}
	return len(o.Only) == 0 || slices.ContainsFunc(live.Names(), func(name string) bool {
		return slices.Contains(o.Only, name)
	})
}

// Run measures the figures, and shows its progress on stderr if that is a terminal.
func Run(ctx context.Context, o Options, stderr io.Writer) (*Report, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	r := &Report{Values: []Value{}, seed: o.Seed}
	var err error
	if o.simulates() {
		if r, err = simulate(ctx, o, stderr); err != nil {
			return nil, err
		}
	}
	if o.runsLive() {
		r.Live, err = o.runLive(ctx, stderr)
	}
	return r, err
}

// runLive measures the figures in real time.
func (o *Options) runLive(ctx context.Context, stderr io.Writer) (*live.Report, error) {
	c := o.Live
	c.Only, c.Link = o.Only, o.Link
	if o.Link == "" || o.Link == All {
		c.Link = kit.Veth
	}
	r, err := live.Run(ctx, c, stderr)
	if err != nil && c.Link != o.Link && live.Unavailable(err) {
		fmt.Fprintf(stderr, "In memory, without TCP and files: AF_XDP on a veth pair is not available (%s).\n",
			strings.Join(strings.Fields(err.Error()), " "))
		c.Link = kit.Memory
		return live.Run(ctx, c, stderr)
	}
	return r, err
}

// simulate runs the simulations on all CPUs.
func simulate(ctx context.Context, o Options, stderr io.Writer) (*Report, error) {
	list := slices.DeleteFunc(experiments(), func(e experiment) bool { return !o.wants(&e) })
	results := make([]result, len(list))
	jobs := make([]kit.Job, len(list))
	for i := range list {
		e := &list[i]
		jobs[i] = kit.Job{Name: e.name, Cost: e.traffic(), Run: func(ctx context.Context) (err error) {
			results[i], err = e.run(ctx, o.Seed)
			return err
		}}
	}
	if err := kit.Parallel(ctx, jobs, stderr); err != nil {
		return nil, err
	}
	return newReport(&o, list, results), nil
}

// wants reports whether a figure of e was chosen.
func (o *Options) wants(e *experiment) bool {
	return len(o.Only) == 0 || slices.ContainsFunc(e.figures, func(f figure) bool {
		return slices.Contains(o.Only, f.name)
	})
}

// traffic returns how many bits the experiment sends, at most.
func (e *experiment) traffic() float64 {
	if e.transfer != nil {
		return e.bits * (e.transfer.warmup + e.transfer.time).Seconds()
	}
	return e.bits * (e.verbs.Warmup + e.verbs.Time).Seconds()
}

// result is the outcome of an experiment.
type result struct {
	outcome         // of a transfer
	bits    float64 // payload per second
}

func (e *experiment) run(ctx context.Context, seed uint64) (r result, err error) {
	if e.verbs != nil {
		s := *e.verbs
		s.Seed = seed
		n, err := netsim.Run(ctx, &s)
		return result{bits: n.Bits}, err
	}
	if r.outcome, err = e.transfer.run(ctx, seed); err != nil {
		return r, err
	}
	r.bits = e.transfer.rate(&r.outcome)
	return r, nil
}
