package scale

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/roce"
)

// Config configures a run. Use DefaultConfig and change what differs.
type Config struct {
	kit.Options // without Only

	QPs, MRs []int   // numbers to measure, 1 to MaxCount
	Windows  []int   // prefetch windows, 0 (off) to MaxWindow
	Orders   []Order // in which the QPs or MRs are used
	Burst    int     // messages in a row to one QP, 1 to MaxBurst
}

// DefaultConfig returns the configuration of "gorxe bench scale" without flags.
func DefaultConfig() Config {
	counts := []int{1, 64, 1024, 16384, 65536}
	return Config{
		Options: kit.Options{Link: kit.Memory, Rounds: 15, Duration: 100 * time.Millisecond},
		QPs:     counts, MRs: counts, Windows: []int{0, roce.DefaultPrefetch},
		Orders: []Order{RoundRobin, Random}, Burst: 1,
	}
}

// check returns a usage error for a configuration that cannot be measured, and orders c.Orders.
func (c *Config) check() error {
	for _, o := range c.Orders {
		if o != RoundRobin && o != Random {
			return cli.Usagef("unknown --order %s: choose rr or random", o)
		}
	}
	c.Orders = slices.Compact(slices.Sorted(slices.Values(c.Orders)))
	slices.Reverse(c.Orders) // rr first
	if len(c.QPs)+len(c.MRs) == 0 || len(c.Windows) == 0 || len(c.Orders) == 0 {
		return cli.Usagef("nothing to measure: choose --qps or --mrs, a --window and an --order")
	}
	return c.Options.Check("", nil, false)
}

// bench is a run.
type bench struct {
	Config
	d       *devices
	lanes   []lane
	samples map[lane][]sample // one per round
}

// Run measures all lanes. It shows its progress on stderr if that is a terminal.
func Run(ctx context.Context, c Config, stderr io.Writer) (r *Report, err error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	b := &bench{Config: c, lanes: plan(&c), samples: map[lane][]sample{}}
	qps, mrs := 1, 0
	for i := range b.lanes {
		qps, mrs = max(qps, b.lanes[i].qps), max(mrs, b.lanes[i].mrs)
	}
	if b.d, err = openDevices(ctx, c.Link, qps, mrs, c.CPUs); err != nil {
		if cli.Interrupted(ctx) {
			err = cli.ErrInterrupted
		}
		return nil, err
	}
	defer func() { err = errors.Join(err, b.d.Close()) }()
	// The collector would disturb the measurement. The data path allocates nothing.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer context.AfterFunc(ctx, func() { b.d.interrupted.Store(true) })()
	if err := b.rounds(ctx, stderr); err != nil {
		if cli.Interrupted(ctx) {
			err = cli.ErrInterrupted
		}
		return nil, err
	}
	return b.report(), nil
}

// rounds measures all lanes, round by round, in reverse order every other round.
func (b *bench) rounds(ctx context.Context, stderr io.Writer) error {
	bar := kit.ProgressBar(stderr, b.Rounds*len(b.lanes))
	defer func() { _ = bar.Exit() }()
	for round := range b.Rounds {
		for _, l := range kit.Alternate(b.lanes, round) {
			if err := ctx.Err(); err != nil {
				return err
			}
			bar.Describe(l.String())
			if err := b.d.setPrefetch(l.prefetch); err != nil {
				return err
			}
			s, err := b.repeat(&l)
			if err != nil {
				return fmt.Errorf("%s: %w", &l, err)
			}
			b.samples[l] = append(b.samples[l], s)
			_ = bar.Add(1)
		}
	}
	return nil
}

// maxTries is how often a lane is measured in which nothing arrived.
const maxTries = 3

// repeat measures a lane, again if nothing arrived.
func (b *bench) repeat(l *lane) (s sample, err error) {
	for range maxTries {
		s, err = b.d.measure(l, b.Burst, b.Duration/4, b.Duration)
		if !errors.Is(err, kit.ErrIdle) {
			break
		}
	}
	return s, err
}
