package send

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/cmd/gorxe/internal/usagetest"
	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/filecopy/record"
	"github.com/gorxe/gorxe/internal/filecopy/sink"
	"github.com/gorxe/gorxe/transport/rftp"
)

func TestSplitHost(t *testing.T) {
	for text, want := range map[string][2]string{
		"10.0.0.2:": {"10.0.0.2", ""}, "host:a/b": {"host", "a/b"}, "host:a:b": {"host", "a:b"},
		"[fe80::1%eth0]:x": {"fe80::1%eth0", "x"}, "[::1]:": {"::1", ""},
	} {
		host, path, err := splitHost(text)
		if err != nil || host != want[0] || path != want[1] {
			t.Errorf("splitHost(%q) = %q, %q, %v, want %q", text, host, path, err, want)
		}
	}
	for _, text := range []string{"", "host", ":", ":x", "dir/a:b", "./a:b", "[::1]", "[::1]x",
		"[]:"} {
		if _, _, err := splitHost(text); cli.Status(err) != cli.StatusUsage {
			t.Errorf("splitHost(%q) = %v, want a usage error", text, err)
		}
	}
}

func TestPlan(t *testing.T) {
	for _, c := range []struct {
		f    flags
		args string
		want plan
	}{
		{flags{}, "a b/ host:x", plan{host: "host", target: "x", sources: []string{"a", "b/"}}},
		{flags{}, "a host:x/../y", plan{host: "host", target: "x/../y", sources: []string{"a"}}},
		{flags{}, "- host:x", plan{host: "host", target: "x", sources: []string{"-"}}},
		{flags{from: []string{"host:a", "host:b"}}, "", plan{host: "host", pull: true, target: ".",
			sources: []string{"a", "b"}}},
		{flags{from: []string{"host:"}}, "-", plan{host: "host", pull: true, target: "-",
			sources: []string{""}}},
	} {
		got, err := c.f.plan(strings.Fields(c.args))
		if err != nil || !reflect.DeepEqual(*got, c.want) {
			t.Errorf("plan(%q) = %+v, %v, want %+v", c.args, got, err, c.want)
		}
	}
}

// Wrong arguments are usage errors, before anything is opened.
func TestUsage(t *testing.T) {
	usagetest.Fails(t, Command, map[string]string{
		"":                                  "SOURCE and HOST:",
		"file":                              "HOST: is missing",
		"host:":                             "SOURCE is missing",
		"a b":                               "not HOST:PATH",
		"a fd00::1:":                        "write [fd00::1]:",
		"a me@host:d":                       "write host:d",
		"--from fe80::1%eth0:x .":           "write [fe80::1%eth0]:x",
		"a host:../x":                       "outside",
		"a host:d/../..":                    "outside",
		"--from host:../x":                  "outside",
		"- a host:x":                        "only source",
		"- host:":                           "no name",
		"- host:d/":                         "no name",
		"-n - host:x":                       "--dry-run",
		"--from host:a b c":                 "one argument too many",
		"--from a":                          "not HOST:PATH",
		"--from a:x --from b:y":             "two hosts",
		"--from a:x --from a:y -":           "one file",
		"--delete a b/ host:":               "--delete",
		"--delete --from h:a --from h:b/ .": "--delete",
		"--delete a/.. b host:":             "--delete",
		"a/x b/x host:":                     "two sources have the name",
		"--from h:a/x --from h:b/x .":       "two sources have the name",
		"--exclude [a x host:":              "not a pattern",
		"--overwrite maybe x host:":         "never, older, always",
		"--block 1 x host:":                 "64 KiB to 64 MiB",
		"--block 64m --pool 1m x host:":     "smaller than --block",
		"--streams 65 x host:":              "1 to 64",
		"--class 7 x host:":                 "0 to 6",
		"--limit -1 x host:":                "not a size",
		"--retry never x host:":             "not a duration",
	})
}

// A single source that does not exist is an error before the connection is made.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a/x", "b/x"} {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for names, want := range map[string]string{"nowhere": "not exist", "nowhere/": "no such file",
		"a/ b/": "", "a b": "", "a nowhere": ""} {
		var p plan
		for _, n := range strings.Fields(names) {
			p.sources = append(p.sources, dir+"/"+n)
		}
		list, err := p.open(nil)
		closePaths(list)
		if want == "" && err != nil || want != "" &&
			(err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("open(%s) = %v, want %q", names, err, want)
		}
	}
}

// By default, only failures of the network of a copy that has begun are repeated.
func TestRetries(t *testing.T) {
	silent := &rftp.AbortError{Text: rftp.ErrSilent.Error()}
	full := &rftp.AbortError{Text: "limit reached"}
	for _, c := range []struct {
		retry         time.Duration
		all           bool
		err           error
		dialed, begun bool
		want          bool
	}{
		{time.Minute, false, rftp.ErrLost, true, true, true},
		{time.Minute, false, fmt.Errorf("%w: details", rftp.ErrSilent), true, true, true},
		{time.Minute, false, silent, true, true, true},
		{time.Minute, false, full, true, true, false},
		{time.Minute, false, io.ErrUnexpectedEOF, true, true, false},
		{time.Minute, false, os.ErrDeadlineExceeded, false, true, true},
		{time.Minute, false, os.ErrDeadlineExceeded, false, false, false},
		{time.Minute, true, os.ErrDeadlineExceeded, false, false, true},
		{time.Minute, true, full, true, true, true},
		{0, true, rftp.ErrLost, true, true, false},
	} {
		x := &transfer{flags: &flags{retry: cli.Duration{D: c.retry}, retryAll: c.all}}
		if got := x.retries(c.err, c.dialed, c.begun); got != c.want {
			t.Errorf("--retry %v (set: %v), %v: retries() = %v, want %v", c.retry, c.all, c.err, got,
				c.want)
		}
	}
}

// A copy that the receiver does not accept cannot be continued.
func TestLimited(t *testing.T) {
	full := &rftp.AbortError{Text: sink.ErrLimit.Error() + ": the receiver accepts less"}
	for err, want := range map[error]bool{full: false, sink.ErrLimit: false, rftp.ErrLost: true,
		fmt.Errorf("%w \"dir\"", sink.ErrTarget): false,
		&rftp.AbortError{Text: "no space left"}:  true} {
		if got := temporary(err); got != want {
			t.Errorf("temporary(%v) = %v, want %v", err, got, want)
		}
	}
}

// The summary covers all attempts of a copy.
func TestFollow(t *testing.T) {
	begin := time.Unix(1_700_000_000, 0)
	// Of two files of 100 bytes, the first one was stored, and half of the second one was sent.
	earlier := &report{Sum: record.Summary{Stored: 1, Bytes: 100, Deleted: 2}, Sent: 150,
		start: begin, seconds: 3}
	// 70 bytes of the second file were there, of which 50 are of the earlier attempt.
	r := &report{Sum: record.Summary{Stored: 1, Skipped: 4, Bytes: 100, Resumed: 70, Deleted: 1},
		Sent: 30, start: begin.Add(10 * time.Second), seconds: 1}
	r.follow(earlier)
	want := record.Summary{Stored: 2, Skipped: 3, Bytes: 200, Resumed: 20, Deleted: 3}
	if r.Sum != want || r.Sent != 180 || r.seconds != 11 || !r.start.Equal(begin) {
		t.Errorf("follow() = %+v, %d bytes, %v s, want %+v, 180 bytes, 11 s", r.Sum, r.Sent,
			r.seconds, want)
	}
}
