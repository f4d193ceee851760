package qp

import (
	"fmt"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
)

const tick = Time(1) << tickShift

// dropAnswers runs a pair whose requests are all lost, until the work request fails or d has
// passed. It returns the times of the Local ACK Timeouts.
func dropAnswers(t *testing.T, d Time, change func(*Attr)) (w *world, at []Time) {
	w = newWorld(t, 1)
	w.filter = func(int, *bth.Packet) bool { return false }
	a, _ := w.pair(RC, func(_ *InitAttr, attr *Attr) { change(attr) })
	e := w.ends[0]
	w.post(a, SendWR{ID: 1, Op: OpWrite, SGEs: []SGE{e.sge(0, 8)}, RemoteAddr: 1, RKey: 1})
	for limit := w.now + d; len(e.wcs) == 0 && w.step(limit); {
		for uint64(len(at)) < e.Counters().AckTimeouts {
			at = append(at, w.now)
		}
	}
	return w, at
}

// IBA 9.7.6.1.3: without any answer, the Local ACK Timeout (4.096 us x 2^t) expires 1 + retry_cnt
// times in intervals of a whole timeout. The last one fails the request. Probes in between neither
// count nor change it.
func TestRetryCount(t *testing.T) {
	for _, timeout := range []uint8{1, 8, 12, 14} {
		for _, retry := range []uint8{0, 1, 3, 7} {
			w, at := dropAnswers(t, 60*second,
				func(a *Attr) { a.Timeout, a.RetryCnt = timeout, retry })
			e := w.ends[0]
			what := fmt.Sprintf("timeout %d, retry_cnt %d", timeout, retry)
			if len(at) != int(retry)+1 {
				t.Fatalf("%s: %d timeouts", what, len(at))
			}
			one := Time(bth.AckTimeout(timeout))
			for i, d := range at {
				// The timer wheel rounds each up to its tick, never down.
				if min := one * Time(i+1); d < min || d > min+Time(i+2)*tick {
					t.Errorf("%s: timeout %d at %v, want %v", what, i, time.Duration(d),
						time.Duration(min))
				}
			}
			if len(e.wcs) != 1 || e.wcs[0].Status != RetryExcErr {
				t.Errorf("%s: completions %+v", what, e.wcs)
			}
			if e.qp.State() != Err || e.Counters().RetryExceeded != 1 {
				t.Errorf("%s: state %s", what, e.qp.State())
			}
		}
	}
}

// IBA 9.7.6.1.3: timeout 0 means that the timer never expires. Probes end after maxProbes, so a QP
// whose peer is gone costs nothing in the long run.
func TestNoTimeout(t *testing.T) {
	w, at := dropAnswers(t, 3600*second, func(a *Attr) { a.Timeout = AckNever })
	e := w.ends[0]
	if len(at) != 0 || len(e.wcs) != 0 || e.qp.State() != RTS {
		t.Errorf("timeouts at %v, completions %+v", at, e.wcs)
	}
	if n := e.Counters().Probes; n != maxProbes {
		t.Errorf("%d probes, want %d", n, maxProbes)
	}
	if next, ok := e.NextTimeout(); ok {
		t.Errorf("a timer is still armed for %v", next)
	}
}

// Progress resets the retries: retry_cnt counts timeouts in a row (IBA 9.7.6.1.3).
func TestRetriesInARow(t *testing.T) {
	w := newWorld(t, 1)
	a, _ := w.pair(RC, func(_ *InitAttr, at *Attr) {
		at.Timeout, at.RetryCnt, at.PathMTU = 10, 1,
			256
	})
	e, peer := w.ends[0], w.ends[1]
	// The responder receives a packet only after its first timeout. Each of the message's 6 packets
	// costs one timeout, and one in a row is allowed.
	seen := map[bth.PSN]uint64{}
	w.filter = func(from int, p *bth.Packet) bool {
		if from == 1 {
			return true
		}
		first, ok := seen[p.BTH.PSN()]
		if !ok {
			first = e.Counters().AckTimeouts
			seen[p.BTH.PSN()] = first
		}
		return e.Counters().AckTimeouts > first || w.now > 20*second
	}
	va, key := peer.remote(0)
	for i := range 6 {
		w.post(a, SendWR{ID: uint64(i), Op: OpWrite, Flags: Signaled, SGEs: []SGE{e.sge(0, 8)},
			RemoteAddr: va, RKey: key})
		if wc := w.wc(0); wc.Status != Success {
			t.Fatal(wc.short())
		}
	}
	if n := e.Counters().AckTimeouts; n != 6 {
		t.Errorf("%d timeouts, want 6", n)
	}
}

// After a timeout the oldest packet is sent alone. Its answer releases the rest.
func TestTimeoutSendsOnePacketFirst(t *testing.T) {
	k := newTalk(t, RC, func(_ *InitAttr, a *Attr) { a.Timeout = 4 }) // 65.5 us: before any probe
	k.post(k.wr(1, OpWrite, 8), k.wr(2, OpWrite, 8), k.wr(3, OpWrite, 8))
	k.listen()
	k.now += 100_000
	k.hears("RDMA WRITE Only +0 dma=8 ask 8B")
	k.equal("timeouts", k.Counters().AckTimeouts, uint64(1))
	k.say(ack(0))
	k.hears("RDMA WRITE Only +1 dma=8 8B", "RDMA WRITE Only +2 dma=8 ask 8B")
	k.completes("1 success RDMA_WRITE 8B")
}

// A probe is sent long before the timeout: a lost ACK or packet costs about one round trip.
func TestProbeRepairsEarly(t *testing.T) {
	for _, lose := range []int{0, 1} { // 0: lose requests, 1: lose responses
		w := newWorld(t, 1)
		a, _ := w.pair(RC, func(_ *InitAttr, at *Attr) { at.Timeout = 20 }) // 4.3 s
		e := w.ends[0]
		va, key := w.ends[1].remote(0)
		wr := SendWR{ID: 1, Op: OpWrite, Flags: Signaled, SGEs: []SGE{e.sge(0, 8)}, RemoteAddr: va,
			RKey: key}
		w.post(a, wr)
		w.wc(0) // now a round trip is known
		lost := false
		w.filter = func(from int, _ *bth.Packet) bool {
			if from == lose && !lost {
				lost = true
				return false
			}
			return true
		}
		start := w.now
		w.post(a, wr)
		w.wc(0)
		c := e.Counters()
		if d := w.now - start; d > 1_000_000 || c.Probes != 1 || c.AckTimeouts != 0 {
			t.Errorf("losing at end %d: repaired after %v with %d probes and %d timeouts", lose,
				time.Duration(d), c.Probes, c.AckTimeouts)
		}
	}
}

// Every go-back ends the calm for a second: a probe, a sequence NAK, an RNR NAK.
func TestCalm(t *testing.T) {
	for name, trouble := range map[string]func(k *talk){
		"probe": func(k *talk) { k.now += initialRTO + tick },
		"NAK":   func(k *talk) { k.say(nak(0, bth.NAKPSNSequence)) },
		"RNR":   func(k *talk) { k.say(answerPkt(0, bth.RNRSyndrome(1))) },
	} {
		k := newTalk(t, RC)
		k.post(k.wr(1, OpSend, 8))
		k.listen()
		if !k.Calm(k.now) {
			t.Errorf("%s: Calm() = false before it", name)
		}
		trouble(k)
		k.listen()
		at := k.now
		if k.Calm(at) || k.Calm(at+calmAfter/2) || !k.Calm(at+calmAfter) {
			t.Errorf("%s: Calm() = %v at once, %v after half a second, %v after a second", name,
				k.Calm(at), k.Calm(at+calmAfter/2), k.Calm(at+calmAfter))
		}
	}
}

// Both sides notice a gap and expect more for a while. A slow peer, or one without a receive, does
// not count.
func TestRecentGaps(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(k *talk)
		gap     bool
	}{
		"NAK":                {func(k *talk) { k.say(nak(0, bth.NAKPSNSequence)) }, true},
		"packet after a gap": {func(k *talk) { k.say(k.write(1, make([]byte, 8))) }, true},
		"expected packet":    {func(k *talk) { k.say(k.write(0, make([]byte, 8))) }, false},
		"probe":              {func(k *talk) { k.now += initialRTO + tick }, false},
		"RNR":                {func(k *talk) { k.say(answerPkt(0, bth.RNRSyndrome(1))) }, false},
	} {
		k := newTalk(t, RC)
		k.post(k.wr(1, OpSend, 8))
		k.listen()
		if k.RecentGaps(k.now) {
			t.Errorf("%s: RecentGaps() = true before it", name)
		}
		c.happens(k)
		k.listen()
		if k.CalmWhenBusy(k.now) == c.gap {
			t.Errorf("%s: CalmWhenBusy() = %v", name, !c.gap)
		}
		if at := k.now; k.RecentGaps(at) != c.gap || k.RecentGaps(at+gapMemory/2) != c.gap ||
			k.RecentGaps(at+gapMemory) {
			t.Errorf("%s: RecentGaps() = %v at once, %v soon after, %v later", name,
				k.RecentGaps(at), k.RecentGaps(at+gapMemory/2), k.RecentGaps(at+gapMemory))
		}
	}
}

// A probe was too early if the answer acknowledges packets that were not retransmitted (RFC 5682).
// Sending then continues where it was, even within a message. An answer to only the probed packet
// proves nothing, and the others are retransmitted; so they are if a READ is among them.
func TestProbeTooEarly(t *testing.T) {
	probed := func(sizes ...int) *talk {
		k := newTalk(t, RC, func(_ *InitAttr, a *Attr) { a.PathMTU = 256 })
		k.q.win.cwnd, k.q.win.threshold = 4, 4
		for i, n := range sizes {
			op := OpSend
			if n < 0 {
				op, n = OpRead, -n
			}
			k.post(k.wr(uint64(i+1), op, n))
		}
		k.listen()
		k.now += initialRTO + tick
		return k
	}

	k := probed(8, 8, 8)
	k.hears("SEND Only +0 ask 8B")
	k.say(ack(1))
	k.hears()
	k.completes("1 success SEND 8B", "2 success SEND 8B")
	k.equal("interval to the next probe", k.q.rec.bound, 2*initialRTO)
	k.say(ack(2)) // the first round trip that is measured
	k.hears()
	k.completes("3 success SEND 8B")
	k.equal("retransmitted", k.Counters().Retransmits, uint64(1))
	k.equal("interval after a round trip", k.q.rec.bound, Time(0))
	if got := k.q.rec.srtt; got < initialRTO || got > initialRTO+2*tick {
		t.Errorf("RTT is %d, want about %d", got, initialRTO+tick)
	}

	k = probed(8, 8, 8)
	k.hears("SEND Only +0 ask 8B")
	k.say(ack(0))
	k.hears("SEND Only +1 8B", "SEND Only +2 ask 8B")

	k = probed(8, 6*256, 8) // four packets fit the window: three of the second message
	k.hears("SEND Only +0 ask 8B")
	k.say(ack(1))
	k.hears("SEND Middle +4 ask 256B", "SEND Middle +5 ask 256B")
	k.say(ack(5))
	k.hears("SEND Last +6 256B", "SEND Only +7 ask 8B")
	k.say(ack(7))
	k.completes("1 success SEND 8B", "2 success SEND 1536B", "3 success SEND 8B")
	k.equal("retransmitted", k.Counters().Retransmits, uint64(1))

	k = probed(8, 8, -8)
	k.hears("SEND Only +0 ask 8B")
	k.say(ack(1))
	k.hears("RDMA READ Request +2 dma=8 ask")
}

// Probes without an answer come at doubling intervals, up to a limit. The QPN decides by how much
// the later ones are delayed, so that QPs do not send them at the same time.
func TestProbesBackOff(t *testing.T) {
	w := newWorld(t, 1)
	a, _ := w.pair(RC, func(_ *InitAttr, at *Attr) { at.Timeout = 0 })
	var at []Time
	w.filter = func(from int, _ *bth.Packet) bool {
		at = append(at, w.now)
		return false
	}
	w.post(a, SendWR{Op: OpSend})
	w.idle(10 * second)
	if len(at) != 1+maxProbes {
		t.Fatalf("sent %d times, want %d", len(at), 1+maxProbes)
	}
	for i := range maxProbes {
		want := initialRTO << min(i, 2)
		if i > 0 {
			want += want * Time(a.qpn%16) / 32
		}
		if d := at[i+1] - at[i]; d < want || d > want+tick {
			t.Errorf("probe %d after %v, want %v", i, time.Duration(d), time.Duration(want))
		}
	}
}

// IBA 9.7.5.2.8: after an RNR NAK nothing is sent for at least the time of its code. Then the
// requester starts at the refused packet. The table is the architecture's.
func TestRNRTimerTable(t *testing.T) {
	for code := range uint8(32) {
		k := newTalk(t, RC)
		k.post(k.wr(1, OpSend, 8), k.wr(2, OpSend, 8))
		k.listen()
		k.say(rnr(0, code))
		start := k.now
		delay := Time(bth.RNRDelay(code))
		k.now = start + delay - 1001
		k.hears()
		next, ok := k.NextTimeout()
		for ok && next < start+delay {
			k.now = next
			k.hears()
			next, ok = k.NextTimeout()
		}
		if !ok || next > start+delay+tick {
			t.Fatalf("code %d: next timeout at %v, RNR delay ends at %v", code, next, start+delay)
		}
		k.now = next
		k.hears("SEND Only +0 ask 8B") // one packet tests whether there is a receive
		k.say(ack(0))
		k.hears("SEND Only +1 ask 8B")
	}
}

// If the peer posts no receive, retries become less frequent: the wait starts with the peer's timer
// (IBA 9.7.5.2.8) and doubles after every eight refusals in a row, up to a tenth of a second.
// Progress resets it.
func TestRNRWaitsGrow(t *testing.T) {
	k := newTalk(t, RC, func(_ *InitAttr, a *Attr) { a.RNRRetry = RNRInfinite })
	k.post(k.wr(1, OpSend, 8), k.wr(2, OpSend, 8))
	k.listen()
	const code, least = 12, Time(640_000)
	ask := func(psn int, wait Time) {
		t.Helper()
		k.say(rnr(psn, code))
		start := k.now
		for next, ok := k.NextTimeout(); ok; next, ok = k.NextTimeout() {
			if k.now = next; len(k.listen()) > 0 {
				break
			}
		}
		if d := k.now - start; d < wait || d > wait+2*tick {
			t.Errorf("%v after the first refusal: retried after %v, want %v",
				time.Duration(start-1), time.Duration(d), time.Duration(wait))
		}
	}
	first, asks := k.now, 0
	for ; k.now-first < 2*second; asks++ {
		ask(0, min(least<<(asks/8), 100_000_000))
	}
	if asks < 60 || asks > 80 { // with the timer alone: 3125
		t.Errorf("retried %d times in two seconds", asks)
	}
	k.say(ack(0))
	k.listen()
	ask(1, least)
}

// The wait is never shorter than the peer's timer, even the longest, and is bounded.
func TestRNRWaitForEveryTimer(t *testing.T) {
	for code := range uint8(32) {
		k := newTalk(t, RC, func(_ *InitAttr, a *Attr) { a.RNRRetry = RNRInfinite })
		k.post(k.wr(1, OpSend, 8))
		k.listen()
		least := Time(bth.RNRDelay(code))
		for range 400 {
			k.say(rnr(0, code))
			if d := k.q.rec.rnrUntil - k.now; d < least || d > max(least, maxRNRWait) {
				t.Fatalf("code %d: waits %v, the timer is %v", code, time.Duration(d),
					time.Duration(least))
			}
			k.now = k.q.rec.rnrUntil
			k.listen()
		}
		if d := k.q.rec.rnrUntil - k.now + 1000; d > 0 {
			t.Fatalf("code %d: it still waits for %v", code, time.Duration(d))
		}
	}
}

// IBA 9.7.5.2.8: rnr_retry is the number of RNR NAKs in a row before the QP fails; 7 means no
// limit.
func TestRNRRetryCount(t *testing.T) {
	for _, retry := range []uint8{0, 1, 6, 7} {
		k := newTalk(t, RC, func(_ *InitAttr, a *Attr) { a.RNRRetry = retry })
		k.post(k.wr(1, OpSend, 8), k.wr(2, OpSend, 8))
		survive := int(retry)
		if retry == RNRInfinite {
			survive = 100
		}
		for range survive {
			k.listen()
			k.say(rnr(0, 1))
			k.is(RTS)
			k.now += 100_000
		}
		k.listen()
		k.say(rnr(0, 1))
		if retry == RNRInfinite {
			k.is(RTS)
			continue
		}
		k.completes("1 RNR retry counter exceeded", "2 Work Request Flushed Error")
		k.is(Err)
	}
}

// Progress resets the count of RNR NAKs. Timeouts have their own count.
func TestRNRRetriesInARow(t *testing.T) {
	k := newTalk(t, RC, func(_ *InitAttr, a *Attr) { a.RNRRetry, a.RetryCnt = 1, 0 })
	for i := range 5 {
		k.post(k.wr(uint64(i), OpSend, 8))
		k.listen()
		k.say(rnr(i, 1))
		k.now += 100_000
		k.hears(fmt.Sprintf("SEND Only %+d ask 8B", i))
		k.say(ack(i))
		k.completes(fmt.Sprintf("%d success SEND 8B", i))
	}
}

// Duplicates of an RNR NAK count once. While the timer runs, losses are ignored. A late ACK ends
// it.
func TestWhileRNRTimerRuns(t *testing.T) {
	k := newTalk(t, RC, func(_ *InitAttr, a *Attr) { a.RNRRetry = 1 })
	k.post(k.wr(1, OpSend, 8), k.wr(2, OpSend, 8))
	k.listen()
	k.say(rnr(0, 20), rnr(0, 20), nak(0, bth.NAKPSNSequence))
	k.is(RTS)
	k.hears()
	k.say(ack(0))
	k.completes("1 success SEND 8B")
	k.hears("SEND Only +1 ask 8B")
}

// An RNR NAK after the end of the RNR time, but before the timer's tick, is a new one: it counts,
// and stops sending.
func TestRNRNAKJustAfterTimer(t *testing.T) {
	k := newTalk(t, RC)
	k.post(k.wr(1, OpSend, 8))
	k.listen()
	k.say(rnr(0, 1)) // 10 us; a tick is 16
	k.now += 10_000
	k.post(k.wr(2, OpSend, 8))     // a doorbell schedules the QP before the tick
	k.hears("SEND Only +0 ask 8B") // one packet tests
	start := k.now
	k.say(rnr(0, 16)) // 2.56 ms
	k.now = start + 2_000_000
	k.hears()
	k.now = start + 2_560_000 + tick
	k.hears("SEND Only +0 ask 8B") // one packet tests
	k.equal("probes", k.Counters().Probes, uint64(0))
}

// End to end: a receive that is posted late costs RNR NAKs, but not the connection.
func TestRNREndToEnd(t *testing.T) {
	w := newWorld(t, 1)
	a, b := w.pair(RC, func(_ *InitAttr, at *Attr) { at.MinRNRTimer, at.RNRRetry = 12, 7 })
	e := w.ends[0]
	data := e.fill(0, 5000, 9)
	w.post(a, SendWR{ID: 1, Op: OpSend, Flags: Signaled, SGEs: []SGE{e.sge(0, 5000)}})
	w.idle(10_000_000)
	if e.Counters().RcvdRNR < 10 {
		t.Errorf("%d RNR NAKs in 10 ms, want one each 0.64 ms", e.Counters().RcvdRNR)
	}
	w.recv(b, RecvWR{ID: 2, SGEs: []SGE{w.ends[1].sge(0, 5000)}})
	if wc := w.wc(1); wc.Status != Success || string(w.ends[1].mem[:5000]) != string(data) {
		t.Error(wc.short())
	}
	if wc := w.wc(0); wc.Status != Success {
		t.Error(wc.short())
	}
}
