package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// gorxe run shows the device to a program and returns its exit status.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	capture := filepath.Join(dir, "x.pcap")
	r := run(t, nil, "run", "--dev", "127.0.0.91", "--loss", "1%", "--pcap", capture, "--stats", "--",
		"sh", "-c", "cat /sys/class/infiniband/rxe0/ports/1/gids/0; test -c $1 && exit 7", "sh",
		"/dev/infiniband/uverbs0")
	if r.status != 7 || r.stdout != "0000:0000:0000:0000:0000:ffff:7f00:005b\n" {
		t.Errorf("status %d, output %q, want 7 and the GID\n%s", r.status, r.stdout, r.err)
	}
	if !strings.Contains(r.err, "intercepted_calls") {
		t.Errorf("--stats prints %q, want counters", r.err)
	}
	if info, err := os.Stat(capture); err != nil || info.Size() == 0 {
		t.Errorf("capture file: %v, %v, want a file that is not empty", info, err)
	}
}

// A program that cannot be executed is an error.
func TestRunNotExecutable(t *testing.T) {
	for name, want := range map[string]string{"/": "/ cannot be executed: is a directory",
		"run_test.go":   "no such program: run_test.go",
		"./run_test.go": "./run_test.go cannot be executed: permission denied"} {
		r := run(t, nil, "run", "--dev", "127.0.0.91", "--", name)
		if r.status != 1 || !strings.Contains(r.err, want) {
			t.Errorf("status %d, message %q, want 1 and %q", r.status, r.err, want)
		}
	}
	if r := run(t, nil, "run", "--", ""); r.status != 2 || !strings.Contains(r.err, "is empty") {
		t.Errorf("status %d, message %q, want 2 and an explanation", r.status, r.err)
	}
}

// A program that does not exist is an error.
func TestRunNoProgram(t *testing.T) {
	for _, name := range []string{"no-such-program", "/no/such/program"} {
		r := run(t, nil, "run", "--dev", "127.0.0.91", "--", name)
		if r.status != 1 || !strings.Contains(r.err, "no such program: "+name) {
			t.Errorf("status %d, message %q, want 1 and the name", r.status, r.err)
		}
	}
}
