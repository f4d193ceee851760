package qp

import (
	"errors"
	"testing"
)

// The rate of an engine limits its classes together. The higher class takes what it needs first.
func TestTotalRate(t *testing.T) {
	const rate = 20_000_000
	c := classWorldWith(t, func(conf *Config) {
		conf.Rate, conf.Classes[6] = rate, ClassConfig{Rate: rate / 4, Burst: 1500}
	})
	load := map[*QP]int{c.pair("high", UC, 6): 5000, c.pair("low", UC, 0): 1 << 16}
	total := &meter{t: t, what: "engine", rate: rate, burst: rate / 1000}
	high := &meter{t: t, what: "class 6", rate: rate / 4, burst: 1500}
	c.frames(second, load, func(name string, n int) {
		total.sent(c.now, n)
		if name == "high" {
			high.sent(c.now, n)
		}
	})
	total.reached(c.now)
	high.reached(c.now)
}

// With one class, the rate of the engine is that of this class. The data arrives.
func TestTotalRateOfReliableConnection(t *testing.T) {
	const rate = 1_000_000
	c := classWorldWith(t, func(conf *Config) { conf.Rate = rate })
	q := c.pair("q", RC, 0)
	c.write(q, 50_000)
	start := c.now
	for limit := c.now + 10*second; q.SQLen() > 0; {
		if !c.world.step(limit) {
			t.Fatal("the WRITE does not complete in 10 seconds")
		}
	}
	if got, want := c.now-start, Time(49_000)*second/rate; got < want {
		t.Errorf("50,000 bytes and the burst of 1,000 in %d ns, want at least %d", got, want)
	}
	if n := c.ends[0].c.Retransmits; n > 0 {
		t.Errorf("%d retransmissions without loss", n)
	}
}

func TestTotalRateRange(t *testing.T) {
	mrs := newWorld(t, 1).ends[0].mrs
	for _, rate := range []uint64{1, MinRate - 1, MaxRate + 1} {
		_, err := NewEngine(Config{MRs: mrs, Rand: func() uint64 { return 1 }, Rate: rate})
		if !errors.Is(err, ErrInvalidAttr) {
			t.Errorf("NewEngine() with a rate of %d: %v, want ErrInvalidAttr", rate, err)
		}
	}
}
