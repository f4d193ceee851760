package model

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"sync"
	"testing"
	"time"
)

// once runs the default configuration for all tests that look at it.
var once = sync.OnceValues(func() ([]Point, error) {
	c := DefaultConfig()
	return c.Run(nil)
})

func points(t *testing.T) []Point {
	t.Helper()
	list, err := once()
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// Each number that the paper states, where it states it, within 10 %.
func TestPaperNumbers(t *testing.T) {
	stated := map[string]int{}
	for _, p := range points(t) {
		if p.Paper == nil {
			continue
		}
		stated[fmt.Sprint(p.Figure, " ", p.Series)]++
		if off := p.Y / *p.Paper - 1; math.Abs(off) > 0.1 {
			t.Errorf("figure %d, %s, x %d: %.2f, and the paper says %g: off by %+.1f %%", p.Figure, p.Series, p.X, p.Y, *p.Paper, off*100)
		}
	}
	for _, series := range []string{"3 prefetch", "3 no prefetch", "3 no prefetch, random order", "3 " + Units, "4 prefetch", "5 prefetch", "5 no prefetch", "6 prefetch", "6 no prefetch"} {
		if stated[series] == 0 {
			t.Errorf("no number of the paper beside figure %s", series)
		}
	}
}

// What the paper says of its curves.
func TestPaperCurves(t *testing.T) {
	y := map[string]map[int]float64{}
	for _, p := range points(t) {
		s := fmt.Sprint(p.Figure, " ", p.Series)
		if y[s] == nil {
			y[s] = map[int]float64{}
		}
		y[s][p.X] = p.Y
	}
	peak := y["3 prefetch"][64]
	for x, v := range y["3 prefetch"] { // "maintains a stable throughput at the peak value"
		if v < 0.99*peak {
			t.Errorf("figure 3: %.1f Mop/s at %d QPs with prefetching, peak %.1f", v, x, peak)
		}
	}
	for x, v := range y["3 no prefetch"] { // "when the number of QPs exceeds 2048, throughput declines"
		if x <= PaperQPs != (v > 0.95*peak) {
			t.Errorf("figure 3: %.1f Mop/s at %d QPs without prefetching, peak %.1f", v, x, peak)
		}
	}
	// The same of a NIC whose units overtake each other: not at once, but as the QPs grow in number.
	units := y["3 "+Units]
	for x := 4096; x <= 16384; x *= 2 {
		if units[x] > 0.9*units[x/2] {
			t.Errorf("figure 3: %.1f Mop/s with %d QPs, %.1f with %d: no decline", units[x], x, units[x/2], x/2)
		}
	}
	if v := units[4096] / peak; v < 0.65 || v > 0.85 {
		t.Errorf("figure 3: units have %.2f of the peak with 4096 QPs: half way between all and half is wanted", v)
	}
	for _, series := range []string{"3 no prefetch", "3 no prefetch, random order", "3 " + Units} { // "only half of the peak value"
		if half := y[series][16384] / peak; half < 0.45 || half > 0.55 {
			t.Errorf("figure %s: at 16384 QPs %.2f of the peak", series, half)
		}
	}
	for w := range PaperWindow { // "expands from zero to 7, the message rate increases continuously"
		if y["4 prefetch"][w+1] < y["4 prefetch"][w]*1.03 {
			t.Errorf("figure 4: no rise from a window of %d to one of %d", w, w+1)
		}
	}
	for x, v := range y["5 prefetch"] { // "unaffected by the number of memory regions"
		if v < 0.99*peak {
			t.Errorf("figure 5: %.1f Mop/s with %d MRs and prefetching", v, x)
		}
	}
	for _, qps := range []int{128, 256} { // "software prefetching significantly reduces this increase"
		if v, missed, hit := y["6 prefetch"][qps], y["6 no prefetch"][qps], y["6 no prefetch"][64]; (missed-v)/(missed-hit) < 0.5 {
			t.Errorf("figure 6: hints take %.2f us of the %.2f us that misses cost", missed-v, missed-hit)
		}
	}
}

// The abstract: "improves throughput by 125 % and reduces latency by 17.9 %".
func TestAbstract(t *testing.T) {
	c := DefaultConfig()
	s, err := c.Summarize()
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(s.Gain()/(1+PaperGain)-1) > 0.1 {
		t.Errorf("prefetching brings a factor of %.2f, in the paper %.2f", s.Gain(), 1+PaperGain)
	}
	if math.Abs(s.Saved()/PaperSaved-1) > 0.1 {
		t.Errorf("hints take %.1f %% of the latency, in the paper %.1f %%", s.Saved()*100, PaperSaved*100)
	}
	if s.Saturates < PaperWindow || s.Saturates > PaperWindow+1 {
		t.Errorf("0.95 of the peak at a window of %d, in the paper at %d", s.Saturates, PaperWindow)
	}
}

// Of a figure for which the configuration leaves nothing of the paper's conditions, no number of the paper's is shown.
func TestNotThePapersCase(t *testing.T) {
	c := DefaultConfig()
	c.MaxQPs = 64
	list, err := c.Run(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if p.Figure == 4 && p.Paper != nil {
			t.Errorf("64 QPs, window %d: %.1f Mop/s beside the paper's %.1f for thousands", p.X, p.Y, *p.Paper)
		}
	}
}

func TestSameSeedSameResult(t *testing.T) {
	c := DefaultConfig()
	c.MaxQPs = 4096
	first, err := c.Run(nil)
	if err != nil {
		t.Fatal(err)
	}
	again, _ := c.Run(nil)
	if !reflect.DeepEqual(first, again) {
		t.Error("two runs with one seed differ")
	}
	c.Seed++
	other, _ := c.Run(nil)
	for i, p := range other {
		if p.Series != Unordered && p.Series != Units && p.Y != first[i].Y {
			t.Errorf("figure %d, %s, x %d depends on the seed", p.Figure, p.Series, p.X)
		}
	}
	if reflect.DeepEqual(first, other) {
		t.Error("the seed changes nothing: is the order random?")
	}
}

// The rates come from the mechanism: they are where one computes them to be.
func TestMechanism(t *testing.T) {
	p := Default()
	run := func(p Params, l Load) *Rate {
		t.Helper()
		r, err := Run(&p, l)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	near := func(what string, got, want, tolerance float64) {
		t.Helper()
		if math.Abs(got/want-1) > tolerance {
			t.Errorf("%s: %.2f Mop/s, computed %.2f", what, got, want)
		}
	}
	many := Load{QPs: 4096, MRs: 4096}
	near("all hits: the link", run(p, Load{QPs: 64, MRs: 64}).Mops, 100e3/(166*8), 0.001)

	// All miss: a stage with its slots full lets them pass in one round trip and the WQEs' 40 ns on PCIe.
	near("all miss", run(p, many).Mops, 2*10/0.540, 0.05)
	one := p
	one.Slots = 1
	near("all miss, one slot", run(one, many).Mops, 10/0.540, 0.05)

	// A shorter way to the host is felt in proportion.
	quick := p
	quick.PCIeRTT = 350 * time.Nanosecond
	near("all miss, 350 ns", run(quick, many).Mops, 2*10/0.390, 0.07)

	// Where PCIe is the narrowest it bounds the rate, prefetching or not: a turn takes 640 bytes of payload, 640 of WQEs, 384
	// of QPC, MPT and MTT.
	narrow := p
	narrow.PCIeRate = 40e9
	many.Window = 64
	near("PCIe at 40 Gb/s", run(narrow, many).Mops, 10*40e3/(1664*8), 0.01)
	if r := run(narrow, many); r.PCIe < 0.99 || r.PCIe > 1.001 {
		t.Errorf("PCIe is the bottleneck, and %.3f of it in use", r.PCIe)
	}

	// "If the prefetching window is set too large, the resources may be replaced before they are utilized" (III.A).
	small := p
	small.Cache = [Kinds]int{64, 64, 64, 64}
	wide := run(small, Load{QPs: 4096, MRs: 4096, Window: 512})
	fit := run(small, Load{QPs: 4096, MRs: 4096, Window: 16})
	if wide.Mops > 0.6*fit.Mops {
		t.Errorf("64 entries: %.1f Mop/s with a window of 512, %.1f with one of 16", wide.Mops, fit.Mops)
	}
}

// LRU: the entry used least recently goes, and as many stay as there is room for.
func TestCacheIsLRU(t *testing.T) {
	c := newCache(3, 10)
	for _, key := range []uint32{1, 2, 3} {
		c.insert(key)
	}
	c.find(1)
	c.insert(4) // 2 goes
	for key, want := range []bool{false, true, false, true, true, false} {
		if got := c.items[key].resident; got != want {
			t.Errorf("key %d resident: %v", key, got)
		}
	}
	c.find(3)
	c.insert(5) // 1 goes
	if c.find(1) != nil || c.find(3) == nil || c.find(4) == nil || c.find(5) == nil {
		t.Error("the wrong entry went")
	}
}

// In random order LRU hits as often as entries are a share of the QPs.
func TestRandomOrderHits(t *testing.T) {
	p := Default()
	r, err := Run(&p, Load{QPs: 8192, MRs: 8192, Random: true, Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	for k := range Kinds {
		if math.Abs(r.HitRate[k]-0.25) > 0.03 {
			t.Errorf("%v: %.3f of lookups hit, want a quarter", k, r.HitRate[k])
		}
	}
}

func TestCheck(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"window 0":        func(c *Config) { c.Window = 0 },
		"window -1":       func(c *Config) { c.Window = -1 },
		"window 1e6":      func(c *Config) { c.Window = 1e6 },
		"QPC 0":           func(c *Config) { c.Cache[QPC] = 0 },
		"MTT -5":          func(c *Config) { c.Cache[MTT] = -5 },
		"WQE 1<<40":       func(c *Config) { c.Cache[WQE] = 1 << 40 },
		"memory 0":        func(c *Config) { c.Memory = 0 },
		"light 0":         func(c *Config) { c.LightQPC = 0 },
		"no QPs":          func(c *Config) { c.MaxQPs = 0 },
		"chunk < message": func(c *Config) { c.Chunk = c.Message - 1 },
		"no units":        func(c *Config) { c.Units = 0 },
		"no slots":        func(c *Config) { c.Slots = 0 },
		"no link":         func(c *Config) { c.LinkRate = 0 },
		"RTT -1":          func(c *Config) { c.PCIeRTT = -1 },
	} {
		c := DefaultConfig()
		change(&c)
		if _, err := c.Run(nil); !errors.Is(err, ErrParams) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLoadIsChecked(t *testing.T) {
	p := Default()
	for _, l := range []Load{{QPs: 0, MRs: 1}, {QPs: 1, MRs: 0}, {QPs: -1, MRs: 1}, {QPs: MaxQPs + 1, MRs: 1}, {QPs: 1, MRs: MaxQPs + 1}} {
		if _, err := Run(&p, l); !errors.Is(err, ErrParams) {
			t.Errorf("%+v: %v", l, err)
		}
	}
	for _, qps := range []int{0, -1, MaxQPs + 1} {
		if _, err := RunLight(&p, Light{QPs: qps}); !errors.Is(err, ErrParams) {
			t.Errorf("a light load over %d QPs: %v", qps, err)
		}
	}
}

// Other assumptions, other results: what explain.go offers runs, and the paper's numbers depend on the two that it names.
func TestVariants(t *testing.T) {
	if testing.Short() {
		t.Skip("sixteen runs: skipped by -short")
	}
	for _, v := range Variants() {
		c := DefaultConfig()
		v.Change(&c)
		s, err := c.Summarize()
		if err != nil {
			t.Errorf("%s: %v", v.Name, err)
			continue
		}
		t.Logf("%-18s %+v", v.Name, *s)
		if s.Peak < s.NoPrefetch || s.Hinted > s.Missed {
			t.Errorf("%s: prefetching makes it worse: %+v", v.Name, *s)
		}
	}
}
