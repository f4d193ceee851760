package flowplan

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
)

// In virtual time, observed response times do not exceed the bounds, and come close.
func TestRunVirtual(t *testing.T) {
	p := parsed(t, `
link: {rate: 978Mb/s, delay: 5us, overhead: 58}
flows:
  - {name: high, priority: 7, size: 64, period: 1ms, phase: 10us}
  - {name: middle, priority: 3, size: 100KiB, part: 16KiB, period: 7ms, deadline: 5ms}
  - {name: low, size: 64KiB, part: 32KiB, burst: 128KiB, rate: 100Mb/s}
`)
	list, err := Run(t.Context(), p, Virtual, 100*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []uint64{100, 15, 20} {
		o := list[i]
		if !o.Within || o.Sent < want-1 || o.Late+o.Dropped+o.Missed != 0 || o.Max < o.Mean {
			t.Errorf("%+v, want %d messages within the bound", o, want)
		}
	}
	if o := list[0]; float64(o.Max) < 0.9*float64(o.Bound) {
		t.Errorf("%+v, want a maximum near the bound", o)
	}
}

// In virtual time, too, Run ends when its context is done.
func TestRunCanceled(t *testing.T) {
	p := parsed(t, "link: {rate: 1Gb/s}\nflows: [{name: a, size: 10, period: 1us}]")
	cause := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, cause)
	defer cancel()
	if _, err := Run(ctx, p, Virtual, 100*time.Hour); !errors.Is(err, cause) {
		t.Errorf("Run() = %v, want %v", err, cause)
	}
}

// A chain of tasks and flows runs in virtual time, and its drawing has all messages.
func TestRunChain(t *testing.T) {
	p := parsed(t, chainPlan)
	list, err := Run(t.Context(), p, Virtual, 200*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []uint64{20, 20, 75} {
		if o := list[i]; !o.Within || o.Sent < want-2 || o.Missed != 0 {
			t.Errorf("%+v, want %d messages within the bound", o, want)
		}
	}
	if o := list[1]; o.Chain == 0 || o.MaxChain > o.Chain || o.MaxChain < 6*time.Millisecond {
		t.Errorf("%+v, want a chain of at least 6 ms within its bound", o)
	}
	line, err := NewTimeline(p, 40*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	sent := map[int]int{}
	for _, q := range line.Parts {
		if q.Last {
			sent[q.Flow]++
		}
	}
	if sent[0] != 4 || sent[1] != 4 {
		t.Errorf("messages %v, want 4 of the first two flows", sent)
	}
}

// The classes of the engine keep the bounds, too, and preempt messages that have no parts.
func TestRunClasses(t *testing.T) {
	p := parsed(t, `
link: {rate: 978Mb/s, delay: 5us, overhead: 58}
classes: {0: {preempt: 16KiB}}
tasks: [{name: start, period: 5ms, time: 1ms}]
flows:
  - {name: brake, class: 7, size: 64, period: 1ms, phase: 300us}
  - {name: frame, class: 3, size: 200KiB, after: start}
  - {name: answer, class: 5, size: 1000, after: frame}
  - {name: log, size: 1MiB, burst: 2MiB, rate: 300Mb/s}
`)
	list, err := Run(t.Context(), p, Virtual, 200*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []uint64{200, 40, 40, 6} {
		if o := list[i]; !o.Within || o.Sent < want-2 || o.Missed != 0 {
			t.Errorf("%+v, want %d messages within the bound", o, want)
		}
	}
	if o := list[0]; o.Max > 200*time.Microsecond {
		t.Errorf("%+v, want that class 7 preempts class 0", o)
	}
	for _, kind := range []LinkKind{Memory, Veth} {
		list, err := Run(t.Context(), p, kind, 50*time.Millisecond)
		if testbed.Unavailable(err) {
			t.Logf("%s: %v", kind, err)
			continue
		}
		if err != nil || list[0].Sent == 0 {
			t.Errorf("%s: Run() = %+v, %v", kind, list, err)
		}
	}
}

// With random flows, no response exceeds its bound in virtual time, whether the scheduler or the
// classes order the messages. Some flows have messages that arrive before the previous one is done.
func TestRunRandom(t *testing.T) {
	for seed := range uint64(24) {
		r := rand.New(rand.NewPCG(seed, 5))
		var b strings.Builder
		b.WriteString("link: {rate: 978Mb/s, delay: 5us, overhead: 58}\n")
		if seed%2 == 0 {
			fmt.Fprintf(&b, "classes: {%d: {preempt: 8KiB}}\n", r.IntN(8))
		}
		b.WriteString("flows:\n")
		for i := range 2 + r.IntN(5) {
			fmt.Fprintf(&b, "  - {name: f%d, class: %d, size: %d, phase: %dus, ", i, r.IntN(8),
				1+r.IntN(120<<10), r.IntN(3000))
			if r.IntN(4) == 0 {
				fmt.Fprintf(&b, "burst: %d, rate: %dMb/s}\n", 240<<10, 10+r.IntN(90))
				continue
			}
			fmt.Fprintf(&b, "period: %dus}\n", 2000+r.IntN(8000))
		}
		p := parsed(t, b.String())
		list, err := Run(t.Context(), p, Virtual, 40*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list {
			if o.Bound >= 0 && !o.Within {
				t.Errorf("seed %d: %+v exceeds its bound\n%s", seed, o, b.String())
			}
		}
	}
}

// An overload delays and drops only the low priority.
func TestRunOverload(t *testing.T) {
	p := parsed(t, `
link: {rate: 978Mb/s, delay: 5us, overhead: 58}
flows:
  - {name: high, priority: 7, size: 1000, period: 1ms}
  - {name: low, size: 2MiB, part: 32KiB, period: 10ms, deadline: 30ms, on_late: drop}
`)
	list, err := Run(t.Context(), p, Virtual, 100*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if o := list[0]; !o.Within || o.Late+o.Missed != 0 || o.Sent < 99 {
		t.Errorf("high priority: %+v", o)
	}
	if o := list[1]; o.Bound != -1 || o.Missed+o.Late == 0 {
		t.Errorf("low priority: %+v", o)
	}
}

func TestRunRealTime(t *testing.T) {
	p := parsed(t, `
link: {rate: 978Mb/s}
flows:
  - {name: a, priority: 1, size: 1000, period: 1ms}
`)
	for _, kind := range []LinkKind{Memory, Veth} {
		list, err := Run(t.Context(), p, kind, 50*time.Millisecond)
		if testbed.Unavailable(err) {
			t.Logf("%s: %v", kind, err)
			continue
		}
		if err != nil || len(list) != 1 || list[0].Sent == 0 {
			t.Errorf("%s: Run() = %+v, %v", kind, list, err)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped")
	cancel(stopped)
	if _, err := Run(ctx, p, Memory, time.Hour); !errors.Is(err, stopped) &&
		!errors.Is(err, context.Canceled) {
		t.Errorf("Run() = %v, want that it was stopped", err)
	}
}

// A server receives what another host sends, from one sender after the other.
func TestSendServe(t *testing.T) {
	p := parsed(t, `
link: {rate: 978Mb/s}
flows:
  - {name: a, priority: 1, size: 1000, period: 1ms}
  - {name: b, size: 10000, part: 4096, period: 3ms}
`)
	bed, err := testbed.New(testbed.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := bed.Close(); err != nil {
			t.Error(err)
		}
	}()
	ctx, stop := context.WithCancel(t.Context())
	listening, served := make(chan struct{}), make(chan error)
	ended := make(chan Received, 4)
	go func() {
		served <- Serve(ctx, p, bed.Dev[1], ServeConfig{Port: 7700,
			Permits:   func(a netip.Addr) bool { return a == bed.Addr(0, 0).Addr() },
			Listening: func() error { close(listening); return nil },
			Ended:     func(r Received) { ended <- r }})
	}()
	<-listening
	for range 2 {
		list, err := Send(t.Context(), p, bed.Dev[0], bed.Addr(1, 0).Addr(), 7700,
			20*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		sent := map[string]uint64{}
		for _, o := range list {
			sent[o.Flow] = o.Sent
		}
		for range 2 {
			r := <-ended
			size := map[string]uint64{"a": 1000, "b": 10000}[r.Flow]
			// A message may have been on its way at the end.
			if r.Err != nil || r.Messages == 0 || r.Messages < sent[r.Flow] ||
				r.Bytes != r.Messages*size || r.Peer != bed.Addr(0, 0).Addr() {
				t.Errorf("received %+v, sent %v", r, sent)
			}
		}
	}
	stop()
	if err := <-served; err != nil {
		t.Errorf("Serve() = %v", err)
	}
	refusal := errors.New("no")
	if err := Serve(t.Context(), p, bed.Dev[1], ServeConfig{Port: 7700,
		Listening: func() error { return refusal }}); !errors.Is(err, refusal) {
		t.Errorf("Serve() = %v, want the error of Listening", err)
	}
}

// Parts do not overlap, higher priorities come first, and late messages are marked.
func TestTimeline(t *testing.T) {
	p := parsed(t, `
link: {rate: 1Gb/s, gap: 0s}
flows:
  - {name: high <&>, priority: 7, size: 1000, period: 1ms, phase: 50us}
  - {name: low, size: 200KiB, part: 16KiB, period: 4ms, deadline: 1785us}
  - {name: burst, size: 10KiB, burst: 40KiB, rate: 1Mb/s, phase: 2ms}
`)
	line, err := NewTimeline(p, 8*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	sent := map[int]int{}
	for i, q := range line.Parts {
		if i > 0 && q.Start < line.Parts[i-1].End {
			t.Errorf("part %d begins at %v, before the previous one ends", i, q.Start)
		}
		if q.Last {
			sent[q.Flow]++
		}
	}
	if sent[0] != 8 || sent[1] != 2 || sent[2] != 4 {
		t.Errorf("messages %v, want 8, 2 and 4", sent)
	}
	late, arrived := map[int]int{}, map[int]int{}
	for _, m := range line.Marks {
		if m.Late {
			late[m.Flow]++
		} else {
			arrived[m.Flow]++
		}
	}
	if late[1] != 2 || late[0] != 0 || arrived[0] != 8 || arrived[2] != 4 {
		t.Errorf("late %v, arrived %v", late, arrived)
	}
	var b bytes.Buffer
	if err := line.SVG(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for dec := xml.NewDecoder(&b); ; {
		if _, err := dec.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("the drawing is not XML: %v", err)
		}
	}
	if !strings.Contains(text, "high &lt;&amp;&gt; (7)") || strings.Count(text, "red") != 2 {
		t.Errorf("the drawing lacks a name or a late message:\n%s", text)
	}
	if _, err := NewTimeline(p, time.Hour); err == nil {
		t.Error("NewTimeline() draws an hour")
	}
}
