package figures

import (
	"context"
	"io"
	"slices"

	"github.com/gorxe/gorxe/internal/netsim"
	"github.com/gorxe/gorxe/papers/kit"
)

// Options are the settings of Run.
type Options struct {
	Seed uint64
	Only []string // names of figures; empty means all
	Plot string   // file in which a plot of the results will be drawn; empty means none
}

// Check returns a usage error if a name is unknown, or an error if the plot could not be written.
func (o *Options) Check() error {
	if err := kit.Known("figure", o.Only, Names()); err != nil {
		return err
	}
	return kit.CheckPlot(o.Plot, true)
}

// Run runs the experiments in parallel, and shows its progress on stderr if that is a terminal.
func Run(ctx context.Context, o Options, stderr io.Writer) (*Report, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	list := o.choose(experiments())
	if o.Plot != "" && len(o.Only) == 0 {
		list = append(list, curves()...)
	}
	for i := range list {
		list[i].scenario.Seed = o.Seed
		if o.Plot != "" {
			setSample(&list[i].scenario)
		}
	}
	results, err := runAll(ctx, list, stderr)
	if err != nil {
		return nil, err
	}
	return newReport(&o, list, results), nil
}

// choose returns the experiments with the chosen figures, and those to which their targets refer.
func (o *Options) choose(all []experiment) (list []experiment) {
	if len(o.Only) == 0 {
		return all
	}
	needed := slices.Clone(o.Only)
	for _, e := range all {
		for _, f := range e.figures {
			if f.of != "" && slices.Contains(o.Only, f.name) {
				needed = append(needed, f.of)
			}
		}
	}
	for _, e := range all {
		if slices.ContainsFunc(e.figures, func(f figure) bool {
			return slices.Contains(needed, f.name)
		}) {
			list = append(list, e)
		}
	}
	return list
}

// runAll runs experiments on all CPUs.
func runAll(ctx context.Context, list []experiment, stderr io.Writer) ([]netsim.Result, error) {
	results := make([]netsim.Result, len(list))
	jobs := make([]kit.Job, len(list))
	for i := range list {
		e := &list[i]
		jobs[i] = kit.Job{Name: e.name, Cost: traffic(e.bits, &e.scenario),
			Run: func(ctx context.Context) (err error) {
				results[i], err = netsim.Run(ctx, &e.scenario)
				return err
			}}
	}
	return results, kit.Parallel(ctx, jobs, stderr)
}

// traffic returns how many bits a scenario sends at a rate, at most.
func traffic(rate float64, s *netsim.Scenario) float64 {
	return rate * (s.Warmup + s.Time).Seconds()
}
