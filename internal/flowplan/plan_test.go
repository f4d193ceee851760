package flowplan

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/transport/flow"
)

const example = `
link:
  rate: 978Mb/s
  mtu: 1024
  overhead: 58
  delay: 5us
  gap: 11us
  backlog: 2KiB
  in_flight: 1
flows:
  - name: brake
    priority: 7
    size: 64
    period: 1ms
    phase: 100us
    jitter: 10us
    deadline: 500us
    on_late: retry
    retries: 2
    max_age: 1ms
  - {name: camera, priority: 2, size: 256KiB, part: 16KiB, period: 10ms, on_late: drop}
  - {name: log, size: 64KiB, split: [32KiB, 32KiB], burst: 128KiB, rate: 50Mb/s}
`

func parsed(t testing.TB, text string) *Plan {
	t.Helper()
	p, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestParse(t *testing.T) {
	got := parsed(t, example)
	want := &Plan{
		Link: flow.Link{Rate: 978e6, MTU: 1024, Overhead: 58, Gap: 11 * time.Microsecond,
			Backlog: 2048, InFlight: 1},
		Delay: 5 * time.Microsecond,
		Flows: []Flow{
			{Flow: flow.Flow{Name: "brake", Priority: 7, Size: 64, Period: time.Millisecond,
				Jitter: 10 * time.Microsecond, Deadline: 500 * time.Microsecond},
				Class: 7, Phase: 100 * time.Microsecond, OnLate: flow.Retry, Retries: 2,
				MaxAge: time.Millisecond},
			{Flow: flow.Flow{Name: "camera", Priority: 2, Size: 256 << 10, Part: 16 << 10,
				Period: 10 * time.Millisecond}, Class: 2, OnLate: flow.Drop},
			{Flow: flow.Flow{Name: "log", Size: 64 << 10, Split: []int{32 << 10, 32 << 10},
				Burst: 128 << 10, Rate: 50e6}},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("Parse() = %+v, want %+v", got, want)
	}
	// JSON is YAML.
	text := `{"link": {"rate": 1e9, "delay": "5us"},
		"flows": [{"name": "a", "size": 1000, "period": "1ms"}]}`
	// Twice 5 us, 100 bytes, and 5 us.
	if p := parsed(t, text); p.Link.Rate != 1e9 || p.Link.Gap != 15800 ||
		p.Flows[0].EffectiveDeadline() != time.Millisecond || p.Flows[0].Class != 0 {
		t.Errorf("Parse() = %+v", p)
	}
}

func TestParseErrors(t *testing.T) {
	flows := func(keys string) string {
		return "link: {rate: 1Gb/s}\nflows: [{name: x, " + keys + "}]"
	}
	for text, want := range map[string]string{
		"":                             "empty",
		"link: {rate: 1Gb/s}":          "no flows",
		"flows: [{name: x}]":           "no rate",
		"link: {rate: fast}":           `line 1: "fast" is not a rate`,
		"link: {rate: -1}":             "not a rate",
		"link: {rate: NaN}":            "not a rate",
		"link: {rate: 1, delay: -1us}": "delay -1",
		"link: [1]":                    "line 1",
		"link: {rate: 1Gb/s, mtu: -5}\nflows: [{name: x, size: 1, period: 1s}]":   "choose 256",
		"link: {rate: 1Gb/s}\nflows: [{size: 1, period: 1s}]":                     "flow 1 has no name",
		"link: {rate: 1Gb/s}\nflows: [{name: a, size: 1, period: 1s}, {name: a}]": "two tasks or flows",
		flows("size: 1, perod: 1s"):                                               `line 2: unknown key "perod"`,
		flows("size: 1, period: 0"):                                               "period 0s",
		flows("size: 1, period: 5"):                                               `"5" is not a duration`,
		flows("size: [1], period: 1s"):                                            "want one value",
		flows("size: much, period: 1s"):                                           "not a size",
		flows("size: 1, period: 1s, priority: 64"):                                "priority 64: choose 0 to 63",
		flows("size: 1, period: 1s, on_late: cry"):                                "choose warn, retry or drop",
		flows("size: 1, period: 1s, retries: -1"):                                 "-1 retries",
		flows("size: 1, period: 1s, max_age: -1s"):                                "max_age",
		flows("size: 1, period: 1s, phase: -1s"):                                  "phase",
		flows("size: 10, period: 1s, split: [4, 5]"):                              "add up to 9 bytes",
		flows("size: 1MiB, period: 1s, deadline: 5ms"):                            `flow "x" has the deadline 5ms`,
		flows("size: 10, period: 1s, burst: 10, rate: 1"):                         "period and a token bucket",
		flows("size: 10, burst: 9, rate: 1Mb/s"):                                  "token bucket of 9 bytes",
		flows("size: 10, period: 1s, split: 4"):                                   "line 2: want a list, not `4`",
		flows("size: 10, period: 1s, class: x"):                                   "line 2: want a whole number, not `x`",
		flows("size: 1, period: 1s") + "\n---\nfoo: 1":                            "more than one document",
		"[1]":                          "line 1: want keys with values",
		strings.Repeat("#", MaxText+1): "more than",
		"link: {rate: 1}\nflows: [" + strings.Repeat("{},", maxFlows+1) + "]": "257 flows",
	} {
		_, err := Parse([]byte(text))
		if !errors.Is(err, ErrPlan) || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse(%.80q) = %v, want ErrPlan with %q", text, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "flowplan.") {
			t.Errorf("the error %q has the name of a type", err)
		}
	}
}

func TestParseErrorsOfTasksAndClasses(t *testing.T) {
	const link = "link: {rate: 1Gb/s}\n"
	a := func(keys string) string { return "{name: a, size: 1000, " + keys + "}" }
	for text, want := range map[string]string{
		"flows: [" + a("period: 1ms, class: 8") +
			"]": `flow "a": there is no traffic class 8: choose 0 to 7`,
		"flows: [" + a("period: 1ms, class: -1") +
			"]": "no traffic class -1",
		"classes: {8: {}}\nflows: [" + a("period: 1ms") +
			"]": "no traffic class 8",
		"classes: {0: {preempt: 0}}\nflows: [" + a("period: 1ms") +
			"]": "write packet, end, or a size",
		"classes: {0: {prempt: end}}\nflows: [" + a("period: 1ms") +
			"]": `unknown key "prempt"`,
		"classes: {}\nflows: [" + a("period: 1ms, part: 10") +
			"]": "set preempt of class 0",
		"classes: {}\nflows: [" + a("period: 1ms, priority: 9") +
			"]": "the class is the priority",
		"classes: {}\nflows: [" + a("period: 1ms, priority: 1, class: 2") +
			"]": "the class is the priority",
		"flows: [" + a("after: b") +
			"]": `after "b", which does not exist`,
		"flows: [" + a("after: a") +
			"]": "a -> a activate each other in a cycle",
		"flows: [" + a("after: t, period: 1ms") +
			"]\ntasks: [{name: t, period: 1ms}]": "choose one",
		"flows: [" + a("after: [t, t]") +
			"]\ntasks: [{name: t, period: 1ms}]": "twice",
		"flows: [" + a("after: {t: 1}") +
			"]\ntasks: [{name: t, period: 1ms}]": "a name or a list of names",
		"flows: [" + a("period: 1ms") +
			"]\ntasks: [{name: t}]": `task "t": the period is 0s`,
		"flows: [" + a("period: 1ms") +
			"]\ntasks: [{name: t, period: 0}]": "the period is 0s",
		"flows: [" + a("period: 1ms") +
			"]\ntasks: [{period: 1ms}]": "task 1 has no name",
		"flows: [" + a("period: 1ms") +
			"]\ntasks: [{name: a, period: 1ms}]": `the name "a"`,
		"flows: [" + a("period: 1ms") +
			"]\ntasks: [{name: t, after: a, time: -1s}]": "the time is -1s",
		"flows: [" + a("period: 1ms") +
			"]\ntasks: [{name: t, after: a, time: 2ms}]": "longer than its period",
		"flows: [" + a("period: 1ms") +
			"]\ntasks: [{name: t, after: a, phase: 1s}]": "choose one",
		"flows: [" + a("burst: 1000, rate: 1Mb/s") +
			"]\ntasks: [{name: t, after: a}]": "token bucket and no period",
		"flows: [" + a("period: 1ms") +
			"]\ntasks: [{name: u, period: 2ms}, {name: t, after: [a, u]}]": "use one period",
		"flows: [" + a("period: 1ms") + `]
tasks: [{name: x, after: [a, z]}, {name: y, after: x}, {name: z, after: y}]`: "y -> z -> x -> y activate each other",
	} {
		_, err := Parse([]byte(link + text))
		if !errors.Is(err, ErrPlan) || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse(%.90q) = %v, want ErrPlan with %q", text, err, want)
		}
		if err != nil && (strings.Contains(err.Error(), "flow: configuration") ||
			strings.Contains(err.Error(), "\n")) {
			t.Errorf("the error %q is more than one clear sentence", err)
		}
	}
}

func TestClasses(t *testing.T) {
	p := parsed(t, `
link: {rate: 1Gb/s, mtu: 4096}
classes: {2: {preempt: 16KiB}, 1: {preempt: end}, 0: {preempt: packet}}
flows:
  - {name: a, class: 7, size: 100, period: 1ms}
  - {name: b, priority: 2, size: 1MiB, period: 100ms}
  - {name: c, class: 1, size: 64KiB, period: 100ms}
  - {name: d, size: 1MiB, period: 100ms}
`)
	if !p.Link.Points || p.Classes[2].Preempt != 16<<10 || p.Classes[1].Preempt != -1 {
		t.Errorf("Parse() = %+v", p)
	}
	for i, want := range []struct{ class, part int }{{7, 4096}, {2, 16 << 10}, {1, 0}, {0, 4096}} {
		if f := &p.Flows[i]; f.Class != want.class || f.Priority != want.class ||
			f.Part != want.part {
			t.Errorf("%+v, want class %d and parts of %d bytes", f, want.class, want.part)
		}
	}
	if c := p.idleClass(); c != 7 {
		t.Errorf("idleClass() = %d, want 7", c)
	}
	p.Flows = p.Flows[:1]
	if c := p.idleClass(); c != 0 {
		t.Errorf("idleClass() = %d of flows of class 7, want 0", c)
	}
}

// The jitter of a flow in a chain is the uncertainty of the end of its predecessors.
func TestChain(t *testing.T) {
	p := parsed(t, chainPlan)
	bounds, err := flow.Bound(p.Link, p.Model())
	if err != nil {
		t.Fatal(err)
	}
	frame, result := &p.Flows[0], &p.Flows[1]
	if frame.Period != 10*time.Millisecond || frame.Jitter != 0 ||
		frame.Begin != time.Millisecond ||
		frame.Earliest != 3*time.Millisecond {
		t.Errorf("%+v, want a period of 10 ms without jitter, 2 ms after 1 ms", frame)
	}
	const rate = 978e6
	shortest := time.Duration(int64(100<<10*8e9) / int64(rate))
	if result.Period != frame.Period || result.Earliest.Round(time.Microsecond) !=
		(3*time.Millisecond+shortest+3*time.Millisecond).Round(time.Microsecond) {
		t.Errorf("%+v, want a period of 10 ms", result)
	}
	if want := bounds[0].Bound - shortest; (result.Jitter - want).Abs() > time.Microsecond {
		t.Errorf("jitter %v, want %v", result.Jitter, want)
	}
	if got, want := result.Chain(bounds[1].Bound), result.Earliest-time.Millisecond+bounds[1].Bound; got != want {
		t.Errorf("Chain() = %v, want %v", got, want)
	}
	if result.Chain(flow.Unbounded) != flow.Unbounded {
		t.Error("Chain(Unbounded) is bounded")
	}
}

// What is activated by a flow without a bound has none.
func TestChainWithoutBound(t *testing.T) {
	p := parsed(t, `
link: {rate: 978Mb/s}
tasks: [{name: start, period: 10ms}]
flows:
  - {name: a, priority: 1, after: start, size: 2MiB}
  - {name: b, priority: 2, after: a, size: 1000}
  - {name: c, priority: 3, period: 10ms, size: 1000}
`)
	bounds, err := flow.Bound(p.Link, p.Model())
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{false, false, true} {
		if got := bounds[i].Bound != flow.Unbounded; got != want {
			t.Errorf("%+v, want a bound: %v", bounds[i], want)
		}
	}
}

const chainPlan = `
link: {rate: 978Mb/s, delay: 5us, overhead: 58}
tasks:
  - {name: grab, period: 10ms, phase: 1ms, time: 2ms}
  - {name: detect, after: frame, time: 3ms}
flows:
  - {name: frame, priority: 5, size: 100KiB, part: 16KiB, after: grab}
  - {name: result, priority: 7, size: 1000, after: [detect]}
  - {name: log, size: 64KiB, part: 16KiB, burst: 64KiB, rate: 200Mb/s}
`

func TestRates(t *testing.T) {
	for text, want := range map[string]string{
		"978Mb/s": "978 Mb/s", "1 Gb/s": "1 Gb/s", "1000000": "1 Mb/s", "64kb/s": "64 kb/s",
		"2.5gb/s": "2.5 Gb/s", "500 bit/s": "0.5 kb/s",
	} {
		r, err := parseRate(text)
		if err != nil || FormatRate(int64(r)) != want {
			t.Errorf("rate %q = %v, %v, want %s", text, FormatRate(int64(r)), err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte("link: {rate: 1}\nflows: [{name: a, size: 1, burst: 1, rate: 1}]"))
	f.Add([]byte(chainPlan))
	f.Add([]byte("link: {rate: 1e9}\nclasses: {0: {preempt: end}}\nflows: [{name: a, size: 1, period: 1s}]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := Parse(text)
		if (p == nil) == (err == nil) {
			t.Errorf("Parse() = %v, %v", p, err)
		}
	})
}
