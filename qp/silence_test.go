package qp

import (
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// busyPair returns a world with n QPs between two ends that have measured their round trips, and a
// function that posts one WRITE to each QP of the first end.
func busyPair(t *testing.T, n int) (w *world, post func()) {
	w = newWorld(t, 1)
	as, _ := w.crowd(n)
	a := w.ends[0]
	raddr, rkey := w.ends[1].remote(0)
	post = func() {
		for i, q := range as {
			w.post(q, SendWR{ID: uint64(i), Op: OpWrite, Flags: Signaled, SGEs: []SGE{a.sge(0, 64)},
				RemoteAddr: raddr, RKey: rkey})
		}
	}
	for range 20 {
		post()
		w.run(second, func() bool { return len(a.wcs) == n })
		a.wcs = nil
	}
	if a.c.Probes != 0 {
		t.Fatalf("%d probes before the test", a.c.Probes)
	}
	return w, post
}

// TestSilentPeerIsProbedOnce: if nothing arrives from a peer, for example because it gets no CPU
// time, one QP probes it for all.
func TestSilentPeerIsProbedOnce(t *testing.T) {
	const n, silence = 64, Time(5_000_000)
	w, post := busyPair(t, n)
	a := w.ends[0]
	silent := true
	w.filter = func(from int, _ *bth.Packet) bool { return !silent || from == 0 }
	post()
	w.idle(silence)
	if p := a.c.Probes; p < 1 || p > 12 {
		t.Errorf("%d probes by %d QPs to a silent peer, want a few", p, n)
	}
	silent = false // the ACKs are lost, so every QP has to ask for its own
	start := w.now
	w.run(second, func() bool { return len(a.wcs) == n })
	if d := w.now - start; d > 2*maxSilence {
		t.Errorf("all work requests completed after %d ns, want at most %d", d, 2*maxSilence)
	}
}

// TestLossOnOneQPIsProbed: if packets of a QP are lost while others arrive, the QP does not wait
// for other QPs' probes.
func TestLossOnOneQPIsProbed(t *testing.T) {
	const n = 8
	w, post := busyPair(t, n)
	a := w.ends[0]
	lost := 0
	w.filter = func(from int, p *bth.Packet) bool {
		if from == 0 && lost < n/2 {
			lost++
			return false
		}
		return true
	}
	post()
	start := w.now
	w.run(second, func() bool { return len(a.wcs) == n })
	if d := w.now - start; lost != n/2 || d > 4*minRTO {
		t.Errorf("%d packets lost, recovered after %d ns, want %d and at most %d", lost, d, n/2,
			4*minRTO)
	}
	if a.c.Probes != n/2 {
		t.Errorf("%d probes, want %d", a.c.Probes, n/2)
	}
}

// TestFirstPacketsLost: a QP whose first packets are lost uses the round trip that another QP has
// measured, and does not wait for several times initialRTO.
func TestFirstPacketsLost(t *testing.T) {
	w, _ := busyPair(t, 1)
	as, _ := w.crowd(1)
	a, q := w.ends[0], as[0]
	raddr, rkey := w.ends[1].remote(0)
	lost := 0
	w.filter = func(from int, _ *bth.Packet) bool {
		if from == 0 && lost < 4 {
			lost++
			return false
		}
		return true
	}
	w.post(q, SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{a.sge(0, 64)}, RemoteAddr: raddr,
		RKey: rkey})
	start := w.now
	w.run(second, func() bool { return len(a.wcs) == 1 })
	if d := w.now - start; lost != 4 || d > 2*initialRTO {
		t.Errorf("%d packets lost, recovered after %d ns, want 4 and at most %d", lost, d,
			2*initialRTO)
	}
}

// TestProbesSpread: QPs whose probes were lost together do not send the next ones together.
func TestProbesSpread(t *testing.T) {
	const n = 16
	w := newWorld(t, 1)
	as, _ := w.crowd(n)
	deadlines := map[Time]bool{}
	for _, q := range as {
		q.rec.probes = 1
		q.armRetry(w.now)
		deadlines[q.rec.probeDeadline] = true
	}
	if len(deadlines) < n/2 {
		t.Errorf("%d QPs probe at %d different times, want at least %d", n, len(deadlines), n/2)
	}
}
