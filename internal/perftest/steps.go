package perftest

// Verb is the operation that a test measures.
type Verb uint8

// The verbs.
const (
	Write Verb = iota
	Read
	Send
	Atomic
)

// Test holds the parameters that change the protocol. The users must give them to both sides.
type Test struct {
	Verb          Verb
	Latency       bool // false: bandwidth
	Bidirectional bool // -b
	All           bool // -a: a run for each size
	Duration      bool // -D
}

// step is one step of the protocol after each side has sent its keys for the first time.
type step uint8

const (
	stepSync   step = iota // barrier: the key of the first queue pair
	stepKeys               // the keys of all queue pairs
	stepReport             // the reports of both sides
)

// steps holds the steps of a test: when the queue pairs are connected, before and after each run,
// and at the end.
type steps struct {
	start, before, after, end []step
}

// steps returns the steps of perftest's program for t. A latency test has one queue pair, so
// stepKeys and stepSync are the same for it.
func (t Test) steps() steps {
	switch {
	case t.Latency && t.Verb == Send:
		return steps{start: []step{stepSync, stepKeys}, before: []step{stepSync},
			end: []step{stepSync}}
	case t.Latency && t.Verb == Write:
		// The server counts the messages and closes the connection, so there is no step at the end.
		return steps{start: []step{stepKeys, stepKeys, stepSync}}
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
