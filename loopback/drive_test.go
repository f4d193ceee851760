package loopback

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// timer is a Node that counts its expirations.
type timer struct {
	link     *Link
	interval int64
	next     int64
	fired    int
}

func (t *timer) Progress() int {
	if t.next == 0 || t.link.Now() < t.next {
		return 0
	}
	t.fired++
	t.next += t.interval
	return 1
}

func (t *timer) NextTimeout() (int64, bool) { return t.next, t.next != 0 }

func TestDrive(t *testing.T) {
	link, err := NewLink(Config{Virtual: true})
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	start := link.Now()
	tick := &timer{link: link, interval: int64(time.Second), next: start + int64(time.Second)}
	idle := &timer{link: link}
	if err := Drive(link, time.Minute, func() bool { return tick.fired == 3 }, tick, idle); err != nil ||
		link.Now()-start != int64(3*time.Second) {
		t.Errorf("Drive() = %v after %v, want 3 s", err, time.Duration(link.Now()-start))
	}
	calls := 0
	if err := Drive(link, 0, func() bool { calls++; return true }, tick); err != nil || calls != 1 {
		t.Errorf("Drive() = %v after %d calls of a condition that holds, want 1", err, calls)
	}
	never := func() bool { return false }
	err = Drive(link, 5*time.Second, never, tick, idle)
	if !errors.Is(err, ErrTimeout) || tick.fired != 8 {
		t.Errorf("Drive() = %v after %d expirations, want ErrTimeout after 8", err, tick.fired)
	}
	for _, part := range []string{"after 5s", "no frame is in flight", "node 0 has a timer in 1s",
		"node 1 has no timer"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not contain %q", err, part)
		}
	}
	if err := Drive(link, -1, never, idle); !errors.Is(err, ErrStuck) ||
		!strings.Contains(err.Error(), "node 0 has no timer") {
		t.Errorf("Drive() = %v, want ErrStuck", err)
	}
}
