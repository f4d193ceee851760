package deterministic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/papers/kit"
)

// Config configures a run. Use DefaultConfig and change what differs.
type Config struct {
	kit.Options // Link and Duration are about the experiments in real time

	Fallback bool // use kit.Memory if AF_XDP on a veth pair is not available
}

// DefaultConfig returns the configuration of "gorxe bench flow" without flags.
func DefaultConfig() Config {
	return Config{Options: kit.Options{Link: kit.Veth, Rounds: 3, Duration: 2 * time.Second}}
}

// bench is a run.
type bench struct {
	Config
	datapath string
	chosen   []experiment

	mu      sync.Mutex
	figures []*figure
}

// figure is a value that is compared with that of a baseline.
type figure struct {
	name, unit, baseline string

	values, base     []float64 // one of each per round
	paper, paperBase *float64  // the paper's values; nil if it gives none
	note             string
}

// add adds the values of a round to a figure.
func (b *bench) add(f figure, value, base float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.IndexFunc(b.figures, func(g *figure) bool {
		return g.name == f.name && g.baseline == f.baseline
	})
	if i < 0 {
		i = len(b.figures)
		b.figures = append(b.figures, &f)
	}
	g := b.figures[i]
	g.values, g.base, g.note = append(g.values, value), append(g.base, base), f.note
}

// experiment is a group of figures.
type experiment struct {
	name string
	// once means that all rounds would give the same values.
	once bool
	run  func(ctx context.Context, b *bench, name string, seed uint64) error
}

// Run runs the experiments. It shows its progress on stderr if that is a terminal.
func Run(ctx context.Context, c Config, stderr io.Writer) (*Report, error) {
	if err := c.Check("experiment", Names(), true); err != nil {
		return nil, err
	}
	b := &bench{Config: c, chosen: experiments()}
	if len(c.Only) > 0 {
		b.chosen = slices.DeleteFunc(b.chosen, func(x experiment) bool {
			return !slices.Contains(c.Only, x.name)
		})
	}
	if err := b.probe(stderr); err != nil {
		return nil, err
	}
	if err := kit.Rounds(ctx, c.Rounds, b.steps(), stderr); err != nil {
		return nil, err
	}
	return b.report(), nil
}

// probe finds out whether the link is available and what its data path is.
func (b *bench) probe(stderr io.Writer) error {
	bed, err := testbed.New(testbed.Config{Veth: b.Link == kit.Veth})
	if err != nil && b.Link == kit.Veth {
		if !b.Fallback || !testbed.Unavailable(err) {
			return fmt.Errorf("%w: or choose --link memory", err)
		}
		fmt.Fprintf(stderr, "In memory: AF_XDP on a veth pair is not available (%s).\n",
			strings.Join(strings.Fields(err.Error()), " "))
		b.Link = kit.Memory
		bed, err = testbed.New(testbed.Config{})
	}
	if err != nil {
		return err
	}
	b.datapath = bed.Dev[0].Info().Datapath
	return bed.Close()
}

// steps returns the experiments.
func (b *bench) steps() (list [][]kit.Step) {
	for _, x := range b.chosen {
		list = append(list, []kit.Step{{Experiment: x.name, Side: "all methods",
			Run: func(ctx context.Context, round int) error {
				if x.once && round > 0 {
					return nil
				}
				return x.run(ctx, b, x.name, uint64(round))
			}}})
	}
	return list
}

// parallel calls f for each element of list, on as many CPUs as there are. Virtual time makes the
// results independent of that.
func parallel[T any](list []T, f func(i int, v T) error) error {
	errs := make([]error, len(list))
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for i, v := range list {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			errs[i] = f(i, v)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
