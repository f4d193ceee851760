package rftp

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"

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

// Run runs the simulations on all CPUs, and shows its progress on stderr if that is a terminal.
func Run(ctx context.Context, o Options, stderr io.Writer) (*Report, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	list := slices.DeleteFunc(experiments(), func(e experiment) bool { return !o.wants(&e) })
	results := make([]result, len(list))
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	bar := kit.ProgressBar(stderr, len(list))
	defer func() { _ = bar.Exit() }()
	jobs := make(chan int, len(list))
	for _, i := range longestFirst(list) {
		jobs <- i
	}
	close(jobs)
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(list)) {
		wg.Go(func() {
			for i := range jobs {
				if ctx.Err() != nil {
					return
				}
				var err error
				if results[i], err = list[i].run(ctx, o.Seed); err != nil {
					cancel(fmt.Errorf("%s: %w", list[i].name, err))
					return
				}
				_ = bar.Add(1)
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil, kit.Ended(ctx)
	}
	return newReport(&o, list, results), nil
}

// wants reports whether a figure of e was chosen.
func (o *Options) wants(e *experiment) bool {
	return len(o.Only) == 0 || slices.ContainsFunc(e.figures, func(f figure) bool {
		return slices.Contains(o.Only, f.name)
	})
}

// longestFirst returns the indexes of experiments with the most traffic first, so that all CPUs end
// at about the same time.
func longestFirst(list []experiment) (order []int) {
	for i := range list {
		order = append(order, i)
	}
	traffic := func(i int) float64 {
		if e := &list[i]; e.transfer != nil {
			return e.bits * (e.transfer.warmup + e.transfer.time).Seconds()
		}
		return list[i].bits * (list[i].verbs.Warmup + list[i].verbs.Time).Seconds()
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(traffic(b), traffic(a)) })
	return order
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
