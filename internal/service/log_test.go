package service_test

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/internal/service"
	"github.com/gorxe/gorxe/internal/syncbuf"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/udp"
)

// newLoggedHost returns a service that admits few programs, and what its device logs.
func newLoggedHost(t *testing.T, perUser int) (*service.Server, *syncbuf.Buffer) {
	t.Helper()
	p, err := udp.Open(udp.RandomLoopback().String(), udp.Options{Shared: true})
	must(t, err)
	s, err := service.New(filepath.Join(t.TempDir(), "s"), service.Options{PerUser: perUser})
	must(t, err)
	must(t, s.Start(p))
	text := new(syncbuf.Buffer)
	d, err := roce.New(p, inside.Host(s).(roce.Option),
		roce.WithLogger(slog.New(slog.NewTextHandler(text, nil))))
	must(t, err)
	t.Cleanup(func() {
		must(t, s.Close())
		must(t, d.Close())
	})
	return s, text
}

// expectLine waits until a line of the log has all parts.
func expectLine(t *testing.T, text *syncbuf.Buffer, parts ...string) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		for line := range strings.Lines(text.String()) {
			missing := false
			for _, p := range parts {
				missing = missing || !strings.Contains(line, p)
			}
			if !missing {
				return
			}
		}
	}
	t.Fatalf("no line of the log has %q:\n%s", parts, text)
}

// The log of the service's device has programs that join, leave, die and are refused.
func TestLogOfPrograms(t *testing.T) {
	s, text := newLoggedHost(t, 1)
	self := "program=" + filepath.Base(os.Args[0])
	a, err := service.Join(s.Path(), service.JoinOptions{})
	must(t, err)
	expectLine(t, text, "level=INFO", `msg="program joined"`, self, "slot=1", "pid=", "uid=")
	if _, err := service.Join(s.Path(), service.JoinOptions{Name: "x \n level=ERROR"}); err == nil {
		t.Fatal("a second program of the user could join")
	}
	expectLine(t, text, "level=WARN", `msg="program refused"`, `program="xlevel=ERROR"`, "the limit")
	must(t, a.Close())
	expectLine(t, text, "level=INFO", `msg="program left"`, self, "slot=1", "after=")

	c := startChild(t, s.Path())
	expectLine(t, text, `msg="program joined"`, "program=child", "slot=2")
	must(t, c.Process.Kill())
	_ = c.Wait()
	expectLine(t, text, "level=WARN", `msg="program ended without leaving"`, "program=child",
		"slot=2")
}

// A program that joins in a loop causes a bounded number of lines, which do not hide those about
// others, and their number is told.
func TestLogIsLimited(t *testing.T) {
	s, text := newLoggedHost(t, 1)
	a, err := service.Join(s.Path(), service.JoinOptions{})
	must(t, err)
	const attempts, limit = 400, 250 // the limit is 100, and 10 in each second
	for range attempts {
		if _, err := service.Join(s.Path(), service.JoinOptions{}); err == nil {
			t.Fatal("a second program of the user could join")
		}
	}
	n := strings.Count(text.String(), "\n")
	if n < 50 || n > limit {
		t.Errorf("%d refused programs cause %d lines, want about 100, at most %d", attempts, n, limit)
	}
	must(t, a.Close())
	for end := time.Now().Add(patience); !strings.Contains(text.String(), "suppressed="); {
		if time.Now().After(end) {
			t.Fatal("no line tells how many lines were left out")
		}
		if m, err := service.Join(s.Path(), service.JoinOptions{}); err == nil {
			_ = m.Close()
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// A message that is not one of the protocol does not get into the log as a whole.
func TestLogOfLongMessage(t *testing.T) {
	s, text := newLoggedHost(t, 1)
	c, err := net.Dial("unixpacket", s.Path())
	must(t, err)
	defer c.Close()
	_, err = c.Write([]byte(`{"id":` + strings.Repeat("1", service.MaxMessage/2) + `}`))
	must(t, err)
	expectLine(t, text, `msg="connection refused"`, "111...")
	if n := len(text.String()); n > 2000 {
		t.Errorf("the log has %d bytes", n)
	}
}
