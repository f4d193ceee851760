package flow

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
)

const plan = `
link: {rate: 978Mb/s, delay: 5us}
flows:
  - {name: brake, priority: 7, size: 64, period: 1ms, deadline: 500us}
  - {name: camera, priority: 2, size: 256KiB, part: 16KiB, period: 33ms}
`

// gorxeFlow runs "gorxe flow" with args and a description as standard input.
func gorxeFlow(t *testing.T, stdin string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	root := &cobra.Command{Use: "gorxe", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(Command())
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage(err) })
	root.SetArgs(append([]string{"flow"}, args...))
	root.SetIn(strings.NewReader(stdin))
	root.SetOut(&out)
	root.SetErr(&errs)
	err = root.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}

func TestCheck(t *testing.T) {
	drawing := filepath.Join(t.TempDir(), "timeline.svg")
	out, _, err := gorxeFlow(t, plan, "check", "-", "--svg", drawing)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"priority", "bound", "brake", "camera", "500.000 us", "us"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if text, err := os.ReadFile(drawing); err != nil || !bytes.HasPrefix(text, []byte("<svg")) {
		t.Errorf("drawing %.20q, %v", text, err)
	}
	out, _, err = gorxeFlow(t, plan, "check", "-", "--json")
	var list []map[string]any
	if err != nil || json.Unmarshal([]byte(out), &list) != nil || len(list) != 2 {
		t.Fatalf("%s, %v", out, err)
	}
	for _, key := range []string{"flow", "priority", "load", "alone_ns", "blocking_ns", "bound_ns",
		"deadline_ns", "fits"} {
		if _, ok := list[0][key]; !ok {
			t.Errorf("no key %q in %v", key, list[0])
		}
	}
}

// A set that does not fit has exit status 1, and the flow, its deadline and the excess are named.
// An invalid description has exit status 2.
func TestCheckErrors(t *testing.T) {
	long := strings.Replace(plan, "part: 16KiB, ", "", 1)
	out, errs, err := gorxeFlow(t, long, "check", "-")
	if cli.Status(err) != cli.StatusFailure ||
		!strings.Contains(err.Error(), "1 flow does not meet") {
		t.Errorf("error %v, want that 1 flow does not meet its deadline", err)
	}
	if !strings.Contains(errs, `flow "brake" takes up to 2.`) ||
		!strings.Contains(errs, "more than its deadline of 500") ||
		!strings.Contains(out, "brake") {
		t.Errorf("%s%s", out, errs)
	}
	for _, c := range []struct {
		text string
		args []string
		want string
	}{
		{strings.Replace(plan, "period: 1ms", "perod: 1ms", 1), []string{"check", "-"},
			`unknown key "perod"`},
		{strings.Replace(plan, "deadline: 500us", "deadline: 1us", 1), []string{"run", "-"},
			"has the deadline 1"},
		{strings.Replace(plan, "period: 1ms", "period: 0", 1), []string{"run", "-"}, "period 0s"},
		{plan, []string{"check"}, "FILE is missing"},
		{plan, []string{"check", "-", "--svg", "x.svg", "--length", "1h"}, "choose a shorter time"},
		{plan, []string{"run", "-", "--link", "carrier"}, "virtual, memory, veth"},
		{plan, []string{"run", "-", "host", "--link", "memory"}, "without HOST"},
		{plan, []string{"run", "-", "-d", "eth0"}, "--dev is for runs with HOST"},
		{plan, []string{"run", "-", "--mode", "native"}, "--mode is for runs with HOST"},
		{plan, []string{"run", "-", "host", "-p", "65535"}, "need more ports"},
		{plan, []string{"serve", "-", "-p", "65535"}, "need more ports"},
		{plan, []string{"draw"}, "choose check, run or serve"},
	} {
		_, _, err := gorxeFlow(t, c.text, c.args...)
		if cli.Status(err) != cli.StatusUsage || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: error %v, want a usage error with %q", c.args, err, c.want)
		}
	}
	_, _, err = gorxeFlow(t, "", "check", "/nonexistent")
	if cli.Status(err) != cli.StatusFailure || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("missing description: error %v, want a failure", err)
	}
}

// Each invalid description has one clear message and exit status 2, and nothing is sent.
func TestInvalid(t *testing.T) {
	const flows = "link: {rate: 1Gb/s}\nflows:\n"
	for _, c := range []struct{ text, want string }{
		{flows + "  - {name: a, class: 8, size: 10, period: 1ms}",
			`flow "a": there is no traffic class 8: choose 0 to 7`},
		{flows + "  - {name: a, size: 10, period: 0}",
			`flow "a" has the period 0s: choose 1 ns to`},
		{flows + "  - {name: a, size: 10, period: 1ms, split: [4, 5]}",
			`the parts of flow "a" add up to 9 bytes, and its messages have 10`},
		{flows + "  - {name: a, size: 10, after: b}\n  - {name: b, size: 10, after: a}",
			"b -> a -> b activate each other in a cycle"},
		{flows + "  - {name: a, size: 1MiB, period: 1s, deadline: 8ms}",
			`flow "a" has the deadline 8ms, but a message takes`},
		{flows + "  - {name: a, size: 10, period: 1ms, prio: 3}", `line 3: unknown key "prio"`},
		{"classes: {9: {}}\n" + flows + "  - {name: a, size: 10, period: 1ms}",
			"there is no traffic class 9"},
	} {
		for _, args := range [][]string{{"check", "-"}, {"run", "-"}, {"serve", "-"}} {
			out, _, err := gorxeFlow(t, c.text, args...)
			if cli.Status(err) != cli.StatusUsage || !strings.Contains(err.Error(), c.want) ||
				strings.Contains(err.Error(), "\n") ||
				strings.Contains(err.Error(), "configuration") {
				t.Errorf("flow %v: error %v, want one usage error with %q", args, err, c.want)
			}
			if out != "" {
				t.Errorf("flow %v printed %q", args, out)
			}
		}
	}
}

const chain = `
link: {rate: 1Gb/s, delay: 5us}
classes: {}
tasks: [{name: grab, period: 10ms, time: 1ms}]
flows:
  - {name: frame, class: 3, size: 64KiB, after: grab}
  - {name: answer, class: 7, size: 64, after: frame}
`

// Chains have a column of their own.
func TestChain(t *testing.T) {
	out, _, err := gorxeFlow(t, chain, "check", "-")
	if err != nil || !strings.Contains(out, "chain") {
		t.Errorf("%s, %v", out, err)
	}
	out, _, err = gorxeFlow(t, chain, "run", "-", "-D", "100ms", "--json")
	var list []map[string]any
	if err != nil || json.Unmarshal([]byte(out), &list) != nil || len(list) != 2 {
		t.Fatalf("%s, %v", out, err)
	}
	bound, most := list[1]["chain_bound_ns"].(float64), list[1]["chain_max_ns"].(float64)
	if list[1]["within"] != true || most < 1.5e6 || most > bound {
		t.Errorf("%v, want a chain of at least 1.5 ms within its bound", list[1])
	}
	out, _, err = gorxeFlow(t, chain, "run", "-", "-D", "30ms")
	if err != nil || !strings.Contains(out, "chain max") {
		t.Errorf("%s, %v", out, err)
	}
}

func TestRun(t *testing.T) {
	out, _, err := gorxeFlow(t, plan, "run", "-", "-D", "100ms")
	if err != nil || !strings.Contains(out, "brake") || !strings.Contains(out, "missed") {
		t.Errorf("%s, %v", out, err)
	}
	out, _, err = gorxeFlow(t, plan, "run", "-", "-D", "50ms", "--json")
	var list []map[string]any
	if err != nil || json.Unmarshal([]byte(out), &list) != nil || len(list) != 2 ||
		list[0]["within"] != true || list[0]["sent"].(float64) < 49 {
		t.Errorf("%s, %v", out, err)
	}
}
