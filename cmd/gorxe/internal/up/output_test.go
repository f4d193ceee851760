package up

import (
	"bytes"
	"fmt"
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
	a, b := o.to(&text), o.to(&text)
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
		diag := o.to(reader)
		log := logging{level: logLevels["debug"]}
		dev, err := roce.New(link.Port(0), log.options(diag)...)
		if err != nil {
			t.Fatal(err)
		}
		show := &printer{out: o.to(reader), diag: diag}
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
