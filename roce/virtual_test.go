package roce

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
)

// virtualPair returns two devices in virtual time on a bad link. All random numbers come from one
// seed.
func virtualPair(t *testing.T, seed uint64) (*loopback.Link, *end, *end) {
	link := newLink(t, loopback.Config{
		Virtual: true, Seed: seed,
		Plan: loopback.Plan{Loss: 0.05, Duplicate: 0.02, Reorder: 0.05, Corrupt: 0.02,
			Delay: 5 * time.Microsecond, Jitter: 2 * time.Microsecond},
	})
	var ends [2]*end
	for i := range ends {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		ends[i] = newEnd(t, newDevice(t, link, i,
			WithExpert(Expert{Clock: link.Now, Rand: r.Uint64})),
			rigConfig{mem: 1 << 20, mr: []MROption{WithIOVA(0x10000)}})
	}
	connect(t, ends[0].qp, ends[1].qp)
	return link, ends[0], ends[1]
}

// advance runs both devices until they have nothing to do, then moves the clock to the next arrival
// or timer.
func advance(t *testing.T, link *loopback.Link, ds ...*Device) {
	t.Helper()
	for busy := true; busy; {
		busy = false
		for _, d := range ds {
			busy = d.Progress() > 0 || busy
		}
	}
	next, ok := link.NextEvent()
	for _, d := range ds {
		if at, have := d.NextTimeout(); have && (!ok || at < next) {
			next, ok = at, true
		}
	}
	if !ok {
		t.Fatal("no frame is in transit and no timer runs")
	}
	link.Advance(time.Duration(max(1, next-link.Now())))
}

// TestVirtualTimeIsReproducible: the same seed causes the same packets at the same times.
func TestVirtualTimeIsReproducible(t *testing.T) {
	run := func(seed uint64) (trace uint64, took int64, packets uint64) {
		link, a, b := virtualPair(t, seed)
		start := link.Now()
		want := fill(a.mr.Bytes()[:300_000], seed)
		must(t, a.qp.PostSend(
			SendWR{ID: 1, Op: OpWrite, Flags: Signaled, SGEs: []SGE{a.mr.SGE(0, 300_000)},
				RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()},
			SendWR{ID: 2, Op: OpRead, Flags: Signaled, SGEs: []SGE{a.mr.SGE(400_000, 300_000)},
				RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
		var wcs [4]WC
		for got := 0; got < 2; {
			advance(t, link, a.Device, b.Device)
			n := a.cq.Poll(wcs[:])
			for _, wc := range wcs[:n] {
				if got++; wc.ID != uint64(got) || wc.Status != Success {
					t.Fatalf("seed %d: %+v: %v", seed, wc, wc.Status)
				}
			}
		}
		if !bytes.Equal(b.mr.Bytes()[:300_000], want) ||
			!bytes.Equal(a.mr.Bytes()[400_000:700_000], want) {
			t.Fatalf("seed %d: data differs", seed)
		}
		return link.TraceHash(), link.Now() - start, a.Counters().SentPkts
	}
	for seed := range uint64(10) {
		h1, t1, p1 := run(seed)
		h2, t2, p2 := run(seed)
		if h1 != h2 || t1 != t2 || p1 != p2 {
			t.Errorf("seed %d: %x in %d ns with %d packets, then %x in %d ns with %d packets", seed,
				h1, t1, p1, h2, t2, p2)
		}
	}
}

// TestVirtualTimeDoesNotWait: calls that would need to wait return ErrVirtualTime.
func TestVirtualTimeDoesNotWait(t *testing.T) {
	_, a, _ := virtualPair(t, 1)
	var wcs [1]WC
	if _, err := a.cq.Wait(context.Background(), wcs[:]); !errors.Is(err, ErrVirtualTime) {
		t.Errorf("Wait: %v", err)
	}
	must(t, a.qp.PostSend(SendWR{Op: OpSend}))
	if err := a.qp.Drain(context.Background()); !errors.Is(err, ErrVirtualTime) {
		t.Errorf("Drain: %v", err)
	}
}
