package loopback

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/gorxe/gorxe/driver"
)

func newSim(t *testing.T) (*Sim, *Link) {
	link, err := NewLink(Config{Virtual: true})
	if err != nil {
		t.Fatal(err)
	}
	return NewSim(link), link
}

// Processes run one at a time, in a fixed order, and waits end at exact times.
func TestSim(t *testing.T) {
	run := func() (trace []string) {
		s, link := newSim(t)
		start, turn := link.Now(), 0
		note := func(format string, a ...any) {
			trace = append(trace, fmt.Sprintf("%v ", time.Duration(link.Now()-start))+
				fmt.Sprintf(format, a...))
		}
		for i := range 3 {
			s.Go(func() {
				for k := range 3 {
					if err := s.Wait(context.Background(),
						func() bool { return turn%3 == i }); err != nil {
						t.Error(err)
					}
					note("%d: %d", i, k)
					if i == 1 {
						s.Sleep(time.Second)
					}
					turn++
				}
			})
		}
		s.Go(func() { runtime.Goexit() })
		if err := s.Run(time.Minute); err != nil {
			t.Error(err)
		}
		return trace
	}
	a, b := run(), run()
	want := []string{"0s 0: 0", "0s 1: 0", "1s 2: 0", "1s 0: 1", "1s 1: 1", "2s 2: 1", "2s 0: 2",
		"2s 1: 2", "3s 2: 2"}
	if !slices.Equal(a, want) || !slices.Equal(b, want) {
		t.Errorf("ran %q and %q, want %q", a, b, want)
	}
}

// Waits that never end fail with ErrStuck or ErrTimeout, and the processes end.
func TestSimEndsWaits(t *testing.T) {
	never := func() bool { return false }
	for name, c := range map[string]struct {
		other func(s *Sim)
		want  error
	}{
		"stuck": {func(*Sim) {}, ErrStuck},
		"timeout": {func(s *Sim) {
			for s.Sleep(time.Second) == nil {
			}
		}, ErrTimeout},
	} {
		s, _ := newSim(t)
		var got error
		s.Go(func() { got = s.Wait(context.Background(), never) })
		s.Go(func() { c.other(s) })
		if err := s.Run(time.Minute); !errors.Is(err, c.want) || !errors.Is(got, c.want) {
			t.Errorf("%s: Run() = %v, Wait() = %v", name, err, got)
		}
	}
	s, _ := newSim(t)
	cleaned := false
	s.Go(func() {
		defer func() { cleaned = true }()
		for { // ignores errors
			_ = s.Wait(context.Background(), never)
		}
	})
	if err := s.Run(time.Minute); !errors.Is(err, ErrStuck) || !cleaned {
		t.Errorf("Run() with an endless process = %v, want ErrStuck; it was ended: %v", err, cleaned)
	}
	s, _ = newSim(t)
	ctx, cancel := context.WithCancel(context.Background())
	var got error
	s.Go(func() { got = s.Wait(ctx, never) })
	s.Go(cancel)
	if err := s.Run(time.Minute); err != nil || !errors.Is(got, context.Canceled) {
		t.Errorf("Run() = %v, Wait() = %v", err, got)
	}
	if err := s.Wait(context.Background(), never); !errors.Is(err, ErrStuck) {
		t.Errorf("Wait() outside of a process = %v", err)
	}
	// A frame at a port that no node receives from.
	s, link := newSim(t)
	var b [1]driver.Buf
	if link.Port(0).Alloc(b[:]) != 1 {
		t.Fatal("no transmit buffer")
	}
	if _, err := link.Port(0).Send(b[:]); err != nil {
		t.Fatal(err)
	}
	if err := s.Wait(context.Background(), never); !errors.Is(err, ErrStuck) {
		t.Errorf("Wait() with a frame that nobody receives = %v", err)
	}
}
