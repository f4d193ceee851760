// Command testgate runs go test and fails if a test fails, if no test ran, or, as root, if a test
// that needs AF_XDP and network namespaces was skipped.
//
// It prints one line per package as go test does, the output of failing tests, every skip with its
// reason, and the counts. Arguments are passed to go test; the default is ./...
//
// Tests of connections over real devices depend on the time that a shared machine gives them. A few
// failed tests are therefore run once more, alone. Those that pass then are reported as FLAKY with
// the output of the first run, and count as passed.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// event is a line of go test -json (go doc test2json).
type event struct {
	Action, Package, Test, Output string
}

// timeout bounds the tests of one package.
const timeout = "5m"

type key struct{ pkg, test string }

// maxRetries bounds the failed tests that are run again. More failures than that have a common
// cause.
const maxRetries = 3

type gate struct {
	passed, failed int
	skipped        []string
	output         map[key][]string
	failures       []failure
	broken         bool // a package failed as a whole: build error, panic, timeout
}

// failure is a failed test, or subtest, and its output.
type failure struct {
	key
	output []string
}

func main() {
	args := os.Args[1:]
	if len(args) == 0 {
		args = []string{"./..."}
	}
	cmd := exec.Command("go", append([]string{"test", "-json", "-timeout", timeout}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testgate:", err)
		os.Exit(1)
	}
	g := gate{output: map[key][]string{}}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Println(lines.Text()) // a build error
			continue
		}
		g.take(e)
	}
	err = cmd.Wait()
	if err != nil && g.retry() {
		err = nil
	}
	os.Exit(g.close(err))
}

// retry runs the failed tests again, each alone. It reports whether all of them passed.
func (g *gate) retry() bool {
	tests := g.failedTests()
	if g.broken || len(tests) == 0 || len(tests) > maxRetries {
		return false
	}
	for _, k := range tests {
		cmd := exec.Command("go", "test", "-count=1", "-timeout", timeout,
			"-run", "^"+k.test+"$", k.pkg)
		if out, err := cmd.CombinedOutput(); err != nil {
			fmt.Printf("%s failed twice; the second run:\n%s", k.test, out)
			return false
		}
	}
	for _, f := range g.failures {
		fmt.Printf("FLAKY %s %s failed and then passed alone; the first run:\n", f.pkg, f.test)
		for _, l := range f.output {
			fmt.Print("  | ", l)
		}
	}
	g.passed += g.failed
	g.failed = 0
	return true
}

// crash reports whether line is the first of a panic, a fatal error or a data race. These are faults
// whatever the machine does, and the other tests of the package may not have run.
func crash(line string) bool {
	return strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") ||
		strings.HasPrefix(line, "WARNING: DATA RACE")
}

// failedTests returns the top-level tests that failed.
func (g *gate) failedTests() []key {
	var tests []key
	for _, f := range g.failures {
		if !strings.Contains(f.test, "/") {
			tests = append(tests, f.key)
		}
	}
	return tests
}

func (g *gate) take(e event) {
	k := key{e.Package, e.Test}
	switch e.Action {
	case "output", "build-output":
		g.broken = g.broken || crash(e.Output)
		if e.Test == "" {
			if e.Output != "PASS\n" {
				fmt.Print(e.Output)
			}
			return
		}
		g.output[k] = append(g.output[k], e.Output)
		return
	case "fail":
		if e.Test != "" {
			g.failed++
			g.failures = append(g.failures, failure{k, g.output[k]})
		} else {
			g.unfinished(e.Package)
		}
	case "skip":
		if e.Test != "" {
			g.skipped = append(g.skipped, e.Package+" "+e.Test+": "+reason(g.output[k]))
		}
	case "pass":
		if e.Test != "" {
			g.passed++
		}
	default:
		return
	}
	delete(g.output, k)
}

// unfinished prints the output of the tests that were running when their package failed as a whole,
// by a panic or a timeout. A package also fails because of its tests.
func (g *gate) unfinished(pkg string) {
	failed := slices.ContainsFunc(g.failures, func(f failure) bool { return f.pkg == pkg })
	g.broken = g.broken || !failed
	for k, out := range g.output {
		if k.pkg == pkg {
			g.broken = true
			g.failed++
			fmt.Print(strings.Join(out, ""))
			delete(g.output, k)
		}
	}
}

// reason returns what a skipped test printed.
func reason(out []string) string {
	var s []string
	for _, l := range out {
		if l = strings.TrimSpace(l); l != "" && !strings.HasPrefix(l, "=== ") &&
			!strings.HasPrefix(l, "--- ") {
			s = append(s, l)
		}
	}
	return strings.Join(s, " ")
}

// close prints the counts and returns the exit status.
func (g *gate) close(err error) int {
	status := 0
	if err != nil {
		status = 1
	}
	if g.failed > 0 {
		for _, f := range g.failures {
			fmt.Print(strings.Join(f.output, ""))
		}
	}
	root := os.Geteuid() == 0
	for _, s := range g.skipped {
		fmt.Println("SKIP", s)
		if root && (strings.Contains(s, "root") || strings.Contains(s, "Veth")) {
			fmt.Println("FAIL the test above must not skip when run as root")
			status = 1
		}
	}
	if g.passed+g.failed == 0 {
		fmt.Println("FAIL no test ran")
		status = 1
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", g.passed, g.failed, len(g.skipped))
	return status
}
