package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gorxe/gorxe/xdp/veth"
)

// binary is the path of the gorxe that TestMain builds.
var binary string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "gorxe-test-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		// Some tests run the binary as a user without privileges.
		if err := os.Chmod(dir, 0o755); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		binary = filepath.Join(dir, "gorxe")
		build := exec.Command("go", "build", "-o", binary, ".")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "go build:", err)
			return 1
		}
		return m.Run()
	}())
}

// limit bounds the time of a command, on a machine that may be busy.
const limit = 60 * time.Second

// process is a running gorxe.
type process struct {
	t        *testing.T
	cmd      *exec.Cmd
	out, err bytes.Buffer // to be read after ended is closed
	ended    chan struct{}
}

// start starts gorxe, in the network namespace of end unless end is nil.
func start(t *testing.T, end *veth.End, args ...string) *process {
	t.Helper()
	return startAs(t, end, nil, args...)
}

func startAs(t *testing.T, end *veth.End, attr *syscall.SysProcAttr, args ...string) *process {
	t.Helper()
	return startWith(t, end, func(c *exec.Cmd) { c.SysProcAttr = attr }, args...)
}

// startWith is start, with changes to the command. If the command takes longer than limit, or the
// test fails before it has ended, its standard error shows its goroutines.
func startWith(t *testing.T, end *veth.End, change func(*exec.Cmd), args ...string) *process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	p := &process{t: t, cmd: exec.CommandContext(ctx, binary, args...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.err
	p.cmd.Cancel = func() error {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) || t.Failed() {
			// gorxe run passes SIGQUIT to its program.
			return p.cmd.Process.Signal(syscall.SIGABRT)
		}
		return p.cmd.Process.Kill()
	}
	p.cmd.WaitDelay = 5 * time.Second
	change(p.cmd)
	run := p.cmd.Start
	if end != nil {
		run = func() error { return end.Do(p.cmd.Start) }
	}
	if err := run(); err != nil {
		cancel()
		t.Fatal(err)
	}
	go func() {
		p.cmd.Wait()
		cancel()
		close(p.ended)
	}()
	t.Cleanup(func() {
		running := ctx.Err() == nil
		if running && t.Failed() {
			t.Logf("processes:\n%s", threads())
		}
		cancel()
		<-p.ended
		if running && t.Failed() {
			t.Logf("gorxe %s was running\nstdout: %s\nstderr: %s", strings.Join(args, " "), &p.out, &p.err)
		}
	})
	return p
}

// threads describes what the threads of all gorxe of these tests wait for in the kernel. That is
// what is known of services, which have no standard error.
func threads() string {
	var b strings.Builder
	names, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, name := range names {
		if to, _ := os.Readlink(name); to != binary {
			continue
		}
		args, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "cmdline"))
		fmt.Fprintf(&b, "%s %s\n", name, bytes.ReplaceAll(args, []byte{0}, []byte{' '}))
		tasks, _ := filepath.Glob(filepath.Join(filepath.Dir(name), "task", "*", "wchan"))
		for _, task := range tasks {
			wchan, _ := os.ReadFile(task)
			fmt.Fprintf(&b, "\t%s %s\n", task, wchan)
		}
	}
	return b.String()
}

// result is the outcome of a gorxe that has ended.
type result struct {
	t           *testing.T
	args        string
	status      int
	stdout, err string
}

func (p *process) wait() *result {
	p.t.Helper()
	<-p.ended
	return &result{p.t, strings.Join(p.cmd.Args[1:], " "), p.cmd.ProcessState.ExitCode(),
		p.out.String(), p.err.String()}
}

func run(t *testing.T, end *veth.End, args ...string) *result {
	t.Helper()
	return start(t, end, args...).wait()
}

// ok fails the test unless the exit status is 0.
func (r *result) ok() *result {
	r.t.Helper()
	if r.status != 0 {
		r.t.Fatalf("gorxe %s: status %d\nstdout: %s\nstderr: %s", r.args, r.status, r.stdout, r.err)
	}
	return r
}

// fails fails the test unless the command ended with the status, wrote nothing to stdout, and wrote
// one line to stderr that contains all words.
func (r *result) fails(status int, words ...string) {
	r.t.Helper()
	if r.status != status {
		r.t.Errorf("gorxe %s: status %d, want %d\nstdout: %s\nstderr: %s", r.args, r.status, status,
			r.stdout, r.err)
	}
	if strings.Count(r.err, "\n") != 1 || r.stdout != "" {
		r.t.Errorf("gorxe %s: want only one line on stderr\nstdout: %s\nstderr: %s", r.args,
			r.stdout, r.err)
	}
	for _, w := range words {
		if !strings.Contains(r.err, w) {
			r.t.Errorf("gorxe %s: want %q on stderr: %s", r.args, w, r.err)
		}
	}
}

// json parses the JSON objects on stdout.
func (r *result) json() []map[string]any {
	r.t.Helper()
	return jsonLines(r.t, r.stdout)
}

func jsonLines(t *testing.T, text string) []map[string]any {
	t.Helper()
	var out []map[string]any
	dec := json.NewDecoder(strings.NewReader(text))
	for dec.More() {
		m := map[string]any{}
		if err := dec.Decode(&m); err != nil {
			t.Fatalf("invalid JSON: %v in %q", err, text)
		}
		out = append(out, m)
	}
	return out
}

// fields fails the test unless the object has these keys and no others.
func fields(t *testing.T, m map[string]any, keys ...string) {
	t.Helper()
	for _, k := range keys {
		if _, ok := m[k]; !ok {
			t.Errorf("no field %q in %v", k, m)
		}
	}
	if len(m) != len(keys) {
		t.Errorf("%d fields, want %q: %v", len(m), keys, m)
	}
}

// eventually waits until ready returns true.
func eventually(t *testing.T, what string, ready func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit / 2); !ready(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timeout after %v: %s", limit/2, what)
		}
	}
}

// needRoot creates a veth pair. It skips the test without the privileges for that.
func needRoot(t *testing.T, o veth.Options) *veth.Pair {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to create network namespaces and attach XDP programs")
	}
	p, err := veth.New(o)
	if errors.Is(err, veth.ErrPermission) {
		t.Skipf("root is not allowed to create network namespaces: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("remove the veth pair: %v", err)
		}
	})
	return p
}
