package indirect

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/indirect/core"
)

// replay runs one seed in virtual time on real packets: faults of the link and of registration.
func replay(t *testing.T, seed uint64) (trace uint64, took int64, ca, cb core.Counters) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	link, err := loopback.NewLink(loopback.Config{Virtual: true, Seed: seed, Plan: loopback.Plan{
		Loss: []float64{0, 0.05, 0.2}[seed%3], Duplicate: 0.02, Reorder: 0.02,
		Delay: 5 * time.Microsecond, Jitter: 2 * time.Microsecond,
	}})
	if err != nil {
		t.Fatal(err)
	}
	options := func() []roce.Option {
		return []roce.Option{roce.WithExpert(roce.Expert{Clock: link.Now, Rand: r.Uint64})}
	}
	cfg := Config{
		Clock: link.Now, Rand: r.Uint64, Timeout: 100 * time.Microsecond, Slots: 1 + int(seed%2),
		MaxTransfer: 16 << 10, Segment: 4 << 10, Entries: 4,
		RC:     roce.ConnectOptions{Timeout: 12},
		Faults: Faults{Seed: seed, FailedRegistration: []float64{0, 0.3, 0.6}[seed/3%3]},
	}
	a, b := manualPairAt(t, link, cfg, options)
	start := link.Now()
	const n, length = 12, 16 << 10
	var evs [8]Event
	for posted, done := 0, 0; done < n; {
		for posted < n {
			x := Transfer{Kind: Kind(posted % 4 / 3), MR: a.mr, Off: posted * length, Len: length,
				DBA: uint64(posted * length), Cookie: uint64(posted)}
			from, salt := a, seed
			if x.Kind == Read {
				from = b
			}
			if err := a.conn.Post(&x); err != nil {
				break
			}
			fill(from.mr.Bytes()[x.Off:][:length], salt<<8+uint64(posted))
			posted++
		}
		b.Poll(evs[:])
		k := a.Poll(evs[:])
		for _, ev := range evs[:k] {
			if ev.Kind == Down || (ev.Kind == Done && ev.Status != StatusOK) {
				t.Fatalf("seed %d: %+v", seed, ev)
			}
			if off := int(ev.Cookie) * length; ev.Kind == Done {
				done++
				if !bytes.Equal(a.mr.Bytes()[off:][:length], b.mr.Bytes()[off:][:length]) {
					t.Fatalf("seed %d: transfer %d: data differs", seed, ev.Cookie)
				}
			}
		}
		if k == 0 {
			advance(t, link, a, b)
		}
		if took := time.Duration(link.Now() - start); took > time.Minute {
			t.Fatalf("seed %d: %d of %d done after %v", seed, done, n, took)
		}
	}
	return link.TraceHash(), link.Now() - start, a.conn.Counters(), b.conn.Counters()
}

func manualPairAt(t *testing.T, link *loopback.Link, c Config, options func() []roce.Option) (
	a, b *end) {
	return manualPair(t, link, c, c, options(), options())
}

// advance drives both sides until nothing is due now, then moves the clock to the next event.
func advance(t *testing.T, link *loopback.Link, ends ...*end) {
	t.Helper()
	for busy := true; busy; {
		busy = false
		for _, e := range ends {
			busy = e.dev.Progress() > 0 || busy
			busy = (!e.still && e.Progress() > 0) || busy
		}
	}
	next, ok := link.NextEvent()
	earlier := func(at int64) {
		if !ok || at < next {
			next, ok = at, true
		}
	}
	for _, e := range ends {
		if at, have := e.dev.NextTimeout(); have {
			earlier(at)
		}
		if at, have := e.NextTimeout(); have && !e.still {
			earlier(at)
		}
	}
	if !ok {
		t.Fatal("nothing is outstanding and no timer runs")
	}
	link.Advance(time.Duration(max(1, next-link.Now())))
}

// virtual is two endpoints in virtual time with realistic times. Nothing depends on the load of the
// machine.
type virtual struct {
	t    *testing.T
	link *loopback.Link
	a, b *end
}

func newVirtual(t *testing.T, c Config) *virtual {
	t.Helper()
	link, err := loopback.NewLink(loopback.Config{Virtual: true, Seed: 1,
		Plan: loopback.Plan{Delay: 5 * time.Microsecond}})
	if err != nil {
		t.Fatal(err)
	}
	c.Clock = link.Now
	v := &virtual{t: t, link: link}
	v.a, v.b = manualPairAt(t, link, c,
		func() []roce.Option { return []roce.Option{roce.WithExpert(roce.Expert{Clock: link.Now})} })
	return v
}

// goOn lets time pass until an endpoint has an event of this kind, or for limit.
func (v *virtual) goOn(e *end, kind EventKind, limit time.Duration) (ev Event, ok bool) {
	v.t.Helper()
	var evs [1]Event
	for until := v.link.Now() + int64(limit); v.link.Now() < until; {
		for e.Poll(evs[:]) > 0 {
			if evs[0].Kind == kind {
				return evs[0], true
			}
		}
		advance(v.t, v.link, v.a, v.b)
	}
	return ev, false
}

// write performs a Write from a to b that must succeed and arrive.
func (v *virtual) write(dba, seed uint64) {
	v.t.Helper()
	want := fill(v.a.mr.Bytes()[:size], seed)
	if err := v.a.conn.Post(&Transfer{Kind: Write, MR: v.a.mr, Len: size, DBA: dba}); err != nil {
		v.t.Fatal(err)
	}
	if ev, ok := v.goOn(v.a, Done, time.Second); !ok || ev.Status != StatusOK {
		v.t.Fatalf("%+v", ev)
	}
	if !bytes.Equal(v.b.mr.Bytes()[dba:][:size], want) {
		v.t.Fatal("data differs")
	}
}

// TestVirtualTime runs many seeds on real packets and checks that each replays.
func TestVirtualTime(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 9
	}
	var sum core.Counters
	for seed := range seeds {
		h1, t1, a1, b1 := replay(t, seed)
		if seed%6 == 0 {
			if h2, t2, a2, b2 := replay(t, seed); h1 != h2 || t1 != t2 || a1 != a2 || b1 != b2 {
				t.Errorf("seed %d: %x in %d ns, then %x in %d ns", seed, h1, t1, h2, t2)
			}
		}
		sum.Add(&a1)
		sum.Add(&b1)
	}
	if sum.Indirect == 0 || sum.Parked == 0 || sum.Direct == 0 || sum.BufferFull == 0 ||
		sum.ReadDirect == 0 {
		t.Errorf("not everything happened: %+v", sum)
	}
	t.Logf("%+v", sum)
}
