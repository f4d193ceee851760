package qp

import (
	"testing"

	"github.com/gorxe/gorxe/bth"
	"pgregory.net/rapid"
)

// The window grows by what is acknowledged up to its threshold, then by the given growth per
// window, up to a limit.
func TestWindowGrowsAndShrinks(t *testing.T) {
	var w window
	w.init(256, CongestionAdaptive)
	want := func(n uint32) {
		t.Helper()
		if w.size() != n {
			t.Fatalf("size() = %d, want %d", w.size(), n)
		}
	}
	want(firstWindow)
	w.grow(10, growthUnit, 256)
	want(74)
	w.grow(1000, growthUnit, 200)
	want(200)
	w.grow(1000, growthUnit, 256)
	want(256)
	w.shrink(128)
	want(128)
	w.grow(127, growthUnit, 256)
	want(128)
	w.grow(1, growthUnit, 256)
	want(129) // linear now
	w.grow(129, 10*growthUnit, 256)
	want(139)
	w.grow(1, growthUnit, 100) // a limit below the window does not shrink it
	want(139)
	w.collapse()
	want(1)
	w.init(maxMaxWindow, CongestionAdaptive)
	w.grow(maxPSNCount, growthUnit, maxMaxWindow)
	want(maxMaxWindow)
	w.shrink(4)
	w.grow(maxPSNCount, 1<<31, maxMaxWindow)
	want(maxMaxWindow)
	w.init(2, CongestionAdaptive) // a small limit also bounds the first window
	want(2)
	w.init(1000, CongestionNone)
	want(1000)
}

// The window stays within its bounds, and grows again after any losses.
func TestWindowBounds(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		limit := uint32(rapid.IntRange(minWindow, maxMaxWindow).Draw(r, "limit"))
		var w window
		w.init(limit, CongestionAdaptive)
		for range rapid.IntRange(0, 200).Draw(r, "steps") {
			n := uint32(rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(0, maxPSNCount)).Draw(r,
				"n"))
			switch rapid.IntRange(0, 2).Draw(r, "what") {
			case 0:
				before := w.cwnd
				w.grow(n, rapid.Uint32Range(1, maxMaxWindow).Draw(r, "growth"), limit)
				if w.cwnd < before ||
					(before < w.threshold && n >= w.threshold && w.cwnd != w.threshold) {
					r.Fatalf("%d acknowledged: window %d -> %d, threshold %d", n, before, w.cwnd,
						w.threshold)
				}
			case 1:
				w.shrink(max(n, minWindow))
			case 2:
				w.collapse()
			}
			if s := w.size(); s < 1 || s > limit || w.cwnd < minWindow {
				r.Fatalf("window %d, limit %d", s, limit)
			}
		}
		w.probing = false
		for range 40 {
			w.grow(limit, w.cwnd, limit)
		}
		if w.size() != limit {
			r.Fatalf("window %d after a long time without loss, limit %d", w.size(), limit)
		}
	})
}

// At most a window of packets is in flight. The one that fills it asks for an ACK.
func TestWindowBoundsFlight(t *testing.T) {
	k := newTalk(t, RC)
	k.post(k.wr(1, OpWrite, 200*talkMTU))
	ps := k.listen()
	k.equal("in flight", len(ps), firstWindow)
	k.equal("the last asks", ps[len(ps)-1].BTH.AckReq(), true)
	k.say(ack(9))
	k.equal("ten more, and ten for growth", len(k.listen()), 20)
	k.now += 10_000
	k.say(nak(20, bth.NAKPSNSequence))
	// Ten more were acknowledged, then the loss reduced the window.
	k.equal("packets after a loss", len(k.listen()), (firstWindow+10+10)*7/10)
}

// A READ larger than the window is requested in parts that fit it (see sendRead), so the
// responder's packets stay within it.
func TestReadWithinWindow(t *testing.T) {
	w := newWorld(t, 1)
	a, _ := w.pair(RC, func(_ *InitAttr, at *Attr) { at.PathMTU = 256 })
	va, key := w.ends[1].remote(0)
	most := uint64(0)
	w.trace = func(int, *bth.Packet, bool) {
		if d := a.nxt - a.una; d > most {
			most = d
		}
	}
	w.post(a, SendWR{ID: 1, Op: OpRead, Flags: Signaled, SGEs: []SGE{w.ends[0].sge(0, 500_000)},
		RemoteAddr: va, RKey: key})
	if wc := w.wc(0); wc.Status != Success {
		t.Fatal(wc.short())
	}
	if most > DefaultWindow || most < 64 {
		t.Errorf("at most %d packets outstanding, the window is %d", most, DefaultWindow)
	}
}

// The window of a QP that does not fill it does not grow, and its path needs no model.
func TestWindowOfLightLoad(t *testing.T) {
	k := newTalk(t, RC)
	for i := range 3 * firstWindow {
		k.post(k.wr(1, OpWrite, 8))
		k.listen()
		k.now += 10_000
		k.say(ack(i))
	}
	if k.q.win.size() != firstWindow || k.q.win.modeled {
		t.Errorf("window %d, modeled %v; want %d and false", k.q.win.size(), k.q.win.modeled,
			firstWindow)
	}
}
