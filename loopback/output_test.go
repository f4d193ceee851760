package loopback

import (
	"io"
	"testing"
	"time"

	"github.com/gorxe/gorxe/driver"
)

// checkBacklog compares the backlog of a Port, which may be wrapped.
func checkBacklog(t *testing.T, p driver.Port, bytes int, rate int64) {
	t.Helper()
	b, ok := driver.Find[driver.Backlogger](p)
	if !ok {
		t.Fatalf("%T does not implement Backlogger", p)
	}
	if n, r := b.Backlog(); n != bytes || r != rate {
		t.Errorf("Backlog() = %d, %d, want %d, %d", n, r, bytes, rate)
	}
}

// The backlog shrinks by one byte per microsecond at 8 Mbit/s. It does not include the delay.
func TestBacklog(t *testing.T) {
	const rate = 8e6
	for name, set := range map[string]func(l *Link) error{
		"plan": func(l *Link) error {
			return l.SetPlan(0, 1, Plan{Bandwidth: rate, Delay: time.Second})
		},
		"port": func(l *Link) error {
			if err := l.SetPlan(0, 1, Plan{Delay: time.Second}); err != nil {
				return err
			}
			return l.SetBandwidth(0, rate)
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLink(t, Config{Virtual: true})
			if err := set(l); err != nil {
				t.Fatal(err)
			}
			p := l.Port(0)
			send(t, p, l.Port(1), 1000, 2, 0)
			checkBacklog(t, p, 2000, rate)
			l.Advance(1)
			checkBacklog(t, p, 2000, rate) // one byte has not been sent completely
			l.Advance(999_999)
			checkBacklog(t, p, 1000, rate)
			l.Advance(time.Millisecond)
			checkBacklog(t, p, 0, rate)
			send(t, p, l.Port(1), 100, 1, 2)
			checkBacklog(t, p, 100, rate)
			l.Advance(time.Hour)
			checkBacklog(t, p, 0, rate)
			checkBacklog(t, l.Port(1), 0, 0) // unlimited
		})
	}
}

// The time computed from the backlog and the rate is exact: one nanosecond earlier the backlog is
// larger.
func TestBacklogIsExact(t *testing.T) {
	const rate, size, count = 978e6, 1082, 50
	l := newLink(t, Config{Virtual: true})
	if err := l.SetBandwidth(0, rate); err != nil {
		t.Fatal(err)
	}
	p := l.Port(0)
	send(t, p, l.Port(1), size, count, 0)
	for left := count; left > 1; left-- {
		target := (left - 1) * size
		l.AdvanceTo(p.output.Busy - int64(target)*8*int64(time.Second)/rate - 1)
		if n, _ := p.Backlog(); n != target+1 {
			t.Fatalf("Backlog() = %d before the computed time, want %d", n, target+1)
		}
		l.Advance(1)
		if n, _ := p.Backlog(); n != target {
			t.Fatalf("Backlog() = %d at the computed time, want %d", n, target)
		}
	}
}

// All directions share the Port's bandwidth, and frames arrive at the times at which they have been
// sent, whatever the plan of their direction is.
func TestBandwidthIsShared(t *testing.T) {
	l := newLink(t, Config{Ports: 4, Virtual: true})
	if err := l.SetBandwidth(0, 8e6); err != nil {
		t.Fatal(err)
	}
	if err := l.SetPlan(0, 2, Plan{Delay: 10 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	l.SetFilter(0, 3, func([]byte) Action { return Duplicate })
	p := l.Port(0)
	for to := 1; to <= 3; to++ {
		send(t, p, l.Port(to), 1000, 1, 0)
	}
	checkBacklog(t, p, 3000, 8e6)
	for to, want := range []time.Duration{1: 1, 2: 12, 3: 3} {
		if at, ok := l.NextEventAt(to); to > 0 &&
			(!ok || time.Duration(at-startTime) != want*time.Millisecond) {
			t.Errorf("the frame to port %d arrives after %v, want %dms", to,
				time.Duration(at-startTime), want)
		}
	}
	l.AdvanceTo(startTime + int64(3*time.Millisecond))
	if n := len(receive(t, l.Port(3))); n != 2 {
		t.Errorf("received %d frames, want one and its duplicate", n)
	}
	if err := l.SetBandwidth(0, -1); err == nil {
		t.Error("SetBandwidth accepts a negative bandwidth")
	}
}

// Without a bandwidth of the Port, directions do not share it, and Backlog reports the busiest.
func TestBacklogOfBusiestDirection(t *testing.T) {
	l := newLink(t, Config{Ports: 3, Virtual: true})
	for to, rate := range []int64{1: 8e6, 2: 16e6} {
		if to == 0 {
			continue
		}
		if err := l.SetPlan(0, to, Plan{Bandwidth: rate}); err != nil {
			t.Fatal(err)
		}
	}
	p := l.Port(0)
	send(t, p, l.Port(1), 1000, 1, 0)
	send(t, p, l.Port(2), 1000, 3, 0) // they take 1.5 ms
	checkBacklog(t, p, 3000, 16e6)
	l.Advance(time.Millisecond)
	checkBacklog(t, p, 1000, 16e6)
}

// In real time, frames leave with the bandwidth of the Port.
func TestBandwidthInRealTime(t *testing.T) {
	now := startTime
	l := newLink(t, Config{Clock: func() int64 { return now }})
	if err := l.SetBandwidth(0, 8e6); err != nil {
		t.Fatal(err)
	}
	p := l.Port(0)
	send(t, p, l.Port(1), 1000, 2, 0)
	for step := range 3 {
		checkBacklog(t, p, 2000-1000*step, 8e6)
		if n := len(receive(t, l.Port(1))); n != min(step, 1) {
			t.Errorf("after %d ms, %d frames arrive, want %d", step, n, min(step, 1))
		}
		now += int64(time.Millisecond)
	}
}

// Wrappers do not hide the backlog. An injector with a bandwidth has one of its own.
func TestBacklogOfWrappers(t *testing.T) {
	l := newLink(t, Config{Virtual: true, Plan: Plan{Bandwidth: 8e6}})
	p, peer := l.Port(0), l.Port(1)
	send(t, p, peer, 1000, 1, 0)
	for _, w := range []driver.Port{Tee(p, io.Discard), Inject(p, 1, Plan{}),
		Inject(Tee(p, io.Discard), 1, Plan{Loss: 1}), Inject(p, 1, Plan{Bandwidth: 1e9})} {
		checkBacklog(t, w, 1000, 8e6)
	}
	slow := InjectWith(bare{p}, InjectConfig{Transmit: Plan{Bandwidth: 4e6}, Clock: l.Now})
	send(t, slow, peer, 2000, 1, 1)
	checkBacklog(t, Tee(slow, io.Discard), 2000, 4e6)
	if _, _, ok := FaultsOf(slow); !ok {
		t.Error("FaultsOf does not find an injector with a bandwidth")
	}
	if _, ok := driver.Find[driver.Backlogger](Inject(bare{p}, 1, Plan{})); ok {
		t.Error("an injector without a bandwidth has a backlog although its Port has none")
	}
	l.Advance(time.Millisecond)
	checkBacklog(t, slow, 1500, 4e6)
}

func TestBacklogDoesNotAllocate(t *testing.T) {
	l := newLink(t, Config{Virtual: true})
	if err := l.SetBandwidth(0, 978e6); err != nil {
		t.Fatal(err)
	}
	p, peer := l.Port(0), l.Port(1)
	var bufs [4]driver.Buf
	round := func() {
		for i := range bufs[:p.Alloc(bufs[:])] {
			bufs[i].B = fill(bufs[i].B, p.Info().MAC, peer.Info().MAC, 1000, 0)
		}
		_, _ = p.Send(bufs[:])
		for n, _ := p.Backlog(); n > 0; n, _ = p.Backlog() {
			l.Advance(time.Microsecond)
		}
		peer.Release(bufs[:peer.Receive(bufs[:])])
	}
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("Send and Backlog allocate %v times, want 0", n)
	}
}
