package flow

import (
	"fmt"
	"math"
	"time"
)

// Unbounded is the Response.Bound of a flow whose messages may wait forever.
const Unbounded = time.Duration(math.MaxInt64)

// Response is the worst case of a flow.
type Response struct {
	Flow string
	// Alone is the response time without other flows.
	Alone time.Duration
	// Blocking is how long parts of lower priorities, and the backlog, delay a message at most.
	Blocking time.Duration
	// Bound is the worst-case response time: from the arrival of a message, plus its jitter, until
	// it is done.
	Bound time.Duration
	// Offset is when the message arrives that reaches Bound, if all flows of the same and of higher
	// priorities begin to arrive at time 0, just after the largest part of a lower priority has
	// started.
	Offset time.Duration
	// Load is the share of the link that the flow and all of the same and of higher priorities
	// take.
	Load float64
}

// maxSteps bounds the work of Bound for a flow, in steps of its iterations. A flow that needs more
// is nearly overloaded, and counts as unbounded.
const maxSteps = 1 << 20

// maxRounds bounds how often Bound computes with the delays that it has found.
const maxRounds = 20

// Bound computes the worst-case response time of each flow under fixed priorities, FIFO among
// equals, and preemption between the parts of a message: the analysis of R. Bril, J. Lukkien and W.
// Verhaegh, Real-Time Systems 42, 2009, extended by equal priorities. A flow with a token bucket of
// b bytes and r bit/s on a link of rate C has the bound
//
//	(backlog + largest part of a lower priority + sum of b) / (C - sum of r) + delay
//
// where the first sum is about the flow and all others of the same and of higher priorities, and
// the second one about the others.
//
// The bounds hold without packet loss, and if nothing else uses the link and the processors keep
// up. Bound returns ErrConfig for values out of range.
func Bound(l Link, flows []Flow) ([]Response, error) {
	demands, err := demandsOf(&l, flows)
	if err != nil {
		return nil, err
	}
	out := make([]Response, len(flows))
	for i, d := range demands {
		out[i] = newAnalysis(&l, demands, i, true).response(d)
	}
	if l.Points {
		for l.postpone(demands, out) {
			for i, d := range demands {
				out[i] = newAnalysis(&l, demands, i, true).response(d)
			}
		}
		return out, nil
	}
	// The order of equals is that of their activations. It is FIFO as long as no message arrives
	// before the previous one of its flow has ended.
	for i, d := range demands {
		fifo := true
		for j, e := range demands {
			if e.f.Priority == d.f.Priority && (e.period == 0 || int64(out[j].Bound) > e.period) {
				fifo = false
			}
		}
		if !fifo {
			out[i] = newAnalysis(&l, demands, i, false).response(d)
		}
	}
	return out, nil
}

// postpone notes how late messages can be posted that wait for the acknowledgment of the previous
// one of their flow. It reports whether that has changed. Late messages can come closer together,
// and then delay others longer.
func (l *Link) postpone(demands []*demand, out []Response) (changed bool) {
	if l.Gap == 0 {
		return false
	}
	for i, d := range demands {
		late := add(int64(out[i].Bound), int64(l.Gap))
		switch {
		case d.period == 0 && d.burst == d.message && float64(late) <= float64(d.message)/d.rate:
			late = 0
		case d.period > 0 && late < math.MaxInt64:
			late = max(0, late-d.period)
		}
		if d.rounds++; d.rounds > maxRounds && late > d.late {
			late = math.MaxInt64
		}
		changed = changed || late > d.late
		d.late = max(d.late, late)
	}
	return changed
}

func demandsOf(l *Link, flows []Flow) ([]*demand, error) {
	if err := l.check(); err != nil {
		return nil, err
	}
	if len(flows) > maxFlows {
		return nil, fmt.Errorf("%w: %d flows, at most %d are possible", ErrConfig, len(flows),
			maxFlows)
	}
	var demands []*demand
	for i := range flows {
		if err := l.checkFlow(&flows[i]); err != nil {
			return nil, err
		}
		d, err := l.demand(&flows[i])
		if err != nil {
			return nil, err
		}
		demands = append(demands, d)
	}
	return demands, nil
}

// analysis is the busy period of one flow.
type analysis struct {
	own    *demand
	equal  []*demand // whose earlier messages are sent before, but not later ones
	higher []*demand // whose later messages are sent before, too
	block  int64
	gap    int64   // between two of the own messages
	last   int64   // of the own message, which is not preempted
	load   float64 // of all, with the own flow
	linear float64 // load of the token buckets in higher
	steps  int     // that were taken
}

func newAnalysis(l *Link, all []*demand, i int, fifo bool) *analysis {
	a := &analysis{own: all[i], last: all[i].last, load: all[i].rate}
	if l.Points {
		a.gap = int64(l.Gap)
	}
	lower, top := int64(0), 0
	for _, d := range all {
		top = max(top, d.f.Priority)
	}
	frame := int64(0) // the longest one of all classes but the highest one
	for j, d := range all {
		if d.f.Priority < top {
			frame = max(frame, d.packet)
		}
		switch {
		case j == i:
			continue
		case d.f.Priority < a.own.f.Priority:
			lower = max(lower, d.largest)
			continue
		case d.f.Priority == a.own.f.Priority && fifo && d.period > 0 && a.own.period > 0:
			a.equal = append(a.equal, d)
		default:
			a.higher = append(a.higher, d)
			if d.period == 0 {
				a.linear += d.rate
			}
		}
		a.load += d.rate
	}
	if l.InFlight > 1 && !l.Points {
		// Parts in flight share the link, so that higher priorities delay also the last part.
		a.last = 0
		for range l.InFlight - 1 {
			a.block = add(a.block, lower)
		}
	}
	a.block = add(add(a.block, lower), l.duration(int64(l.Backlog)))
	if lower > 0 {
		// The engine passes a frame to the port when no more than one is left there, so that two
		// frames of lower classes are sent first. One of them belongs to the part.
		a.block = add(a.block, frame)
	}
	return a
}

func (a *analysis) response(d *demand) Response {
	alone := add(d.message, d.delay)
	r := Response{Flow: d.f.Name, Alone: time.Duration(alone), Blocking: time.Duration(a.block),
		Load: a.load, Bound: Unbounded}
	switch {
	case a.load+a.gapLoad() >= 1:
		return r
	case d.period == 0:
		if w := a.bucket(); w < math.MaxInt64 {
			r.Bound = time.Duration(add(w, d.delay))
		}
		return r
	}
	if worst, at := a.periodic(); worst < math.MaxInt64 {
		r.Bound = time.Duration(add(add(worst, d.jitter), d.delay))
		r.Offset = time.Duration(at)
	}
	return r
}

// bucket returns the response time of a flow with a token bucket. Periodic flows count as token
// buckets, too.
func (a *analysis) bucket() int64 {
	messages := float64(a.own.burst) / float64(a.own.message)
	need := float64(a.block) + float64(a.own.burst) + (messages-1)*float64(a.gap)
	others := a.gapLoad()
	for _, d := range a.higher {
		others += d.rate
		if d.period == 0 {
			need += float64(d.burst) + d.rate*float64(d.late)
		} else {
			need += float64(d.message) * (1 + (float64(d.jitter)+float64(d.late))/float64(d.period))
		}
	}
	return ceil(need / (1 - others))
}

// gapLoad returns the share of the time in which the own flow waits for acknowledgments.
func (a *analysis) gapLoad() float64 {
	return a.own.rate * float64(a.gap) / float64(a.own.message)
}

// ceil rounds up, with a margin for the precision of floating point.
func ceil(x float64) int64 {
	if x = math.Ceil(x * (1 + 1e-12)); x >= math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(x)
}

// count returns how many messages of a periodic flow arrive in a closed interval of length t.
func (d *demand) count(t int64) int64 { return add(t, d.jitter)/d.period + 1 }

// posted returns how many messages of a periodic flow are posted in a closed interval of length t.
func (d *demand) posted(t int64) int64 { return d.count(add(t, d.late)) }

// posts returns the time that the messages take that are posted within a token bucket at once.
func (d *demand) posts() int64 {
	if d.late == 0 {
		return d.burst
	}
	return add(d.burst, ceil(d.rate*float64(d.late)))
}

// periodic returns the response time from the actual arrival, and the arrival that reaches it.
func (a *analysis) periodic() (worst, at int64) {
	end := a.busy()
	if end == math.MaxInt64 {
		return end, 0
	}
	for _, d := range append([]*demand{a.own}, a.equal...) {
		for k := int64(0); ; k++ {
			t := max(k*d.period-d.jitter, 0)
			if t >= end && k > 0 {
				break
			}
			finish := a.finish(t)
			if finish == math.MaxInt64 {
				return math.MaxInt64, 0
			}
			if finish-t > worst {
				worst, at = finish-t, t
			}
		}
	}
	return worst, at
}

// busy returns the length of the longest time in which the link is busy with the flow and those of
// the same and of higher priorities.
func (a *analysis) busy() int64 {
	all := append(append([]*demand{a.own}, a.equal...), a.higher...)
	length := int64(1)
	for a.step(len(all)) {
		need := a.block
		for _, d := range all {
			late, message := d.late, d.message
			if d == a.own {
				late, message = 0, add(message, a.gap)
			}
			if d.period == 0 {
				need = add(need, d.posts())
				continue
			}
			n := add(add(add(length, d.jitter), late), d.period-1) / d.period
			need = add(need, times(n, message))
		}
		next := max(a.scale(need), length)
		if next == length || next == math.MaxInt64 {
			return next
		}
		length = next
	}
	return math.MaxInt64
}

// finish returns when a message has ended that arrives at time t of a busy period, if as much as
// possible is sent before.
func (a *analysis) finish(t int64) int64 {
	own := a.own.count(t)
	base := add(a.block, times(own, a.own.message)-a.last)
	base = add(base, times(own-1, a.gap))
	for _, d := range a.equal {
		base = add(base, times(d.posted(t), d.message))
	}
	for _, d := range a.higher {
		if d.period == 0 {
			base = add(base, d.posts())
		}
	}
	// The start of the last part: until then, messages of higher priorities are sent before.
	start := t
	for a.step(1 + len(a.equal) + len(a.higher)) {
		need := base
		for _, d := range a.higher {
			if d.period > 0 {
				need = add(need, times(d.posted(start), d.message))
			}
		}
		next := a.scale(need)
		if next == math.MaxInt64 {
			return next
		}
		if next <= start {
			return max(add(next, a.last), add(t, a.own.message))
		}
		start = next
	}
	return math.MaxInt64
}

// step counts the work of one iteration, and reports whether it may be done.
func (a *analysis) step(work int) bool {
	a.steps += work
	return a.steps <= maxSteps
}

// scale returns how long work takes while the token buckets of higher priorities use their rates.
func (a *analysis) scale(need int64) int64 {
	if a.linear == 0 || need == math.MaxInt64 {
		return need
	}
	return ceil(float64(need) / (1 - a.linear))
}

// times multiplies numbers that are not negative. It stops at the greatest one.
func times(n, x int64) int64 {
	if x > 0 && n > math.MaxInt64/x {
		return math.MaxInt64
	}
	return n * x
}
