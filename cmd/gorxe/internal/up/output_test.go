package up

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// Writes arrive in order, also if they have several destinations.
func TestOutput(t *testing.T) {
	o := newOutput()
	var text bytes.Buffer
	a, b := o.to(&text, false), o.to(&text, false)
	want := ""
	for i := range 100 {
		fmt.Fprintf(a, "a%d\n", i)
		fmt.Fprintf(b, "b%d\n", i)
		want += fmt.Sprintf("a%d\nb%[1]d\n", i)
	}
	o.close()
	if got := text.String(); got != want {
		t.Errorf("written: %q, want %q", got, want)
	}
	fmt.Fprint(a, "late") // no panic
}

// hung is a writer whose reader hangs until it is closed.
type hung chan struct{}

func (h hung) Write(b []byte) (int, error) {
	<-h
	return len(b), nil
}

// A reader that hangs does not block the end of a device that logs.
func TestHungReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link, err := loopback.NewLink(loopback.Config{})
		if err != nil {
			t.Fatal(err)
		}
		reader := make(hung)
		o := newOutput()
		diag := o.to(reader, false)
		log := logging{level: logLevels["debug"]}
		dev, err := roce.New(link.Port(0), log.options(diag)...)
		if err != nil {
			t.Fatal(err)
		}
		show := &printer{out: o.to(reader, false), diag: diag}
		for range 2 * maxWrites {
			show.event("session", "x")
		}
		begin := time.Now()
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
		o.close()
		if d := time.Since(begin); d != flushTime {
			t.Errorf("the end took %v, want %v", d, flushTime)
		}
		close(reader)
	})
}

// slow is a writer whose reader sleeps until it is closed, and then reads.
type slow struct {
	hung
	bytes.Buffer
}

func (s *slow) Write(b []byte) (int, error) {
	<-s.hung
	return s.Buffer.Write(b)
}

// A reader that was too slow learns how many lines are missing, and where.
func TestSlowReader(t *testing.T) {
	const lost = 5
	for json, want := range map[bool]string{
		true: `{"event":"lost","message":"5 lines were left out here, because their reader was too slow"` +
			`,"count":5}`,
		false: "5 lines were left out here, because their reader was too slow",
	} {
		synctest.Test(t, func(t *testing.T) {
			reader := &slow{hung: make(hung)}
			o := newOutput()
			w := o.to(reader, json)
			fmt.Fprintln(w, "first")
			synctest.Wait() // it is being written
			for range maxWrites + lost {
				fmt.Fprintln(w, "next")
			}
			close(reader.hung)
			synctest.Wait()
			fmt.Fprintln(w, "last")
			o.close()
			lines := strings.Split(strings.TrimSpace(reader.String()), "\n")
			if n := len(lines); n != maxWrites+3 || lines[n-2] != want || lines[n-1] != "last" {
				t.Errorf("%d lines, and the last ones are %q, want %q and last", n, lines[n-2:], want)
			}
		})
	}
}

// An interface that has lost its last address has an empty list of GIDs, not none: a program that
// follows the events iterates over it.
func TestNoGIDs(t *testing.T) {
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		t.Fatal(err)
	}
	link.Port(0).SetAddrs()
	dev, err := roce.New(link.Port(0))
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	var b bytes.Buffer
	p := &printer{out: &b, json: true}
	p.gids(dev)
	p.event("note", "text")
	want := "{\"event\":\"gids\",\"gids\":[]}\n{\"event\":\"note\",\"message\":\"text\"}\n"
	if b.String() != want {
		t.Errorf("printed %q, want %q", b.String(), want)
	}
}
