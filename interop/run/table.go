package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// event is a line of go test -json (go doc test2json).
type event struct {
	Action, Test, Output, Key, Value string
	Elapsed                          float64
}

// row is one scenario in one variant.
type row struct {
	test                      string
	scenario, role, ip, mtu   string
	result, pcap, why, figure string
	seconds                   float64
	output                    []string
}

func (r *row) String() string {
	return fmt.Sprintf("%s, gorxe %s, %s, MTU %s: %s in %.1f s", r.scenario, r.role, r.ip, r.mtu,
		r.result, r.seconds)
}

// table collects rows from the events of tests that report a scenario.
type table struct {
	rows    []*row // in the order in which they ended
	open    map[string]*row
	skipped []string // tests without a scenario
	each    func(*row)
}

func newTable() *table {
	return &table{open: map[string]*row{}, each: func(*row) {}}
}

// take handles one line and returns the text for the log.
func (t *table) take(line []byte) string {
	var e event
	if json.Unmarshal(line, &e) != nil {
		return string(line) + "\n"
	}
	r := t.open[e.Test]
	switch e.Action {
	case "run":
		t.open[e.Test] = &row{test: e.Test}
	case "attr":
		if r != nil {
			r.set(e.Key, e.Value)
		}
	case "build-output":
		return "interop: " + e.Output
	case "output":
		if r != nil {
			r.output = append(r.output, e.Output)
		}
		return e.Output
	case "pass", "fail", "skip":
		if r != nil {
			r.result, r.seconds = e.Action, e.Elapsed
			t.end(r)
			delete(t.open, e.Test)
		}
	}
	return ""
}

func (r *row) set(key, value string) {
	for k, f := range map[string]*string{
		"scenario": &r.scenario, "role": &r.role, "ip": &r.ip, "mtu": &r.mtu, "pcap": &r.pcap,
		"figure": &r.figure,
	} {
		if k == key {
			*f = value
		}
	}
}

func (t *table) end(r *row) {
	if r.result != "pass" {
		r.why = r.reason()
	}
	switch {
	case r.scenario != "":
		t.rows = append(t.rows, r)
		t.each(r)
	case r.result == "skip":
		t.skipped = append(t.skipped, r.test+": "+r.why)
	case r.result == "fail":
		t.blame(r)
	}
}

// blame adds the output of a subtest that failed to the test around it.
func (t *table) blame(r *row) {
	i := strings.LastIndexByte(r.test, '/')
	if i < 0 {
		return
	}
	if outer := t.open[r.test[:i]]; outer != nil {
		outer.output = append(outer.output, r.test[i+1:]+":\n")
		outer.output = append(outer.output, r.output...)
	}
}

// maxReason bounds the lines of output that the table prints for a failure.
const maxReason = 30

// reason is the first lines that the test printed.
func (r *row) reason() string {
	var lines []string
	for _, l := range r.output {
		if len(lines) == maxReason {
			break
		}
		l = strings.TrimSpace(l)
		if l == "" || strings.HasPrefix(l, "=== ") || strings.HasPrefix(l, "--- ") ||
			strings.HasPrefix(l, "interop: ") {
			continue
		}
		// "file_test.go:12: what is wrong"
		if _, text, ok := strings.Cut(l, ".go:"); ok {
			if _, after, ok := strings.Cut(text, ": "); ok {
				l = after
			}
		}
		lines = append(lines, l)
	}
	return strings.Join(lines, "\n  ")
}

// abandon fails the scenarios that started and never ended: the time limit was reached or the test
// program crashed.
func (t *table) abandon() {
	for _, name := range slices.Sorted(maps.Keys(t.open)) {
		if r := t.open[name]; r.scenario != "" {
			r.result, r.output = "fail", append([]string{"it did not end: the time limit was reached (-timeout) or the test program crashed; see log.txt"}, r.output...)
			t.end(r)
		}
	}
	clear(t.open)
}

func (t *table) failed() (n int) {
	for _, r := range t.rows {
		if r.result == "fail" {
			n++
		}
	}
	return n
}

// write prints one line per scenario and the counts.
func (t *table) write(w io.Writer, took time.Duration) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "scenario\tgorxe\tIP\tpath MTU\tresult\ttime")
	for _, r := range t.rows {
		note := ""
		if r.figure != "" {
			note = "  " + r.figure
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%.1f s%s\n", r.scenario, r.role, r.ip, r.mtu,
			word(r.result), r.seconds, note)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	count := map[string]int{}
	for _, r := range t.rows {
		count[r.result]++
		if r.result == "fail" {
			fmt.Fprintf(w, "\nFAIL %s\n  %s\n", r.test, r.why)
			if r.pcap != "" {
				fmt.Fprintf(w, "  %s\n", r.pcap)
			}
		}
	}
	for _, s := range t.skipped {
		fmt.Fprintln(w, "SKIP", s)
	}
	_, err := fmt.Fprintf(w, "\n%d passed, %d failed, %d skipped in %v\n", count["pass"],
		count["fail"], count["skip"], took.Round(time.Second))
	return err
}

func word(result string) string {
	if result == "pass" {
		return "ok"
	}
	return strings.ToUpper(result)
}
