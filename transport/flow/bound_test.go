package flow

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/transport/flow/core"
)

// sim runs flows on an ideal link: a core.Machine decides, and each part takes its time. It returns
// the longest response time of each flow.
type sim struct {
	m       core.Machine
	pool    core.PoolID
	demands []*demand
	arrive  [][]int64 // by flow: when its messages arrive, ascending
	due     [][]int64 // by flow: when its messages count as arrived, without jitter
	part    []int     // by flow: parts that were sent
	done    []int     // by flow: messages
	worst   []int64
}

func newSim(t *testing.T, l Link, flows []Flow, arrive, due [][]int64) *sim {
	t.Helper()
	demands, err := demandsOf(&l, flows)
	if err != nil {
		t.Fatal(err)
	}
	s := &sim{demands: demands, arrive: arrive, due: due, part: make([]int, len(flows)),
		done: make([]int, len(flows)), worst: make([]int64, len(flows))}
	if s.pool, err = s.m.AddLink(1); err != nil {
		t.Fatal(err)
	}
	for _, f := range flows {
		source, err := s.m.AddSource(f.Name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.m.AddTask(core.TaskConfig{Name: f.Name, Pool: s.pool, Priority: f.Priority,
			Inputs: []core.Input{{Source: source, Synchron: true}}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.m.Start(0); err != nil {
		t.Fatal(err)
	}
	return s
}

// run sends all messages.
func (s *sim) run() {
	next := make([]int, len(s.arrive))
	busy := core.TaskID(-1)
	var now, end int64
	for {
		// Arrivals come before the end of a part at the same time, which is the worst case.
		first, from := int64(-1), -1
		for i, a := range s.arrive {
			if next[i] < len(a) && (first < 0 || a[next[i]] < first) {
				first, from = a[next[i]], i
			}
		}
		switch {
		case from >= 0 && (busy < 0 || first <= end):
			now = first
			next[from]++
			s.m.Push(now, core.SourceID(from))
			if busy < 0 && s.same(next, now) {
				continue // all arrivals of this instant come before the decision
			}
		case busy >= 0:
			now = end
			s.m.Free(busy)
			i := int(busy)
			if s.part[i]++; s.part[i] < len(s.demands[i].parts) {
				s.m.Requeue(now, busy)
			} else {
				took := now - s.due[i][s.done[i]] + s.demands[i].delay
				s.worst[i] = max(s.worst[i], took)
				s.done[i]++
				s.part[i] = 0
				s.m.Finish(now, busy)
			}
			busy = -1
		default:
			return
		}
		if busy < 0 {
			if id, _, ok := s.m.Take(now, s.pool); ok {
				busy, end = id, now+s.demands[id].parts[s.part[id]]
			}
		}
	}
}

// same reports whether another message arrives now.
func (s *sim) same(next []int, now int64) bool {
	for i, a := range s.arrive {
		if next[i] < len(a) && a[next[i]] == now {
			return true
		}
	}
	return false
}

// periodic returns the arrivals of a flow from a phase on, until end.
func periodicArrivals(phase, period, end int64) (list []int64) {
	for at := phase; at < end; at += period {
		list = append(list, at)
	}
	return list
}

var periods = []time.Duration{time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond,
	5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 33333 * time.Microsecond,
	50 * time.Millisecond}

var gigabit = Link{Rate: 1e9, Delay: 3 * time.Microsecond}

// randomFlows returns up to n flows that load the link up to load.
func randomFlows(r *rand.Rand, n int, load float64) []Flow {
	n = 2 + r.IntN(n-1)
	flows := make([]Flow, n)
	shares := make([]float64, n)
	sum := 0.0
	for i := range shares {
		shares[i] = 0.05 + r.Float64()
		sum += shares[i]
	}
	for i := range flows {
		period := periods[r.IntN(len(periods))]
		size := int(shares[i] / sum * load * 0.9 * period.Seconds() * 1e9 / 8)
		f := Flow{Name: fmt.Sprintf("flow %d", i), Priority: r.IntN(8), Size: max(size, 1),
			Period: period, Deadline: 1}
		switch r.IntN(3) {
		case 0:
			f.Part = 1 + r.IntN(max(f.Size, 1))
			f.Part = max(f.Part, f.Size/50)
		case 1:
			for left := f.Size; left > 0; {
				part := 1 + r.IntN(left)
				if len(f.Split) == 9 {
					part = left
				}
				f.Split = append(f.Split, part)
				left -= part
			}
		}
		flows[i] = f
	}
	return flows
}

// critical returns the arrivals that lead to the bound of flow i: the largest part of a lower
// priority has just started when all others arrive.
func critical(demands []*demand, i int, offset, end int64) [][]int64 {
	own := demands[i]
	arrive := make([][]int64, len(demands))
	block := -1
	for j, d := range demands {
		if d.f.Priority < own.f.Priority && (block < 0 || d.largest > demands[block].largest) {
			block = j
		}
	}
	// start is when the largest part starts.
	start := int64(0)
	if block >= 0 {
		for _, p := range demands[block].parts {
			if p == demands[block].largest {
				break
			}
			start += p
		}
	}
	for j, d := range demands {
		switch {
		case j == block:
			arrive[j] = []int64{0}
		case j == i:
			arrive[j] = periodicArrivals(start+1+offset%d.period, d.period, start+end)
		case d.f.Priority >= own.f.Priority:
			arrive[j] = periodicArrivals(start+1, d.period, start+end)
		}
	}
	return arrive
}

// TestBoundIsSafeAndTight compares bounds with simulations of random flows: with random phases no
// response exceeds its bound, and with the phases of the critical instant it reaches at least 0.95
// of it.
func TestBoundIsSafeAndTight(t *testing.T) {
	seeds := uint64(1500)
	if testing.Short() {
		seeds = 150
	}
	checked, multiple, later := 0, 0, 0
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 7))
		l := gigabit
		l.Points = seed%2 == 0
		l.Gap = time.Duration(r.IntN(20)) * time.Microsecond
		flows := randomFlows(r, 32, 0.2+0.75*r.Float64())
		for i := range flows {
			if l.Points {
				flows[i].Split = nil
			}
		}
		if l.Points {
			l.Gap = 0
		}
		bounds, err := Bound(l, flows)
		if err != nil {
			t.Fatal(err)
		}
		arrive := make([][]int64, len(flows))
		for i, f := range flows {
			arrive[i] = periodicArrivals(r.Int64N(int64(f.Period)), int64(f.Period), 60e6)
		}
		s := newSim(t, l, flows, arrive, arrive)
		s.run()
		for i := range flows {
			if s.worst[i] > int64(bounds[i].Bound) {
				t.Fatalf("seed %d: %s took %v, bound %v", seed, flows[i].Name,
					time.Duration(s.worst[i]), bounds[i].Bound)
			}
		}
		i := r.IntN(len(flows))
		if bounds[i].Bound > 150*time.Millisecond || !fifo(flows, bounds, i) {
			continue
		}
		// The flow itself comes last, so that its equals are before it at the same time.
		flows[i], flows[len(flows)-1] = flows[len(flows)-1], flows[i]
		bounds[i], bounds[len(flows)-1] = bounds[len(flows)-1], bounds[i]
		i = len(flows) - 1
		demands, err := demandsOf(&l, flows)
		if err != nil {
			t.Fatal(err)
		}
		b := bounds[i]
		end := int64(b.Offset+b.Bound) + 1
		arrive = critical(demands, i, int64(b.Offset), end)
		s = newSim(t, l, flows, arrive, arrive)
		s.run()
		got := time.Duration(s.worst[i])
		if got > b.Bound || float64(got) < 0.95*float64(b.Bound) {
			t.Fatalf("seed %d: %s took %v at the critical instant, bound %v (offset %v)", seed,
				flows[i].Name, got, b.Bound, b.Offset)
		}
		checked++
		if b.Offset > 0 {
			later++
		}
		if b.Bound > flows[i].Period {
			multiple++
		}
	}
	if checked < int(seeds)/3 || later == 0 || multiple == 0 {
		t.Errorf("%d critical instants, %d with later messages, %d longer than a period", checked,
			later, multiple)
	}
}

// fifo reports whether the messages of the priority of flow i are sent in the order of arrival.
func fifo(flows []Flow, bounds []Response, i int) bool {
	for j, f := range flows {
		if j != i && f.Priority == flows[i].Priority && (bounds[j].Bound > f.Period ||
			bounds[i].Bound > flows[i].Period) {
			return false
		}
	}
	return true
}

// TestBoundWithJitterAndBuckets checks that no response exceeds its bound with jitter and token
// buckets that send as early as they may.
func TestBoundWithJitterAndBuckets(t *testing.T) {
	seeds := uint64(800)
	if testing.Short() {
		seeds = 100
	}
	best := 0.0
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 9))
		flows := randomFlows(r, 12, 0.2+0.6*r.Float64())
		arrive, due := make([][]int64, len(flows)), make([][]int64, len(flows))
		const end = 100e6
		for i := range flows {
			f := &flows[i]
			phase := int64(1)
			if r.IntN(2) == 0 {
				phase += r.Int64N(int64(f.Period))
			}
			due[i] = periodicArrivals(phase, int64(f.Period), end)
			switch r.IntN(3) {
			case 0:
				f.Jitter = time.Duration(r.Int64N(int64(f.Period)))
				arrive[i] = jittered(r, due[i], int64(f.Jitter), seed%2 == 0)
			case 1:
				burst := 1 + r.IntN(3)
				f.Burst = burst * f.Size
				f.Rate = int64(float64(f.Size) * 8 / f.Period.Seconds())
				f.Period = 0
				for n := int64(0); ; n++ {
					at := phase
					if over := n - int64(burst) + 1; over > 0 {
						at += over * int64(f.Size) * 8e9 / f.Rate
					}
					if at > end {
						break
					}
					arrive[i] = append(arrive[i], at)
				}
				due[i] = arrive[i]
			default:
				arrive[i] = due[i]
			}
		}
		l := gigabit
		l.Gap = time.Duration(r.IntN(10)) * time.Microsecond
		bounds, err := Bound(l, flows)
		if err != nil {
			t.Fatal(err)
		}
		s := newSim(t, l, flows, arrive, due)
		s.run()
		for i := range flows {
			if s.worst[i] > int64(bounds[i].Bound) {
				t.Fatalf("seed %d: %+v took %v, bound %v", seed, flows[i],
					time.Duration(s.worst[i]), bounds[i].Bound)
			}
			if bounds[i].Bound < Unbounded {
				best = max(best, float64(s.worst[i])/float64(bounds[i].Bound))
			}
		}
	}
	if best < 0.9 {
		t.Errorf("the greatest response is %.2f of its bound", best)
	}
}

// jittered delays arrivals at random, or the first one by the jitter and others not, which is the
// worst case.
func jittered(r *rand.Rand, due []int64, jitter int64, worst bool) (list []int64) {
	last := int64(0)
	for i, at := range due {
		switch {
		case worst && i == 0:
			at += jitter
		case !worst:
			at += r.Int64N(jitter + 1)
		}
		last = max(last, at)
		list = append(list, last)
	}
	return list
}

// TestTokenBuckets compares with values that were computed by hand.
func TestTokenBuckets(t *testing.T) {
	// Messages of 1,000 bytes take 1000 + 32 + 20 bytes in two packets of at most 1,000 bytes:
	// 1,052 bytes and no overhead.
	l := Link{Rate: 8e9, MTU: 1 << 15, Overhead: 1, Delay: 500, Backlog: 100, Points: true}
	bucket := func(name string, priority, burst int, share float64) Flow {
		return Flow{Name: name, Priority: priority, Size: 1000, Burst: burst * 1000,
			Rate: int64(share * 8e9 * 1000 / 1053)}
	}
	bounds, err := Bound(l, []Flow{bucket("high", 2, 3, 0.25), bucket("a", 1, 1, 0.25),
		bucket("b", 1, 2, 0.25), bucket("low", 0, 1, 0.1)})
	if err != nil {
		t.Fatal(err)
	}
	// The longest part of a lower class, and one more frame.
	for i, want := range []float64{
		100 + 2*1053 + 3*1053 + 500,
		(100+2*1053+(3+1+2)*1053)/(1-0.5) + 500,
		(100+2*1053+(3+1+2)*1053)/(1-0.5) + 500,
		(100+(3+1+2+1)*1053)/(1-0.75) + 500,
	} {
		if got := float64(bounds[i].Bound); got < want || got > want*1.0001+2 {
			t.Errorf("%s: %v, want %v ns", bounds[i].Flow, bounds[i].Bound, want)
		}
	}
}

// The worst case need not be the first message of a busy period: the last part of low is not
// preempted, and delays a message of high, which delays the next ones of low. These flows, with
// other units, are similar to the example of Bril et al.
func TestDeferredPreemption(t *testing.T) {
	l := Link{Rate: 8e9, MTU: 1 << 15, Overhead: 4}
	const first, last = headerLen + rethLen + 4, rethLen + immLen + 4 // headers of parts
	flows := []Flow{
		{Name: "high", Priority: 1, Size: 2000 - first - immLen, Period: 5000},
		{Name: "low", Priority: 0, Size: 1200 - first + 3000 - last, Period: 7100,
			Split: []int{1200 - first, 3000 - last}},
	}
	bounds, err := Bound(l, flows)
	if err != nil {
		t.Fatal(err)
	}
	// The fifth message arrives at 28400. Before its last part, 1200 + 4 * 4200 of its own flow and
	// 7 * 2000 of high are sent.
	if bounds[0].Bound != 2000+3000 || bounds[1].Bound != 32000+3000-28400 ||
		bounds[1].Offset != 28400 {
		t.Errorf("bounds %+v", bounds)
	}
}

// A nearly overloaded link ends in time, without a bound.
func TestBoundGivesUp(t *testing.T) {
	// A message with a high priority takes 999,968 ns.
	bounds, err := Bound(Link{Rate: 1e9, MTU: 1<<16 - 1}, []Flow{
		{Name: "high", Priority: 1, Size: 124780, Period: 999970},
		{Name: "low", Size: 1 << 20, Part: 1 << 10, Period: core.MaxPeriod},
	})
	if err != nil {
		t.Fatal(err)
	}
	if bounds[0].Bound == Unbounded || bounds[1].Bound != Unbounded || bounds[1].Load >= 1 {
		t.Errorf("bounds %+v, want one for the high priority only", bounds)
	}
}

func TestAdmit(t *testing.T) {
	l := Link{Rate: 978e6, Delay: 5 * time.Microsecond, Points: true}
	video := Flow{Name: "video", Priority: 1, Size: 2 << 20, Period: 33 * time.Millisecond}
	brake := Flow{Name: "brake", Priority: 7, Size: 64, Period: time.Millisecond,
		Deadline: 500 * time.Microsecond}
	_, err := Admit(l, []Flow{video, brake})
	var a *AdmitError
	if !errors.Is(err, ErrAdmit) || !errors.As(err, &a) || len(a.Misfits) != 1 {
		t.Fatalf("Admit() = %v, want that one flow does not fit", err)
	}
	m := a.Misfits[0]
	if m.Flow != "brake" || m.Deadline != brake.Deadline || m.Excess != m.Bound-m.Deadline ||
		m.Bound < 18*time.Millisecond || m.Bound > 20*time.Millisecond ||
		!strings.Contains(err.Error(), `flow "brake" takes up to`) {
		t.Errorf("Admit() = %v", err)
	}
	video.Part = 32 << 10
	bounds, err := Admit(l, []Flow{video, brake})
	if err != nil || bounds[1].Bound > brake.Deadline {
		t.Errorf("Admit() with parts = %+v, %v", bounds, err)
	}
	for _, c := range []struct {
		flows []Flow
		says  string
	}{
		{[]Flow{{Name: "long", Size: 4 << 20, Period: time.Second,
			Deadline: 30 * time.Millisecond}},
			`flow "long" takes 3`},
		{[]Flow{video, {Name: "more", Size: 3 << 20, Period: 33 * time.Millisecond}},
			`flow "more" has no bound`},
		{[]Flow{video, {Name: "greedy", Priority: 2, Size: 1000, Burst: 1000, Rate: 900e6}},
			`flow "video" has no bound`},
		// A flow without a deadline is not late.
		{[]Flow{{Name: "log", Size: 1 << 20, Burst: 1 << 20, Rate: 990e6}},
			`flow "log" has no bound: flows of its and higher priorities need 1`},
	} {
		if _, err := Admit(l, c.flows); !errors.Is(err, ErrAdmit) ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("Admit() = %v, want %q", err, c.says)
		}
	}
}

// The link is not the reason that a flow has no bound if what activates it has none.
func TestMisfitOfChain(t *testing.T) {
	m := Misfit{Flow: "result", Deadline: time.Second, Bound: Unbounded, Load: 0.027}
	if want := "2.7 % of the link, but a flow that activates"; !strings.Contains(m.String(), want) {
		t.Errorf("String() = %q, want %q", m.String(), want)
	}
}

func TestModelErrors(t *testing.T) {
	good := Flow{Name: "x", Size: 100, Period: time.Millisecond}
	for _, c := range []struct {
		name string
		link func(l *Link)
		flow func(f *Flow)
		says string
	}{
		{"rate", func(l *Link) { l.Rate = 0 }, nil, "0 bit/s"},
		{"MTU", func(l *Link) { l.MTU = -1 }, nil, "path MTU of -1"},
		{"overhead", func(l *Link) { l.Overhead = -1 }, nil, "overhead"},
		{"gap", func(l *Link) { l.Gap = -1 }, nil, "the gap -1ns"},
		{"in flight", func(l *Link) { l.InFlight = 99 }, nil, "99 parts"},
		{"priority", nil, func(f *Flow) { f.Priority = -1 }, `flow "x" has the priority -1`},
		{"size", nil, func(f *Flow) { f.Size = 0 }, "messages of 0 bytes"},
		{"period", nil, func(f *Flow) { f.Period = 0 }, "period 0s"},
		{"jitter", nil, func(f *Flow) { f.Jitter = -1 }, "jitter"},
		{"deadline", nil, func(f *Flow) { f.Deadline = -1 }, "deadline"},
		{"both", nil, func(f *Flow) { f.Rate = 1 }, "choose one"},
		{"burst", nil, func(f *Flow) { f.Period, f.Rate, f.Burst = 0, 1, 99 }, "token bucket"},
		{"parts", nil, func(f *Flow) { f.Size, f.Part = MaxSize, 1 }, "more than 65536 parts"},
		{"split", nil, func(f *Flow) { f.Split = []int{50, 49} }, "add up to 99"},
	} {
		l, f := gigabit, good
		if c.link != nil {
			c.link(&l)
		}
		if c.flow != nil {
			c.flow(&f)
		}
		if _, err := Bound(l, []Flow{f}); !errors.Is(err, ErrConfig) ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: Bound() = %v, want %q", c.name, err, c.says)
		}
	}
	if _, err := Bound(gigabit, make([]Flow, maxFlows+1)); !errors.Is(err, ErrConfig) {
		t.Errorf("Bound() = %v, want ErrConfig", err)
	}
}
