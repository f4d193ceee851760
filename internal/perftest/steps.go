package perftest

// Verb is what a test measures.
type Verb uint8

// The verbs.
const (
	Write Verb = iota
	Read
	Send
	Atomic
)

// Test is what both ends of perftest have to be told alike by their users, as
// far as it changes the exchange.
type Test struct {
	Verb          Verb
	Latency       bool // else bandwidth
	Bidirectional bool // -b
	All           bool // -a: a run for each size
	Duration      bool // -D
}

// step is one step of the exchange after the first round of keys.
type step uint8

const (
	stepSync   step = iota // the first queue pair's key: a barrier
	stepKeys               // every queue pair's key
	stepReport             // what both ends measured
)

// steps are those of a test: when the queue pairs are connected, around each
// run, and at the end.
type steps struct {
	start, before, after, end []step
}

// steps is the table of what perftest's programs do. A latency test has one
// queue pair, so that its keys and its barriers are the same.
func (t Test) steps() steps {
	switch {
	case t.Latency && t.Verb == Send:
		return steps{start: []step{stepSync, stepKeys}, before: []step{stepSync}, end: []step{stepSync}}
	case t.Latency && t.Verb == Write:
		return steps{start: []step{stepKeys, stepKeys, stepSync}} // its servers count the messages, and leave
	case t.Latency:
		return steps{start: []step{stepKeys, stepKeys, stepSync}, end: []step{stepSync}}
	}
	s := steps{start: []step{stepKeys, stepSync}, end: []step{stepSync}}
	if t.Verb == Send {
		s.start = []step{stepSync, stepKeys}
		s.before = []step{stepSync}
	}
	switch {
	case !t.Bidirectional && t.Verb != Send:
		s.end = []step{stepSync, stepReport, stepSync}
		return s
	case t.Bidirectional && t.Verb != Send:
		s.before = []step{stepSync}
		if t.All {
			s.after = []step{stepSync}
		}
	}
	if t.Bidirectional && !t.Duration {
		s.after = append(s.after, stepReport)
	}
	if t.All && t.Verb == Send {
		s.after = append(s.after, stepSync)
	}
	return s
}
