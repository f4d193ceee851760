package indirect

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/xdp"
)

// The two methods.
const (
	methodIndirect = "indirect"
	methodDirect   = "direct"
)

// Config configures a run. Use DefaultConfig and change what differs.
type Config struct {
	kit.Options // without Duration: a trial ends after its last transfer

	Fallback     bool          // use kit.Memory if AF_XDP on a veth pair is not available
	Mode         xdp.Mode      // of the ports of a veth pair
	Transfers    int           // of a trial, at least 1
	Size         int           // bytes of a transfer, MinSize to MaxSize
	Timeout      time.Duration // after which a request is repeated
	Rate         int           // of the link in each direction, Mbit/s; 0 means unlimited
	PingInterval time.Duration // 0: the next ping follows the reply to the previous one
}

// Limits of Config.
const (
	MinSize = 64
	MaxSize = 16 << 20
)

// DefaultConfig returns the paper's configuration.
func DefaultConfig() Config {
	return Config{
		Options:   kit.Options{Link: kit.Veth, Rounds: 3},
		Transfers: 800, Size: 128 << 10, Timeout: 2 * time.Millisecond, Rate: 1000,
		PingInterval: time.Millisecond,
	}
}

// bench is a run.
type bench struct {
	Config
	datapath    string
	experiments []experiment
	outcomes    map[string]*outcomes // by experiment
	starved     int                  // unreliable trials
	repeated    int                  // additional trials
}

// outcomes are those of both methods, one of each per round.
type outcomes struct{ indirect, direct []outcome }

// Run runs the experiments. It shows its progress on stderr if that is a terminal.
func Run(ctx context.Context, c Config, stderr io.Writer) (*Report, error) {
	if err := c.Check("experiment", Names(), true); err != nil {
		return nil, err
	}
	b := &bench{Config: c, outcomes: map[string]*outcomes{}, experiments: experiments()}
	if len(c.Only) > 0 {
		b.experiments = slices.DeleteFunc(b.experiments, func(x experiment) bool {
			return !slices.Contains(c.Only, x.name)
		})
	}
	if err := b.probe(stderr); err != nil {
		return nil, err
	}
	// Both sides poll without sleeping. The pings and the progress bar need threads besides.
	const threads = 6
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(runtime.NumCPU(), threads)))
	if err := kit.Rounds(ctx, c.Rounds, b.steps(), stderr); err != nil {
		return nil, err
	}
	return b.report(), nil
}

// probe finds out whether the link is available and what its data path is.
func (b *bench) probe(stderr io.Writer) error {
	if b.Link == kit.Veth {
		bed, err := testbed.New(testbed.Config{Veth: true, MTU: linkMTU, Mode: b.Mode})
		switch {
		case err == nil:
			b.datapath = bed.Dev[0].Info().Datapath
			return bed.Close()
		case !b.Fallback || !testbed.Unavailable(err):
			return fmt.Errorf("%w: or choose --link memory", err)
		}
		fmt.Fprintf(stderr, "In memory and in virtual time: AF_XDP on a veth pair is not available (%s).\n",
			strings.Join(strings.Fields(err.Error()), " "))
	}
	b.Link, b.datapath = kit.Memory, "memory, in virtual time"
	return nil
}

// trials returns how many trials are planned.
func (b *bench) trials() int { return 2 * len(b.experiments) * b.Rounds }

// steps returns both methods of every experiment.
func (b *bench) steps() [][]kit.Step {
	var list [][]kit.Step
	for i := range b.experiments {
		x, o := &b.experiments[i], &outcomes{}
		b.outcomes[x.name] = o
		list = append(list, []kit.Step{
			b.step(x, methodIndirect, &o.indirect), b.step(x, methodDirect, &o.direct),
		})
	}
	return list
}

func (b *bench) step(x *experiment, method string, into *[]outcome) kit.Step {
	return kit.Step{
		Experiment: x.name, Side: method,
		Run: func(ctx context.Context, round int) error {
			t := trial{experiment: x, Config: &b.Config, direct: method == methodDirect,
				seed: uint64(round + 1)}
			o, err := b.repeat(ctx, &t)
			if err == nil {
				*into = append(*into, o)
			}
			return err
		},
	}
}

// In real time a trial is made up to maxTries times while other programs take more than maxStolen
// of the time of a side. All additional trials together are at most half as many as the planned
// ones.
const (
	maxTries  = 4
	maxStolen = 0.02
)

// repeat runs a trial until no other program disturbs it, and returns the outcome of the trial
// that was disturbed least. The pings are too short to count as disturbance.
func (b *bench) repeat(ctx context.Context, t *trial) (best outcome, err error) {
	for i := range maxTries {
		o, err := t.run(ctx)
		if err != nil {
			return o, err
		}
		if i == 0 || o.stolen < best.stolen {
			best = o
		}
		if best.stolen.Seconds() <= maxStolen*best.total.Seconds() {
			return best, nil
		}
		if b.repeated >= b.trials()/2 {
			break
		}
		b.repeated++
	}
	b.starved++
	return best, nil
}
