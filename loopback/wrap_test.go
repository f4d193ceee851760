package loopback

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/google/gopacket/pcapgo"
	"github.com/gorxe/gorxe/driver"
)

// Ports without some of the optional interfaces.
type (
	bare    struct{ driver.Port }
	netOnly struct {
		driver.Port
		driver.Network
	}
	statOnly struct {
		driver.Port
		driver.StatsReader
	}
)

// A wrapper implements Network and Stats exactly if the inner Port does.
func TestWrappersForward(t *testing.T) {
	p := newLink(t, Config{}).Port(0)
	for name, wrap := range map[string]func(driver.Port) driver.Port{
		"inject": func(p driver.Port) driver.Port { return Inject(p, 1, Plan{}) },
		"tee":    func(p driver.Port) driver.Port { return Tee(p, io.Discard) },
		"both":   func(p driver.Port) driver.Port { return Tee(Inject(p, 1, Plan{}), io.Discard) },
	} {
		for _, c := range []struct {
			inner      driver.Port
			net, stats bool
		}{{p, true, true}, {bare{p}, false, false}, {netOnly{p, p}, true, false},
			{statOnly{p, p}, false, true}} {
			w := wrap(c.inner)
			n, hasNet := w.(driver.Network)
			_, hasStats := w.(driver.StatsReader)
			if hasNet != c.net || hasStats != c.stats {
				t.Errorf("%s around %T: implements Network %v, Stats %v", name, c.inner, hasNet,
					hasStats)
			}
			if hasNet && len(n.Addrs()) != 3 {
				t.Errorf("%s: Addrs() = %v", name, n.Addrs())
			}
			if w.Info().Name != "mem0" {
				t.Errorf("%s: Info() = %+v", name, w.Info())
			}
		}
		if _, _, ok := FaultsOf(wrap(p)); ok != (name != "tee") {
			t.Errorf("%s: FaultsOf found an injector: %v", name, ok)
		}
	}
}

func TestInjectRefusesBadPlan(t *testing.T) {
	defer func() {
		if err, _ := recover().(error); !errors.Is(err, ErrPlan) {
			t.Errorf("panic with %v", err)
		}
	}()
	Inject(newLink(t, Config{}).Port(0), 1, Plan{Loss: -1})
}

// A full lane sends frames early, so that the inner Port does not run out of buffers.
func TestInjectHoldsLimitedNumber(t *testing.T) {
	l := newLink(t, Config{Virtual: true, TxBufs: maxHeld + 10})
	p := InjectWith(l.Port(0), InjectConfig{Transmit: Plan{Delay: time.Hour}, Clock: l.Now})
	send(t, p, l.Port(1), 60, 2*maxHeld, 0)
	got := receive(t, l.Port(1))
	if len(got) != maxHeld || got[0] != 0 || got[maxHeld-1] != maxHeld-1 {
		t.Fatalf("%d frames left early, want the first %d", len(got), maxHeld)
	}
	l.Advance(time.Hour)
	p.Alloc(nil)
	if got := receive(t, l.Port(1)); len(got) != maxHeld || got[0] != maxHeld {
		t.Errorf("%d frames arrived in time", len(got))
	}

	r := InjectWith(l.Port(1), InjectConfig{Receive: Plan{Delay: time.Hour}, Clock: l.Now})
	send(t, l.Port(0), r, 60, 2*maxHeld, 0)
	early := receive(t, r)
	l.Advance(time.Hour)
	late := receive(t, r)
	if len(early) == 0 || len(early)+len(late) != 2*maxHeld {
		t.Errorf("received %d early and %d in time, of %d", len(early), len(late), 2*maxHeld)
	}
}

// Wait returns when a held frame is due even if nothing else happens.
func TestInjectWaitSendsLateFrames(t *testing.T) {
	l := newLink(t, Config{})
	p := Inject(l.Port(0), 1, Plan{Delay: 5 * time.Millisecond})
	send(t, p, l.Port(1), 60, 1, 42)
	done := make(chan error, 1)
	go func() { done <- l.Port(1).Wait(10 * time.Second) }()
	if err := p.Wait(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := receive(t, l.Port(1)); len(got) != 1 || got[0] != 42 {
		t.Errorf("received %v", got)
	}
	// Receive side: the frame has arrived but is held.
	r := InjectWith(l.Port(1), InjectConfig{Receive: Plan{Delay: 5 * time.Millisecond}})
	send(t, l.Port(0), r, 60, 1, 43)
	var got []uint64
	for end := time.Now().Add(10 * time.Second); len(got) == 0 && time.Now().Before(end); {
		if err := r.Wait(10 * time.Second); err != nil {
			t.Fatal(err)
		}
		got = receive(t, r)
	}
	if len(got) != 1 || got[0] != 43 {
		t.Errorf("received %v", got)
	}
}

// An error of the inner Port reaches the owner, and no buffer is lost.
func TestInjectErrors(t *testing.T) {
	l := newLink(t, Config{Virtual: true})
	p := Inject(l.Port(0), 1, Plan{})
	var bufs [3]driver.Buf
	p.Alloc(bufs[:])
	for i := range bufs {
		bufs[i].B = fill(bufs[i].B, l.Port(0).mac, l.Port(1).mac, 60, 0)
	}
	bufs[1].B = bufs[1].B[:5] // too short
	if n, err := p.Send(bufs[:]); n != 2 || err != nil {
		t.Errorf("Send() = %d, %v; want 2", n, err)
	}
	p.Alloc(bufs[:])
	_ = p.Close()
	if n, err := p.Send(bufs[:]); n != 0 || !errors.Is(err, ErrClosed) {
		t.Errorf("Send() after Close = %d, %v", n, err)
	}
	if l.Port(0).held != 0 {
		t.Error("buffers leaked")
	}
}

func TestTee(t *testing.T) {
	l := newLink(t, Config{Virtual: true})
	var file bytes.Buffer
	c := NewCapture(&file, l.Now)
	a, b := c.Tee(l.Port(0)), c.Tee(l.Port(1))
	send(t, a, b, 100, 1, 1)
	l.Advance(7 * time.Nanosecond)
	if got := receive(t, b); len(got) != 1 {
		t.Fatalf("received %v", got)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	r, err := pcapgo.NewReader(&file)
	if err != nil {
		t.Fatal(err)
	}
	want := fill(make([]byte, 100), l.Port(0).mac, l.Port(1).mac, 100, 1)
	for i, at := range []int64{startTime, startTime + 7} {
		data, info, err := r.ReadPacketData()
		if err != nil || !bytes.Equal(data, want) || info.Timestamp.UnixNano() != at ||
			info.Length != 100 {
			t.Errorf("packet %d: error %v, %d bytes at %d", i, err, len(data),
				info.Timestamp.UnixNano())
		}
	}
	if _, _, err := r.ReadPacketData(); err != io.EOF {
		t.Errorf("ReadPacketData after the last packet = %v", err)
	}
}

type fullDisk struct{}

var errFull = errors.New("disk full")

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

// A capture that cannot be written does not stop the traffic.
func TestTeeSurvivesWriteErrors(t *testing.T) {
	l := newLink(t, Config{Virtual: true})
	p := Tee(l.Port(0), fullDisk{})
	send(t, p, l.Port(1), 4000, 40, 0)
	if got := receive(t, l.Port(1)); len(got) != 40 {
		t.Errorf("received %d of 40 frames", len(got))
	}
	if err := p.Close(); !errors.Is(err, errFull) {
		t.Errorf("Close() = %v", err)
	}
}
