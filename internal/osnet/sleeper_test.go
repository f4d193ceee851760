package osnet

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sleep sleeps as the owner of a port does. It returns false if it has ended by itself.
func sleep(s *Sleeper, list []unix.PollFd, d time.Duration) bool {
	defer s.End()
	return !s.Begin() || s.Sleep(list, d)
}

// Wake ends the current sleep or prevents the next one. No wake-up is lost.
func TestSleeper(t *testing.T) {
	var s Sleeper
	s.Close() // harmless before Open
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	list := []unix.PollFd{s.Event()}
	s.Wake()
	if !sleep(&s, list, 10*time.Second) {
		t.Error("Wake before the sleep was lost")
	}
	if sleep(&s, list, time.Millisecond) {
		t.Error("the sleep was ended without Wake")
	}

	const rounds = 2000
	var published, seen atomic.Int64
	go func() {
		for i := range int64(rounds) {
			published.Store(i + 1)
			for s.Wake(); seen.Load() <= i; {
				runtime.Gosched()
			}
		}
	}()
	for seen.Load() < rounds {
		if !sleep(&s, list, 10*time.Second) {
			t.Fatalf("wake-up %d was lost", seen.Load()+1)
		}
		seen.Store(published.Load())
	}
	s.Close()
	s.Close()
	s.Signal() // harmless after Close
}

// A descriptor that is watched ends the sleep when it is readable.
func TestSleeperWatch(t *testing.T) {
	var s Sleeper
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	if _, err := unix.Write(p[1], []byte{1}); err != nil {
		t.Fatal(err)
	}
	list := []unix.PollFd{s.Event()}
	if sleep(&s, list, time.Millisecond) {
		t.Error("a descriptor that is not watched has ended the sleep")
	}
	s.Watch(p[0])
	if !sleep(&s, list, 10*time.Second) {
		t.Error("the watched descriptor has not ended the sleep")
	}
	if !s.Watched() {
		t.Error("Watched() = false after the watched descriptor has ended the sleep")
	}
	s.Wake()
	s.Signal()
	s.Watch(-1)
	if !sleep(&s, list, time.Millisecond) || !s.Watched() {
		t.Error("a sleep that did not begin has changed Watched()")
	}
	if !sleep(&s, list, 10*time.Second) || s.Watched() {
		t.Error("Watched() = true after the end of the watch")
	}
	if sleep(&s, list, time.Millisecond) {
		t.Error("the descriptor has ended the sleep after the end of the watch")
	}
}
