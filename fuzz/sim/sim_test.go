package sim

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/gorxe/gorxe/roce"
)

var (
	seedFlag  = flag.Int64("sim.seed", -1, "run the scenario of this seed alone")
	traceFlag = flag.Bool("sim.trace", false, "with -sim.seed: print every frame and completion")
	countFlag = flag.Int("sim.n", 0, "run this many seeds")
	forFlag   = flag.Duration("sim.for", 0, "run for this long")
	fromFlag  = flag.Uint64("sim.from", 0, "the first seed")
	anyFlag   = flag.Bool("sim.random", false, "begin with a random seed")
)

// bounded is how long the test runs without flags.
const bounded = 15 * time.Second

// maxRealTime bounds one seed on the slowest machine. Virtual time does not pass in an endless
// loop.
const maxRealTime = 5 * time.Minute

// run is Run with a limit of real time.
func run(o Options) (Result, error) {
	watch := time.AfterFunc(maxRealTime, func() { panic("hangs: " + replay(o.Seed)) })
	defer watch.Stop()
	return Run(o)
}

// totals sums up results.
type totals struct {
	seeds, failed                         int
	packets, frames, bytes, ops, failures uint64
	selective, goBackN, watched           uint64
	statuses                              map[roce.Status]uint64
	opcodes                               map[roce.WCOpcode]uint64
	crimes                                map[string]uint64
	counters                              map[string]uint64
	began                                 time.Time
}

func newTotals() *totals {
	return &totals{statuses: map[roce.Status]uint64{}, opcodes: map[roce.WCOpcode]uint64{},
		crimes: map[string]uint64{}, counters: map[string]uint64{}, began: time.Now()}
}

func (s *totals) add(r *Result) {
	s.seeds++
	s.packets += r.Packets
	s.frames += r.Frames
	s.bytes += r.Bytes
	s.ops += r.Ops
	s.failures += r.Failures
	s.selective += r.Selective
	s.goBackN += r.GoBackN
	s.watched += r.Watched
	for st, n := range r.Statuses {
		s.statuses[st] += n
	}
	for op, n := range r.Opcodes {
		s.opcodes[op] += n
	}
	for k, n := range r.Crimes {
		s.crimes[k] += n
	}
	for i := range r.Counters {
		for name, n := range r.Counters[i].All() {
			s.counters[name] += n
		}
	}
}

func (s *totals) String() string {
	d := time.Since(s.began)
	return fmt.Sprintf("%d seeds, %d packets, %.1f GB, %d completions, %d connections killed; %.0f seeds/s, %.0f packets/s",
		s.seeds, s.packets, float64(s.bytes)/1e9, s.ops, s.failures, float64(s.seeds)/d.Seconds(),
		float64(s.packets)/d.Seconds())
}

func (s *totals) details() string {
	out := fmt.Sprintf("%8d RC connections with selective repeat, %d without\n", s.selective,
		s.goBackN)
	out += fmt.Sprintf("%8d WRITEs watched while they became visible\n", s.watched)
	for _, st := range slices.Sorted(maps.Keys(s.statuses)) {
		out += fmt.Sprintf("%8d %v\n", s.statuses[st], st)
	}
	for _, op := range slices.Sorted(maps.Keys(s.opcodes)) {
		out += fmt.Sprintf("%8d completed: %v\n", s.opcodes[op], op)
	}
	for _, k := range slices.Sorted(maps.Keys(s.crimes)) {
		out += fmt.Sprintf("%8d crime: %s\n", s.crimes[k], k)
	}
	for _, k := range slices.Sorted(maps.Keys(s.counters)) {
		out += fmt.Sprintf("%8d %s\n", s.counters[k], k)
	}
	return out
}

// replay returns the command that runs a seed again.
func replay(seed uint64) string {
	return fmt.Sprintf("make sim SEED=%d, or with every frame: go test ./fuzz/sim -run 'TestSim$' -sim.seed=%d -sim.trace", seed, seed)
}

// TestSim runs as many scenarios as the flags say, or for a limited time.
func TestSim(t *testing.T) {
	if *seedFlag >= 0 {
		o := Options{Seed: uint64(*seedFlag)}
		if *traceFlag {
			o.Trace = os.Stdout
		}
		r, err := run(o)
		if err != nil {
			t.Fatalf("seed %d: %v", o.Seed, err)
		}
		t.Logf("seed %d: hash %016x, %v of virtual time, %d packets, %d completions", o.Seed,
			r.Hash, r.Virtual, r.Packets, r.Ops)
		return
	}
	n, limit := *countFlag, *forFlag
	if n == 0 && limit == 0 {
		limit = bounded
		if testing.Short() {
			limit = bounded / 5
		}
	}
	sum := newTotals()
	shown := time.Now()
	from := *fromFlag
	if *anyFlag {
		from = rand.Uint64N(1 << 40)
	}
	t.Logf("seeds from %d on", from)
	for seed := from; (n == 0 || sum.seeds < n) &&
		(limit == 0 || time.Since(sum.began) < limit); seed++ {
		r, err := run(Options{Seed: seed})
		sum.add(&r)
		if err != nil {
			sum.failed++
			t.Errorf("seed %d: %v\nreplay: %s", seed, err, replay(seed))
			if sum.failed >= 10 {
				break
			}
		}
		if time.Since(shown) > 10*time.Second {
			shown = time.Now()
			fmt.Fprintf(os.Stderr, "sim: %v\n", sum)
		}
	}
	t.Logf("%v\n%s", sum, sum.details())
}

// TestDeterminism checks that the same seed gives the same scenario to the last frame.
func TestDeterminism(t *testing.T) {
	for seed := range uint64(60) {
		a, err := run(Options{Seed: seed})
		if err != nil {
			continue // TestSim reports it
		}
		b, err := run(Options{Seed: seed})
		if err != nil || a.Hash != b.Hash || a.Packets != b.Packets || a.Virtual != b.Virtual {
			t.Errorf("seed %d: %016x, %d packets, %v; then %016x, %d packets, %v (%v)", seed,
				a.Hash, a.Packets, a.Virtual, b.Hash, b.Packets, b.Virtual, err)
		}
	}
}
