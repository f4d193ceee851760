// Command testgate runs go test and fails if a test fails, if no test ran, or, as root, if a test
// that needs AF_XDP and network namespaces was skipped.
//
// It prints one line per package as go test does, the output of failing tests, every skip with its
// reason, and the counts. Arguments are passed to go test; the default is ./...
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// event is a line of go test -json (go doc test2json).
type event struct {
	Action, Package, Test, Output string
}

// timeout bounds the tests of one package.
const timeout = "5m"

type key struct{ pkg, test string }

type gate struct {
	passed, failed int
	skipped        []string
	output         map[key][]string
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
	os.Exit(g.close(err))
}

func (g *gate) take(e event) {
	k := key{e.Package, e.Test}
	switch e.Action {
	case "output", "build-output":
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
			fmt.Print(strings.Join(g.output[k], ""))
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
// by a panic or a timeout.
func (g *gate) unfinished(pkg string) {
	for k, out := range g.output {
		if k.pkg == pkg {
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
