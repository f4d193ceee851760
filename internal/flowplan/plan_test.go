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
				Phase: 100 * time.Microsecond, OnLate: flow.Retry, Retries: 2,
				MaxAge: time.Millisecond},
			{Flow: flow.Flow{Name: "camera", Priority: 2, Size: 256 << 10, Part: 16 << 10,
				Period: 10 * time.Millisecond}, OnLate: flow.Drop},
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
		p.Flows[0].EffectiveDeadline() != time.Millisecond || p.Flows[0].Class() != 0 {
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
		"link: {rate: 1Gb/s}\nflows: [{name: a, size: 1, period: 1s}, {name: a}]": "two flows",
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
		strings.Repeat("#", MaxText+1):                                            "more than",
		"link: {rate: 1}\nflows: [" + strings.Repeat("{},", maxFlows+1) + "]":     "257 flows",
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
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := Parse(text)
		if (p == nil) == (err == nil) {
			t.Errorf("Parse() = %v, %v", p, err)
		}
	})
}
