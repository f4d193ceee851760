package qp

import (
	"math"
	"testing"
)

const ms = Time(1_000_000)

// After a loss, the window grows as RFC 9438 computes it: W(t) = C (t - K)^3 + Wmax, but by at
// least half a packet per round trip below Wmax, and a packet above.
func TestCubicGrowth(t *testing.T) {
	c := &congestion{}
	c.init()
	c.reduced(ms, 1000)
	k := math.Cbrt(1000 * 0.3 / 0.4)
	const rtt = 100 * ms
	for _, s := range []float64{0, 1, 3, 5, 9, 9.1, 12, 20} {
		cwnd := 700.0
		target := 0.4*math.Pow(s+0.1-k, 3) + 1000
		want := uint32(growthUnit * math.Min(target-cwnd, cwnd/2+1))
		if got := c.cubic(ms+Time(s*1e9), rtt, cwnd); got != want {
			t.Errorf("after %v s the window grows by %d/8 packets in a round trip, want %d", s, got, want)
		}
	}
	if got := c.cubic(ms, 1000, 999); got != growthUnit/2 {
		t.Errorf("growth below the last window is %d, want %d", got, growthUnit/2)
	}
	small := &congestion{wmax: renoWindow, epoch: ms}
	if got := small.cubic(ms, 1000, renoWindow-1); got != growthUnit {
		t.Errorf("growth of a small window is %d, want %d", got, growthUnit)
	}
	if got := c.cubic(ms, 1000, 1000); got != growthUnit {
		t.Errorf("growth at the last window is %d, want %d", got, growthUnit)
	}
	if got := new(congestion).cubic(0, rtt, 100); got != growthUnit {
		t.Errorf("growth before the first loss is %d, want %d", got, growthUnit)
	}
}

// lossy returns a QP with a window and a model of its path.
func lossy(t *testing.T, cwnd uint32, packetsPerMs, minRTTms float64) *talk {
	k := newTalk(t, RC)
	c := k.q.model()
	k.q.win.cwnd, k.q.win.threshold = cwnd, cwnd
	c.rate[0], c.minRTT = packetsPerMs/1e6, Time(minRTTms*1e6)
	c.minRTTAt = k.now
	k.q.rec.srtt, k.q.rec.rttvar = c.minRTT, 1
	return k
}

// A loss makes the window 0.7 times as large, but random losses not less than the product of
// bandwidth and delay, unless that is small or too many packets are lost. Without a queue, it stays
// a little larger than the product.
func TestWindowAfterLoss(t *testing.T) {
	for _, c := range []struct {
		cwnd, bdp uint32
		rtt       Time // smoothed, us; 0: the shortest one, 1000
		heavy     bool
		selective bool
		want      uint32
	}{
		{cwnd: 1000, bdp: 500, want: 700},
		{cwnd: 1000, bdp: 900, rtt: 1063, want: 900},
		{cwnd: 1000, bdp: 900, rtt: 1062, want: 928},
		{cwnd: 1000, bdp: 900, want: 928},
		{cwnd: 1000, bdp: 1200, want: 1000}, // never larger than before
		{cwnd: 1000, bdp: 900, heavy: true, want: 700},
		{cwnd: 16, bdp: 14, want: 11}, // the product is less than minFloor
		{cwnd: 5, bdp: 1, want: lossWindow},
		{cwnd: 2, bdp: 1, selective: true, want: selectiveLossWindow},
	} {
		k := lossy(t, c.cwnd, float64(c.bdp-1)+0.5, 1)
		k.q.cc.heavy, k.q.attr.Selective = c.heavy, c.selective
		if c.rtt != 0 {
			k.q.rec.srtt = c.rtt * 1000
		}
		k.q.max += 10
		k.q.lossEvent(k.now, 1)
		if got := k.q.win.size(); got != c.want {
			t.Errorf("%+v: window %d after a loss", c, got)
		}
		k.q.lossEvent(k.now, 1)
		if got := k.q.win.size(); got != c.want {
			t.Errorf("%+v: window %d after two losses in a window of packets", c, got)
		}
	}
}

// On a path with a short round trip, random losses leave the packets of loadedRTT in flight: with
// selective repeat, and if the path does not lose more than 1 of 40 packets.
func TestWindowAfterLossOnShortPath(t *testing.T) {
	for _, c := range []struct {
		cwnd         uint32
		packetsPerMs float64
		rtt          Time // us
		goBackN      bool
		shallow      bool
		heavy        bool
		want         uint32
	}{
		{cwnd: 100, packetsPerMs: 700, rtt: 10, want: 70},
		{cwnd: 50, packetsPerMs: 700, rtt: 10, want: 45}, // with headroom
		{cwnd: 40, packetsPerMs: 700, rtt: 10, want: 40},
		{cwnd: 40, packetsPerMs: 700, rtt: 64, want: 40}, // the product itself is 45
		{cwnd: 50, packetsPerMs: 700, rtt: 10, goBackN: true, want: 35},
		{cwnd: 50, packetsPerMs: 700, rtt: 10, shallow: true, want: 35},
		{cwnd: 50, packetsPerMs: 700, rtt: 10, heavy: true, want: 35},
		{cwnd: 15, packetsPerMs: 240, rtt: 10, want: 10}, // less than minFloor
		{cwnd: 1000, packetsPerMs: 1e6, rtt: 10, want: 700},
		{cwnd: 300, packetsPerMs: 1e6, rtt: 10, want: DefaultWindow + DefaultWindow/headroom},
	} {
		k := lossy(t, c.cwnd, c.packetsPerMs, float64(c.rtt)/1000)
		k.q.attr.Selective, k.q.cc.heavy = !c.goBackN, c.heavy
		if c.shallow {
			k.q.cc.shallow = 1
		}
		k.q.max += 10
		k.q.lossEvent(k.now, 1)
		if got := k.q.win.size(); got != c.want {
			t.Errorf("%+v: window %d after a loss", c, got)
		}
	}
}

// A period with more than 1 loss in 40 packets switches the floor of loadedRTT off, for 16 periods.
func TestShallowPath(t *testing.T) {
	c := &congestion{}
	c.init()
	period := func(lost uint64) {
		c.total += 1000 - lost
		c.countLoss(lost, true)
	}
	if period(25); c.shallow != 0 {
		t.Errorf("shallow = %d after 25 losses in 1000 packets, want 0", c.shallow)
	}
	period(26)
	for i := range shallowPeriods {
		if want := uint8(shallowPeriods - i); c.shallow != want {
			t.Errorf("shallow = %d in period %d after many losses, want %d", c.shallow, i, want)
		}
		period(1)
	}
	if period(1); c.shallow != 0 {
		t.Errorf("shallow = %d after %d periods with few losses, want 0", c.shallow, shallowPeriods)
	}
}

// A queue makes round trips 1/16 longer than the shortest one. While the oldest work request is a
// READ, the time to transfer one of its parts, here of 16 packets, does not count.
func TestQueuing(t *testing.T) {
	for _, c := range []struct {
		read bool
		rtt  Time // us
		want bool
	}{
		{rtt: 100}, {rtt: 106}, {rtt: 107, want: true},
		{read: true, rtt: 107}, {read: true, rtt: 128}, {read: true, rtt: 130, want: true},
	} {
		k := lossy(t, 100, 700, 0.1)
		k.q.rec.srtt = c.rtt * 1000
		if c.read {
			s := &k.q.sq
			w := s.at(s.tail.Load())
			w.op, w.part, w.npkts = OpRead, 4, 64
			s.started++
		}
		if got := k.q.queuing(); got != c.want {
			t.Errorf("%+v: queuing() = %v, want %v", c, got, c.want)
		}
	}
}

// Losses count as heavy if more than 1 of 25 packets is lost, in periods of 512 packets, or without
// a queue more than 1 of 12.
func TestHeavyLoss(t *testing.T) {
	c := &congestion{}
	c.init()
	for _, p := range []struct {
		lost, delivered uint64
		queued          bool
		heavy           bool
	}{
		{100, 100, true, false}, {200, 200, true, true}, {5, 1000, true, false},
		{1 << 40, 1 << 40, true, true}, {1 << 40, 1 << 40, false, true},
		{60, 940, true, true}, {60, 940, false, false}, {90, 910, false, true},
		{40, 960, false, false}, {39, 961, true, false},
	} {
		c.total += p.delivered
		c.countLoss(p.lost, p.queued)
		if c.heavy != p.heavy {
			t.Errorf("%+v: heavy is %v", p, c.heavy)
		}
	}
}

// With CNPs in every round trip, the window is halved; with rare ones it is reduced a little, once
// per round trip (RFC 8257). Without congestion control it stays.
func TestCNPReducesWindow(t *testing.T) {
	for _, c := range []struct {
		alg   Congestion
		alpha float64
		want  uint32
	}{
		{CongestionAdaptive, 1, 500}, {CongestionAdaptive, 0.1, 950}, {CongestionNone, 1, 1000},
	} {
		k := lossy(t, 1000, 1000, 1)
		k.q.win.algorithm = c.alg
		k.q.cc.alpha = c.alpha
		k.q.cnpReceived(k.now)
		k.q.cnpReceived(k.now + ms/2)
		if got := k.q.win.size(); got != c.want {
			t.Errorf("%v, alpha %v: window %d after CNPs in a round trip, want %d", c.alg, c.alpha,
				got, c.want)
		}
		k.q.cnpReceived(k.now + ms)
		if got := k.q.win.size(); (got < c.want) != (c.alg != CongestionNone) {
			t.Errorf("%v, alpha %v: window %d in the next round trip", c.alg, c.alpha, got)
		}
	}
}

// alpha follows the part of the time in which CNPs arrive.
func TestAlpha(t *testing.T) {
	c := &congestion{}
	c.init()
	for range 200 {
		c.cnps = 5
		c.sampled(0, ms/2, 100)
	}
	if math.Abs(c.alpha-0.5) > 0.01 {
		t.Errorf("alpha is %v with CNPs in half of the time, want 0.5", c.alpha)
	}
	for range 100 {
		c.sampled(0, ms/2, 100)
	}
	if c.alpha > 0.01 {
		t.Errorf("alpha is %v after 100 round trips without CNPs", c.alpha)
	}
}

// A flood of CNPs slows only the QP that it names. That QP still works.
func TestCNPFlood(t *testing.T) {
	for _, alg := range []Congestion{CongestionAdaptive, CongestionDCQCN} {
		k := newTalk(t, RC)
		other := k.q
		k.renew(RC)
		must(t, k.q.Modify(k.now, &Attr{Congestion: alg}, AttrCongestion))
		k.q.rec.srtt, k.q.rec.rttvar = 100_000, 1
		for range 100_000 {
			k.now += 100
			k.q.cnpReceived(k.now)
		}
		if other.win.modeled || other.win.size() != firstWindow {
			t.Errorf("%v: the window of another QP is %d", alg, other.win.size())
		}
		if s := k.q.win.size(); s < lossWindow {
			t.Errorf("%v: window %d, want at least %d", alg, s, lossWindow)
		}
		k.post(k.wr(1, OpWrite, 8))
		for range 100 {
			if len(k.listen()) > 0 {
				break
			}
			k.now += 10 * ms
			k.HandleTimeout(k.now)
		}
		k.say(ack(0))
		k.completes("1 success RDMA_WRITE 8B")
	}
}

// The rate is kept as the largest of the last round trips, unless the user limited it. The limit of
// the window is four times the product of rate and round trip.
func TestPathModel(t *testing.T) {
	_, q := bare(t, RC, RTS)
	c := q.model()
	sample := func(n uint64, limited bool) {
		c.started = c.total
		c.total += n
		c.limited = limited
		c.sampled(ms, ms, 100)
	}
	sample(1000, true)
	if got := q.limit(); got != 4*1001 {
		t.Errorf("limit() = %d, want 4 times the packets of a round trip", got)
	}
	for range 10 * ratePeriod {
		sample(10, false)
	}
	if got := c.bdp(); got != 1001 {
		t.Errorf("bdp() = %d after a pause of the user, want 1001", got)
	}
	for range 2 * ratePeriod {
		sample(10, true)
	}
	if got := c.bdp(); got != 11 {
		t.Errorf("bdp() = %d on a slower path, want 11", got)
	}
	if got := q.limit(); got != DefaultWindow {
		t.Errorf("limit() = %d on a slower path, want %d", got, DefaultWindow)
	}
}

// On short paths, the limit of the window is 256 KiB or what 33 Gb/s need, except for READs and
// short messages. A window that is larger becomes smaller with the next round trip.
func TestShortPathLimit(t *testing.T) {
	k := lossy(t, DefaultWindow, 1000, 1)
	q, c := k.q, k.q.cc
	for _, x := range []struct {
		rtt         Time
		mtu, length uint32 // length of the oldest message; 0: none is outstanding
		op          Op
		want        uint32
	}{
		{0, 4096, 1 << 16, OpWrite, DefaultWindow},
		{1, 4096, 1 << 16, OpWrite, 64},
		{50_000, 4096, 1 << 16, OpWrite, 64},
		{50_000, 4096, 4097, OpSend, 64},
		{50_000, 4096, 2048, OpWrite, 128},
		{50_000, 4096, 64, OpWrite, DefaultWindow},
		{50_000, 4096, 0, OpWrite, DefaultWindow},
		{50_000, 2048, 1 << 16, OpWrite, 128},
		{50_000, 1024, 1 << 16, OpWrite, DefaultWindow},
		{50_000, 256, 1 << 16, OpWrite, DefaultWindow},
		{50_000, 4096, 1 << 16, OpRead, DefaultWindow},
		{125_000, 4096, 1 << 16, OpWrite, 128},
		{249_999, 4096, 1 << 16, OpWrite, 255},
		{shortRTT, 4096, 1 << 16, OpWrite, DefaultWindow},
	} {
		c.minRTT, c.rate = x.rtt, [2]float64{}
		q.mtu.Store(x.mtu)
		s := &q.sq
		s.at(0).op, s.at(0).length, s.started = x.op, x.length, min(x.length, 1)
		if got := q.limit(); got != x.want {
			t.Errorf("limit is %d packets of up to %d bytes at %d ns for a %v of %d bytes, want %d",
				got, x.mtu, x.rtt, x.op, x.length, x.want)
		}
	}
	c.minRTT = 0
	q.mtu.Store(4096)
	q.sq.at(0).op, q.sq.at(0).length, q.sq.started = OpWrite, 1<<16, 1
	q.rec.startSample(k.now, 1)
	q.reached(k.now+20_000, 2)
	k.equal("window after a round trip", q.win.size(), uint32(64))
}

// ParseCongestion is the inverse of String.
func TestParseCongestion(t *testing.T) {
	for c := range numCongestion {
		if got, err := ParseCongestion(c.String()); got != c || err != nil {
			t.Errorf("ParseCongestion(%q) = %v, %v", c.String(), got, err)
		}
	}
	if _, err := ParseCongestion("bbr"); err == nil {
		t.Error("ParseCongestion of an unknown name did not fail")
	}
	if _, q := bare(t, RC, RTS); q.Modify(0, &Attr{Congestion: numCongestion}, AttrCongestion) == nil {
		t.Error("Modify accepted an unknown algorithm")
	}
}

// A changed algorithm takes effect at once.
func TestChangeAlgorithm(t *testing.T) {
	k := lossy(t, 1000, 1000, 1)
	set := func(c Congestion) {
		must(t, k.q.Modify(k.now, &Attr{Congestion: c}, AttrCongestion))
		k.equal("algorithm", k.q.Query().Congestion, c)
	}
	set(CongestionNone)
	k.equal("window", k.q.win.size(), uint32(DefaultWindow))
	k.q.max += 10
	k.q.lossEvent(k.now, 1)
	k.q.cnpReceived(k.now)
	k.equal("window after a loss and a CNP", k.q.win.size(), uint32(DefaultWindow))
	set(CongestionDCQCN)
	k.equal("window", k.q.win.size(), uint32(firstWindow))
}

// On a path with a round trip of 49 ms, the first timeout is too short. The round trip is measured
// nevertheless, and the next packet is sent once.
func TestFirstRoundTripIsLong(t *testing.T) {
	w := newWorld(t, 1)
	w.delay = 24_500_000
	a, b := w.pair(RC)
	w.recv(b, RecvWR{ID: 1}, RecvWR{ID: 2})
	w.post(a, SendWR{ID: 1, Op: OpSend, Flags: Signaled})
	w.idle(second)
	sent := w.ends[0].Counters().Retransmits
	if sent == 0 || sent > 5 {
		t.Errorf("%d retransmissions of the first packet, want 1 to 5", sent)
	}
	w.post(a, SendWR{ID: 2, Op: OpSend, Flags: Signaled})
	w.idle(second)
	if n := w.ends[0].Counters().Retransmits - sent; n != 0 {
		t.Errorf("%d retransmissions of the second packet, want none", n)
	}
	if len(w.ends[0].wcs) != 2 || w.ends[0].wcs[1].Status != Success {
		t.Errorf("completions %v", w.ends[0].wcs)
	}
}
