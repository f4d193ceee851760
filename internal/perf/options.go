package perf

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/roce"
)

// Defaults of perftest, and the time between two rows of an endless test.
const (
	bwIterations    = 5000
	latIterations   = 1000
	endlessInterval = 5 * time.Second
)

// Options are the flags that describe a test.
type Options struct {
	Size       cli.Size
	Iterations cli.Int
	Duration   cli.Duration
	All        bool
	Infinite   bool

	qps           cli.Int
	depth         cli.Int
	mtu           cli.MTU
	atomic        cli.Choice
	bidirectional bool
}

// Register adds the flags.
func (o *Options) Register(fs *pflag.FlagSet) {
	o.Size = cli.Size{Min: 1, Max: maxBytes}
	o.Iterations = cli.Int{Min: 1, Max: maxIterations}
	o.Duration = cli.Duration{Min: minDuration, Max: maxDuration}
	o.qps = cli.Int{N: 1, Min: 1, Max: maxQPs}
	o.depth = cli.Int{N: DefaultDepth, Min: 1, Max: maxDepth}
	o.atomic = cli.Choice{Value: fetchAdd, Words: atomicKinds}
	fs.VarP(&o.Size, "size", "s",
		"message size (default 64 KiB for bandwidth, 2 for latency, 8 for atomics)")
	fs.VarP(&o.Iterations, "iters", "n",
		"number of messages per queue pair (default 5000 for bandwidth, 1000 for latency)")
	fs.VarP(&o.Duration, "duration", "D",
		"run for this time instead of a number of messages; a number without a unit means seconds")
	fs.VarP(&o.qps, "qp", "q", "number of queue pairs")
	fs.VarP(&o.depth, "tx-depth", "t", "number of outstanding work requests per queue pair")
	fs.VarP(&o.mtu, "mtu", "m",
		"path MTU: 256, 512, 1024, 2048 or 4096 (default: the largest that both sides support)")
	fs.BoolVar(&o.Infinite, "run_infinitely", false,
		"run until one side is stopped, and print a row every -D seconds (default 5; bandwidth only)")
	fs.BoolVarP(&o.All, "all", "a", false, "run all sizes from 2 B to 8 MiB")
	fs.BoolVarP(&o.bidirectional, "bidirectional", "b", false,
		"measure both directions at the same time (bandwidth only)")
	fs.VarP(&o.atomic, "atomic_type", "A", "kind of atomic: FETCH_AND_ADD or CMP_AND_SWAP")
	cli.HideDefaults(fs, "size", "iters", "duration", "mtu")
}

// Test returns the test that the flags in fs describe: its parameters and its runs, of which the
// last has the largest messages.
func (o *Options) Test(fs *pflag.FlagSet, op string) (*Params, []Run, error) {
	p := &Params{
		Op: op, Bytes: o.Size.Int(), QPs: o.qps.N, Depth: o.depth.N, MTU: roce.MTU(o.mtu.N),
		Bidirectional: o.bidirectional, Operation: findOperation(op),
	}
	if p.Operation == nil {
		return nil, nil, p.Check()
	}
	if err := o.checkCombination(fs, p.Operation); err != nil {
		return nil, nil, err
	}
	if p.Operation.Atomic {
		p.Atomic = o.atomic.Value
	}
	bytes := []int{p.Bytes}
	switch {
	case o.All:
		bytes = Sizes()
	case p.Bytes == 0:
		bytes = []int{p.Operation.Bytes}
	}
	run := o.run(p.Operation)
	var runs []Run
	for _, n := range bytes {
		p.Bytes, run.Bytes = n, n
		runs = append(runs, run)
	}
	return p, runs, p.Check()
}

// checkCombination returns an error for flags that exclude each other.
func (o *Options) checkCombination(fs *pflag.FlagSet, op *Operation) error {
	switch {
	case o.All && fs.Changed("size"):
		return errors.New("-a runs all sizes and -s one: use only one of them")
	case o.All && fs.Changed("duration"):
		return errors.New("-a runs a number of iterations: do not use -D with it")
	case fs.Changed("duration") && fs.Changed("iters"):
		return errors.New("-D runs for a time and -n for a number of messages: use only one of them")
	case o.Infinite && op.Latency:
		return errors.New("--run_infinitely measures bandwidth: do not use it with a latency test")
	case o.Infinite && (o.All || fs.Changed("iters")):
		return errors.New("--run_infinitely measures bandwidth with one size: do not use -a or -n with it")
	case op.Latency && fs.Changed("tx-depth"):
		return errors.New("a latency test has one outstanding message: do not use -t")
	case !op.Atomic && fs.Changed("atomic_type"):
		return fmt.Errorf("-A is for atomics: do not use it with %s", op.Name)
	}
	return nil
}

// run returns a run without its size.
func (o *Options) run(op *Operation) Run {
	r := Run{Iterations: o.Iterations.N, Duration: o.Duration.D, Endless: o.Infinite}
	switch {
	case r.Duration != 0:
	case o.Infinite:
		r.Duration = endlessInterval
	case r.Iterations != 0:
	case op.Latency:
		r.Iterations = latIterations
	default:
		r.Iterations = bwIterations
	}
	return r
}
