package loopback

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/gorxe/gorxe/driver"
)

// echo returns every frame to its sender until the Port is closed, and sleeps when there is none.
func echo(p driver.Port, batch int) error {
	rx, tx := make([]driver.Buf, batch), make([]driver.Buf, batch)
	for {
		n := p.Receive(rx)
		if n == 0 {
			if err := p.Wait(-1); err != nil {
				return err
			}
			continue
		}
		m := p.Alloc(tx[:n])
		for i := range m {
			b := tx[i].B[:len(rx[i].B)]
			copy(b, rx[i].B[6:12])
			copy(b[6:], rx[i].B[:6])
			copy(b[12:], rx[i].B[12:])
			tx[i].B = b
		}
		p.Release(rx[:n])
		if _, err := p.Send(tx[:m]); err != nil {
			return err
		}
	}
}

// withEcho runs echo on the remote port of a link in real time.
func withEcho(t testing.TB, wrap func(driver.Port) driver.Port) (local, remote driver.Port,
	stop func()) {
	l := newLink(t, Config{})
	local, remote = wrap(l.Port(0)), wrap(l.Port(1))
	done := make(chan error, 1)
	go func() { done <- echo(remote, 32) }()
	return local, remote, func() {
		t.Helper()
		_ = remote.Close()
		select {
		case err := <-done:
			if !errors.Is(err, ErrClosed) {
				t.Errorf("echo returned %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Error("Close did not end a Wait")
		}
	}
}

var wrappers = map[string]func(driver.Port) driver.Port{
	"link": func(p driver.Port) driver.Port { return p },
	"inject": func(p driver.Port) driver.Port {
		return Inject(p, 1,
			Plan{Jitter: 10 * time.Microsecond})
	},
	"tee": func(p driver.Port) driver.Port { return Tee(p, io.Discard) },
}

// Two goroutines that sleep whenever they have nothing to do exchange frames one at a time. A lost
// wake-up would block the test.
func TestPingPongBlocking(t *testing.T) {
	for name, wrap := range wrappers {
		t.Run(name, func(t *testing.T) {
			local, remote, stop := withEcho(t, wrap)
			defer stop()
			var bufs [8]driver.Buf
			for i := range uint64(3000) {
				send(t, local, remote, 64, 1, i)
				n := 0
				for n == 0 {
					if n = local.Receive(bufs[:]); n == 0 {
						if err := local.Wait(10 * time.Second); err != nil {
							t.Fatal(err)
						}
					}
				}
				if n != 1 || identify(bufs[0].B) != int(i) {
					t.Fatalf("frame %d: received %d frames", i, n)
				}
				local.Release(bufs[:n])
			}
		})
	}
}

// A stream in batches, with both directions busy, arrives complete and in order.
func TestStreamBothWays(t *testing.T) {
	local, remote, stop := withEcho(t, wrappers["link"])
	defer stop()
	const count, window = 100_000, 256
	var bufs [64]driver.Buf
	sent, received := 0, 0
	for received < count {
		k := local.Alloc(bufs[:min(len(bufs), window-(sent-received), count-sent)])
		for i := range k {
			bufs[i].B = fill(bufs[i].B, local.Info().MAC, remote.Info().MAC, 64, uint64(sent+i))
		}
		if n, err := local.Send(bufs[:k]); n != k || err != nil {
			t.Fatal(n, err)
		}
		sent += k
		n := local.Receive(bufs[:])
		for i := range n {
			if got := identify(bufs[i].B); got != received+i {
				t.Fatalf("received frame %d, want %d", got, received+i)
			}
		}
		local.Release(bufs[:n])
		if received += n; n == 0 {
			if err := local.Wait(10 * time.Second); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, p := range []driver.Port{local, remote} {
		if s := p.(*Port).Stats(); s.RxDropped+s.TxDropped != 0 || s.RxFrames != count {
			t.Errorf("%s: Stats() = %+v", p.Info().Name, s)
		}
	}
}

// Three Ports of a switch, each with its own goroutine.
func TestThreeGoroutines(t *testing.T) {
	l := newLink(t, Config{Ports: 3})
	const count = 5000
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			p, next := l.Port(i), l.Port((i+1)%3)
			var bufs [16]driver.Buf
			end := time.Now().Add(20 * time.Second)
			for sent, received := 0, 0; received < count || sent < count; {
				if sent < count && (sent-received < 200 || received == count) {
					send(t, p, next, 64, 1, uint64(sent))
					sent++
				}
				n := p.Receive(bufs[:])
				p.Release(bufs[:n])
				if received += n; n == 0 {
					_ = p.Wait(time.Millisecond)
				}
				if time.Now().After(end) {
					t.Errorf("port %d: received %d of %d frames", i, received, count)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestWaitAndWake(t *testing.T) {
	l := newLink(t, Config{})
	p := l.Port(0)
	wait := func(d time.Duration) time.Duration {
		t.Helper()
		began := time.Now()
		if err := p.Wait(d); err != nil {
			t.Error(err)
		}
		return time.Since(began)
	}
	if d := wait(20 * time.Millisecond); d < 20*time.Millisecond {
		t.Errorf("Wait(20ms) took %v", d)
	}
	if d := wait(0); d > 5*time.Second {
		t.Errorf("Wait(0) took %v", d)
	}
	// Wake makes the current or the next Wait return, but only one.
	p.Wake()
	p.Wake()
	if d := wait(time.Hour); d > time.Minute {
		t.Errorf("Wait after Wake took %v", d)
	}
	if d := wait(20 * time.Millisecond); d < 20*time.Millisecond {
		t.Errorf("one Wake ended two Waits (%v)", d)
	}
	time.AfterFunc(10*time.Millisecond, p.Wake)
	if d := wait(-1); d > time.Minute {
		t.Errorf("Wait took %v to return after Wake", d)
	}
	time.AfterFunc(10*time.Millisecond, func() { send(t, l.Port(1), p, 64, 1, 1) })
	wait(forever)
	if got := receive(t, p); len(got) != 1 {
		t.Errorf("received %d frames after Wait", len(got))
	}
}

// forever is very long, but does not mean "no limit".
const forever = time.Duration(1<<63 - 1)

// No Wake is lost when many goroutines call it while Wait sleeps.
func TestWakeIsNeverLost(t *testing.T) {
	l := newLink(t, Config{})
	p := l.Port(0)
	const rounds = 20_000
	turn, answer := make(chan struct{}), make(chan struct{})
	go func() {
		for range rounds {
			<-turn
			p.Wake()
			answer <- struct{}{}
		}
	}()
	for range rounds {
		turn <- struct{}{}
		if err := p.Wait(-1); err != nil {
			t.Fatal(err)
		}
		<-answer
	}
}

// In real time a delayed frame arrives when it is due and not before.
func TestDelayInRealTime(t *testing.T) {
	l := newLink(t, Config{Plan: Plan{Delay: 3 * time.Millisecond}})
	began := time.Now()
	send(t, l.Port(0), l.Port(1), 64, 1, 1)
	if got := receive(t, l.Port(1)); len(got) != 0 {
		t.Error("received a frame before it was due")
	}
	if err := l.Port(1).Wait(-1); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(began); d < 3*time.Millisecond {
		t.Errorf("Wait took %v", d)
	}
	if got := receive(t, l.Port(1)); len(got) != 1 {
		t.Errorf("received %d frames", len(got))
	}
}

// round is one round of a busy owner: it sends a batch, receives it and releases it.
func round(from, to driver.Port, bufs []driver.Buf) {
	n := from.Alloc(bufs)
	for i := range n {
		bufs[i].B = bufs[i].B[:64]
		dst, src := portMAC(1), portMAC(0)
		copy(bufs[i].B, dst[:])
		copy(bufs[i].B[6:], src[:])
	}
	_, _ = from.Send(bufs[:n])
	n = to.Receive(bufs)
	to.Release(bufs[:n])
}

// Steady traffic does not allocate, with or without faults and wrappers.
func TestNoAllocation(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	faulty := Plan{Loss: 0.1, Duplicate: 0.1, Corrupt: 0.1, Reorder: 0.1, Jitter: time.Microsecond}
	for name, wrap := range map[string]func(*Link, driver.Port) driver.Port{
		"link": func(_ *Link, p driver.Port) driver.Port { return p },
		"faulty link": func(l *Link, p driver.Port) driver.Port {
			_, _ = l.SetPlan(0, 1, faulty), l.SetPlan(1, 0, faulty)
			return p
		},
		"inject": func(l *Link, p driver.Port) driver.Port {
			return InjectWith(p, InjectConfig{Transmit: faulty, Receive: faulty, Clock: l.Now})
		},
		"tee": func(_ *Link, p driver.Port) driver.Port { return Tee(p, io.Discard) },
	} {
		for _, virtual := range []bool{true, false} {
			l := newLink(t, Config{Virtual: virtual})
			from, to := wrap(l, l.Port(0)), wrap(l, l.Port(1))
			bufs := make([]driver.Buf, 32)
			work := func() {
				round(from, to, bufs)
				from.Wake()
				_ = from.Wait(0)
				_ = to.Wait(0)
				if virtual {
					l.Advance(10 * time.Microsecond)
					l.NextEvent()
				}
			}
			for range 2000 {
				work()
			}
			if n := testing.AllocsPerRun(500, work); n != 0 {
				t.Errorf("%s, virtual %v: %v allocations per round, want 0", name, virtual, n)
			}
		}
	}
}

func BenchmarkRound(b *testing.B) {
	l := newLink(b, Config{})
	bufs := make([]driver.Buf, 32)
	for b.Loop() {
		round(l.Port(0), l.Port(1), bufs)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/32, "ns/frame")
}

func BenchmarkPingPong(b *testing.B) {
	local, remote, stop := withEcho(b, wrappers["link"])
	defer stop()
	var bufs [8]driver.Buf
	for b.Loop() {
		send(b, local, remote, 64, 1, 1)
		for n := 0; n == 0; {
			if n = local.Receive(bufs[:]); n == 0 {
				_ = local.Wait(-1)
			}
			local.Release(bufs[:n])
		}
	}
}

func BenchmarkNewLink(b *testing.B) {
	for _, c := range []Config{{Virtual: true}, {Virtual: true, Queue: 64, TxBufs: 64}} {
		b.Run(fmt.Sprintf("queue%d", c.Queue), func(b *testing.B) {
			for b.Loop() {
				if _, err := NewLink(c); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
