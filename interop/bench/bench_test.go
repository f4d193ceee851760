package main

import (
	"bytes"
	"encoding/json"
	"math"
	"testing"
)

// Two runs of one program differ only in their messages: the cost of starting cancels out.
func TestCost(t *testing.T) {
	bw, rate := &figures[0], &figures[2]
	short := &trial{messages: 1000, cpu: 0.3}
	for _, c := range []struct {
		f    *figure
		run  trial
		want float64
		name string
		unit cpuUnit
	}{
		{bw, trial{messages: 1000 + 15259, cpu: 10.3}, 10, "15259 messages of 64 KiB are 1 GB",
			bw.cpu},
		{rate, trial{messages: 3000, cpu: 0.7}, 200, "0.4 s for 2000 messages", rate.cpu},
		{rate, trial{messages: 3000, cpu: 0.2}, 0,
			"cheaper than the short run: unknown, never negative", rate.cpu},
		{rate, trial{messages: 3000, cpu: 0.5}, 0,
			"the short run took more than half as much: noise", rate.cpu},
		{rate, trial{messages: 1000, cpu: 0.9}, 0, "no more messages than the short run", rate.cpu},
	} {
		if got := c.unit.cost(c.f, &c.run, short); math.Abs(got-c.want) > 1e-3*c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// The verdict is the median of the rounds' ratios: both runs of a round met the same host.
func TestCompare(t *testing.T) {
	r := compare("x", "u", []float64{30, 10, 20}, []float64{10, 10, 10})
	if r.Value != 20 || r.BaselineValue != 10 || r.Ratio != 2 || r.Spread != 1 || r.RatioMin != 1 ||
		r.RatioMax != 3 {
		t.Errorf("%+v; want medians 20 and 10, ratio 2, and (3-1)/2 = 1 of spread", r)
	}
	// The host slowed down: medians over all rounds would give 2, but gorxe was behind in two of
	// three rounds.
	if r = compare("x", "u", []float64{9, 2, 0.9}, []float64{10, 1, 1}); r.Ratio != 0.9 {
		t.Errorf("%+v; want the median of 0.9, 2 and 0.9", r)
	}
	if r := compare("x", "u", []float64{1}, []float64{0}); r.Ratio != 0 || r.Spread != 0 ||
		r.Rounds != 0 {
		t.Errorf("%+v: there is no ratio to 0", r)
	}
	if r := compare("x", "u", []float64{6, 0, 9}, []float64{3, 5, 0}); r.Value != 6 ||
		r.BaselineValue != 3 || r.Ratio != 2 || r.Rounds != 1 {
		t.Errorf("%+v: only the first round is known on both sides", r)
	}
	if r := compare("x", "u", []float64{1, 2, 3, 4}, []float64{1, 1, 1, 1}); r.Value != 2.5 {
		t.Errorf("median of four %v, want the mean of the middle two", r.Value)
	}
}

func TestVerdict(t *testing.T) {
	one := []float64{1, 1, 1}
	for _, c := range []struct {
		v    []float64
		less bool
		want string
	}{
		{[]float64{0.9, 0.9, 0.9}, false, "behind"},
		{[]float64{0.9, 0.9, 0.9}, true, "ahead"},
		{[]float64{2, 2.1, 2.2}, false, "ahead"},
		{[]float64{2, 2.1, 4}, false, "ahead in every round, by an uncertain factor"},
		{[]float64{2, 2.1, 4}, true, "behind in every round, by an uncertain factor"},
		{[]float64{0.9, 2.1, 4}, false,
			"uncertain: the rounds differ too much (use a quieter host or -rounds)"},
		{[]float64{2, 2}, false,
			"unknown: 2 rounds were long enough, 3 are required (-duration, -rounds)"},
	} {
		r := compare("x", "u", c.v, one)
		if r.less = c.less; r.verdict() != c.want {
			t.Errorf("%v, less %v: %q, want %q", c.v, c.less, r.verdict(), c.want)
		}
	}
}

// A latency is half a round trip: at 250 us, 2000 messages per second.
func TestMessages(t *testing.T) {
	lat, bw := &figures[1], &figures[0]
	if n := lat.messages(&trial{value: 250}, 3); n != 6000 {
		t.Errorf("latency: %d messages, want 6000", n)
	}
	if n := bw.messages(&trial{rate: 500}, 2); n != 1000 {
		t.Errorf("bandwidth: %d messages, want 1000", n)
	}
	if n := bw.messages(&trial{rate: 1e12}, 3); n != maxMessages {
		t.Errorf("%d messages, want the bound %d", n, maxMessages)
	}
	for i := range figures {
		if f := &figures[i]; f.messages(&trial{}, 3) <= f.trial {
			t.Errorf("%s: a run may be as short as the short one", f.name)
		}
	}
}

// The tables as Debian 12's perftest prints them.
func TestParsePerftest(t *testing.T) {
	bw := " Dual-port : OFF\n #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n" +
		" 65536      300              0.00               5.96   \t\t   0.000095\n-----\n"
	r, err := parsePerftest(&figures[0], " Mtu             : 4096[B]\n"+bw)
	if err != nil || r.mib != 5.96 || r.mpps != 0.000095 || r.mtu != 4096 {
		t.Errorf("%+v, %v", r, err)
	}
	lat := " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n" +
		" 8       500          180.00         9000.00      742.97       800.5        -nan      13576.3      14000.0\n"
	r, err = parsePerftest(&figures[1], lat)
	if err != nil || r.typical != 742.97 || r.p99 != 13576.3 {
		t.Errorf("%+v, %v", r, err)
	}
	for _, bad := range []string{"", "#bytes", "#bytes x\n1 2 3\n", "#bytes x\n1 2 3 x 5\n",
		"#bytes x\n1 2 3 nan 5\n", "#bytes x\n1 2 3 inf 5\n", "#bytes x\n64 0 0 0 0\n"} {
		if _, err := parsePerftest(&figures[0], bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// The array has the format of 'gorxe bench --json'.
func TestJSON(t *testing.T) {
	var b bytes.Buffer
	c := &comparison{trials: map[key][]trial{}}
	if err := writeJSON(&b, c.results()); err != nil {
		t.Fatal(err)
	}
	var list []map[string]any
	if err := json.Unmarshal(b.Bytes(), &list); err != nil || len(list) != 10 {
		t.Fatalf("%v: %d entries in %s", err, len(list), &b)
	}
	for _, e := range list {
		for _, k := range []string{"name", "value", "unit", "baseline", "baseline_value", "ratio",
			"spread"} {
			if _, ok := e[k]; !ok {
				t.Errorf("no %q in %v", k, e)
			}
		}
	}
}

func TestPathMTU(t *testing.T) {
	for device, want := range map[int]int{1280: 1024, 1500: 1024, 2127: 1024, 2128: 2048,
		4175: 2048, 4176: 4096, 4200: 4096} {
		if got := pathMTU(device); got != want {
			t.Errorf("device MTU %d: path MTU %d, want %d", device, got, want)
		}
	}
}
