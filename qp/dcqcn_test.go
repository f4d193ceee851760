package qp

import (
	"math"
	"testing"
)

// published returns the parameters of the paper.
func published(t *testing.T) *DCQCN {
	p := &DCQCN{}
	must(t, p.fill())
	return p
}

const gbit = 1e9 * bitsPerNs // bytes per ns

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-9*math.Max(1, math.Abs(want)) {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

// The reaction to CNPs as in the paper: the first one halves the rate, alpha starts at 1 and decays
// every 55 us without CNPs.
func TestDCQCNCut(t *testing.T) {
	p := published(t)
	var r rateControl
	r.cnp(0, p, 0)
	if r.limits {
		t.Fatal("a CNP limits a rate that is not known")
	}
	r.cnp(0, p, 40*gbit)
	near(t, "rate", r.current, 20*gbit)
	near(t, "target", r.target, 40*gbit)
	near(t, "alpha", r.alpha, 1)
	r.cnp(10_000, p, 40*gbit)
	near(t, "rate after two CNPs", r.current, 10*gbit)
	near(t, "target after two CNPs", r.target, 20*gbit)
	r.advance(10_000+3*55_000, p)
	near(t, "alpha after 165 us", r.alpha, math.Pow(255.0/256, 3))
	for i := range Time(10_000) {
		r.cnp(200_000+i, p, 40*gbit)
	}
	near(t, "lowest rate", r.current, 0.01*gbit)
}

// Five steps of fast recovery lead back to the target. Additive increase follows, and hyper
// increase when the byte counter has expired as often.
func TestDCQCNIncrease(t *testing.T) {
	p := published(t)
	var r rateControl
	r.cnp(0, p, 40*gbit)
	for i := range Time(4) {
		r.advance((i+1)*55_000, p)
	}
	near(t, "rate after fast recovery", r.current, (40-20/16.0)*gbit)
	near(t, "target after fast recovery", r.target, 40*gbit)
	r.advance(5*55_000, p)
	near(t, "target after additive increase", r.target, 40.04*gbit)
	r.advance(6*55_000, p)
	near(t, "target after two steps", r.target, 40.08*gbit)
	r.sent(5*10e6, p)
	near(t, "target after the byte counter", r.target, (40.08+5*0.04)*gbit)
	r.sent(10e6, p)
	near(t, "target after hyper increase", r.target, (40.28+0.4)*gbit)
}

// A QP that had no CNP for long is not limited, whether it sent or not.
func TestDCQCNEnds(t *testing.T) {
	p := published(t)
	var r rateControl
	r.cnp(0, p, 40*gbit)
	for now := Time(0); r.limits; now += ms {
		if now > 1000*ms {
			t.Fatalf("the rate is still %v after a second", r.current)
		}
		r.advance(now, p)
		r.sent(r.current*float64(ms), p)
	}
	r.cnp(0, p, 40*gbit)
	r.advance(1<<60, p) // takes a bounded time
	if r.timerAt <= 1<<60 && r.limits {
		t.Errorf("the rate timer is at %d, in the past", r.timerAt)
	}
}

// The rate limits what a QP sends.
func TestDCQCNPaces(t *testing.T) {
	k := lossy(t, 200, 200, 1)
	k.q.win.algorithm = CongestionDCQCN
	k.q.cc.epoch = 0
	for range 3 {
		k.q.cnpReceived(k.now)
	}
	want := 200.0 * talkMTU / float64(ms) / 8 // bytes per ns, after three cuts
	if got := 1024 / float64(k.q.cc.perKB); math.Abs(got-want) > 0.05*want {
		t.Errorf("paced at %v bytes per ns, want %v", got, want)
	}
	k.equal("window", k.q.win.size(), uint32(200))
}

// Parameters out of range are rejected, and zeros are the published values.
func TestDCQCNParameters(t *testing.T) {
	for _, bad := range []DCQCN{{Gain: 2}, {Gain: -1}, {Gain: math.NaN()}, {AlphaTimer: 1},
		{RateTimer: -1}, {ByteCounter: 1}, {FastRecovery: -1}, {Additive: -1},
		{Hyper: math.NaN()}, {MinRate: 1}} {
		if bad.fill() == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
	if p := published(t); p.Gain != 1.0/256 || p.AlphaTimer != 55_000 || p.Additive != 40e6 {
		t.Errorf("defaults %+v", p)
	}
}
