package qp

import (
	"testing"

	"github.com/gorxe/gorxe/bth"
	"pgregory.net/rapid"
)

// The window grows by what is acknowledged up to its threshold, then by one per window. A loss
// halves it, once per window of packets, never below lossWindow.
func TestWindowGrowsAndShrinks(t *testing.T) {
	var w window
	w.init(256)
	want := func(n uint32) {
		t.Helper()
		if w.size() != n {
			t.Fatalf("window %d, want %d", w.size(), n)
		}
	}
	want(firstWindow)
	w.acked(10)
	want(74)
	w.acked(1000)
	want(256)
	w.loss(1000, 1256)
	want(128)
	w.loss(1100, 1256) // the same window of packets
	want(128)
	w.acked(127)
	want(128)
	w.acked(1)
	want(129) // linear now
	for range 20 {
		w.loss(w.recover, w.recover+1)
	}
	want(lossWindow)
	w.collapse()
	want(1)
	w.acked(1)
	want(lossWindow)
	w.init(maxMaxWindow)
	w.acked(1 << 20) // more than 16 bits
	want(maxMaxWindow)
	w.init(2) // a small limit also bounds the first window
	want(2)
}

// The window stays within its bounds, and grows again after any losses.
func TestWindowBounds(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		limit := uint32(rapid.IntRange(minWindow, maxMaxWindow).Draw(r, "limit"))
		var w window
		w.init(limit)
		una := uint64(countBase)
		for range rapid.IntRange(0, 200).Draw(r, "steps") {
			n := uint64(rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(0, maxPSNCount)).Draw(r,
				"n"))
			switch rapid.IntRange(0, 2).Draw(r, "what") {
			case 0:
				una += n
				before := w.cwnd
				w.acked(uint32(n))
				if w.cwnd < before ||
					(before < w.threshold && n >= uint64(w.threshold) && w.cwnd != w.threshold) {
					r.Fatalf("%d acknowledged: window %d -> %d, threshold %d", n, before, w.cwnd,
						w.threshold)
				}
			case 1:
				w.loss(una, una+n)
			case 2:
				w.collapse()
			}
			if s := w.size(); s < 1 || s > limit || w.cwnd < minWindow {
				r.Fatalf("window %d, limit %d", s, limit)
			}
		}
		for range 40_000 {
			w.acked(limit)
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
	// Eleven more were acknowledged (growth), then the loss halved it.
	want := (firstWindow + 10 + 10) / 2
	if got := len(k.listen()); got < want || got > want+1 {
		t.Errorf("%d packets after a loss, want %d", got, want)
	}
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
