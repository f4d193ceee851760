package deterministic

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// phases is when the three messages of a run are sent, by priority.
type phases [3]time.Duration

// window is the time in which the messages of a run begin, in transmission times of one message.
// The paper does not say how its tasks are aligned. With 12, each task uses a twelfth of the link.
const window = 12

// randomPhases returns the phases of independent tasks.
func randomPhases(r *rand.Rand, size int) (p phases) {
	for i := range p {
		p[i] = time.Duration(r.Int64N(int64(window * transmission(size))))
	}
	return p
}

// apart are phases in which no messages of at most 32 MiB meet.
var apart = phases{medium: time.Second, high: 2 * time.Second}

// shared returns how long the message of the highest priority takes on an ideal link that all
// messages share equally.
func (p phases) shared(size int) time.Duration {
	now, left := time.Duration(0), phases{}
	for i := range left {
		left[i] = transmission(size)
	}
	for {
		active, next := 0, time.Duration(math.MaxInt64) // when the number of messages changes
		for i := range p {
			switch {
			case p[i] > now:
				next = min(next, p[i])
			case left[i] > 0:
				active++
			}
		}
		for i := range p {
			if p[i] <= now && left[i] > 0 {
				next = min(next, now+left[i]*time.Duration(active))
			}
		}
		for i := range p {
			if p[i] <= now && left[i] > 0 {
				left[i] = max(0, left[i]-(next-now)/time.Duration(active))
			}
		}
		if now = next; left[high] == 0 {
			return now - p[high]
		}
	}
}

// slowest returns the n runs in which the message of the highest priority takes longest if all
// share the link.
func slowest(runs []phases, size, n int) []phases {
	runs = slices.Clone(runs)
	slices.SortStableFunc(runs,
		func(a, b phases) int { return int(b.shared(size) - a.shared(size)) })
	return runs[:min(n, len(runs))]
}

// adversarial are phases in which the messages of all priorities meet.
func adversarial(size int) (list []phases) {
	t := transmission(size)
	for _, p := range [][3]time.Duration{{0, 0, 0}, {0, 1, 2}, {2, 1, 0}, {0, 0, 1}, {1, 0, 2}} {
		list = append(list, phases{p[0] * time.Nanosecond, p[1], p[2]})
	}
	for _, share := range []int{1, 3, 7} { // in the middle of a message of lower priorities
		list = append(list, phases{0, t * time.Duration(share) / 16, t * time.Duration(share) / 8})
	}
	return list
}

// latencies sends messages of three priorities in each run and returns how long those of the
// highest priority take.
func latencies(ctx context.Context, m method, seed uint64, size int, runs []phases) (
	list []time.Duration, err error) {
	return list, simulate(m, seed, func(n *network) error {
		streams, err := n.three(func(int) streamConfig {
			return streamConfig{size: size,
				queue: 1}
		})
		if err != nil {
			return err
		}
		streams[high].arrived = func(sent, received int64) {
			list = append(list, time.Duration(received-sent))
		}
		return n.run(ctx, func() error {
			for k, p := range runs {
				if err := n.once(ctx, streams, p, k+1); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// The streams of three.
const (
	low = iota
	medium
	high
)

// three adds a stream of each of three priorities.
func (n *network) three(conf func(i int) streamConfig) (list []*stream, err error) {
	for i, name := range []string{low: "low", medium: "medium", high: "high"} {
		c := conf(i)
		c.name, c.priority = name, []int{low: 0, medium: 4, high: 7}[i]
		s, err := n.add(c)
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

// pause is the time between two runs, in which acknowledgments and credits arrive.
const pause = time.Millisecond

// once sends a message of each stream at its phase, and waits until each has received goal
// messages.
func (n *network) once(ctx context.Context, streams []*stream, p phases, goal int) error {
	start := n.now()
	order := []int{low, medium, high}
	slices.SortStableFunc(order, func(a, b int) int { return int(p[a] - p[b]) })
	for _, i := range order {
		if err := n.sleepUntil(start + int64(p[i])); err != nil {
			return err
		}
		if err := streams[i].send(); err != nil {
			return err
		}
	}
	err := n.until(ctx, func() bool {
		for _, s := range streams {
			if s.count < goal {
				return false
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	return n.bed.Sim.Sleep(pause)
}

// alone returns how long a message takes alone.
func alone(ctx context.Context, m method, seed uint64, size int) (took time.Duration, err error) {
	list, err := latencies(ctx, m, seed, size, []phases{apart})
	if err != nil {
		return 0, err
	}
	return list[0], nil
}
