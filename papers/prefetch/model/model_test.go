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

// once runs the default configuration once for all tests.
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

// The model agrees within 10 % with each number that the paper states.
func TestPaperNumbers(t *testing.T) {
	stated := map[string]int{}
	for _, p := range points(t) {
		if p.Paper == nil {
			continue
		}
		stated[fmt.Sprint(p.Figure, " ", p.Series)]++
		if off := p.Y / *p.Paper - 1; math.Abs(off) > 0.1 {
			t.Errorf("figure %d, %s, x %d: %.2f, want %g of the paper: off by %+.1f %%",
				p.Figure, p.Series, p.X, p.Y, *p.Paper, off*100)
		}
	}
	for _, series := range []string{
		"3 prefetch", "3 no prefetch", "3 no prefetch, random order", "3 " + Units, "4 prefetch",
		"5 prefetch", "5 no prefetch", "6 prefetch", "6 no prefetch",
	} {
		if stated[series] == 0 {
			t.Errorf("no number of the paper for figure %s", series)
		}
	}
}

// The curves have the shapes that the paper describes.
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
	// "when the number of QPs exceeds 2048, throughput declines"
	for x, v := range y["3 no prefetch"] {
		if x <= PaperQPs != (v > 0.95*peak) {
			t.Errorf("figure 3: %.1f Mop/s at %d QPs without prefetching, peak %.1f", v, x, peak)
		}
	}
	// With units that overtake each other the rate declines gradually with the number of QPs.
	units := y["3 "+Units]
	for x := 4096; x <= 16384; x *= 2 {
		if units[x] > 0.9*units[x/2] {
			t.Errorf("figure 3: %.1f Mop/s with %d QPs, %.1f with %d: want a decline", units[x], x,
				units[x/2], x/2)
		}
	}
	if v := units[4096] / peak; v < 0.65 || v > 0.85 {
		t.Errorf("figure 3: units reach %.2f of the peak with 4096 QPs, want 0.65 to 0.85", v)
	}
	for _, series := range []string{"3 no prefetch", "3 no prefetch, random order", "3 " + Units} {
		// "only half of the peak value"
		if half := y[series][16384] / peak; half < 0.45 || half > 0.55 {
			t.Errorf("figure %s: %.2f of the peak at 16384 QPs, want half", series, half)
		}
	}
	// "expands from zero to 7, the message rate increases continuously"
	for w := range PaperWindow {
		if y["4 prefetch"][w+1] < y["4 prefetch"][w]*1.03 {
			t.Errorf("figure 4: no increase from window %d to %d", w, w+1)
		}
	}
	for x, v := range y["5 prefetch"] { // "unaffected by the number of memory regions"
		if v < 0.99*peak {
			t.Errorf("figure 5: %.1f Mop/s with %d MRs and prefetching", v, x)
		}
	}
	// "software prefetching significantly reduces this increase"
	for _, qps := range []int{128, 256} {
		v, missed, hit := y["6 prefetch"][qps], y["6 no prefetch"][qps], y["6 no prefetch"][64]
		if (missed-v)/(missed-hit) < 0.5 {
			t.Errorf("figure 6: hints save %.2f us of the %.2f us that misses cost", missed-v,
				missed-hit)
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
		t.Errorf("Gain() = %.2f, want %.2f of the paper", s.Gain(), 1+PaperGain)
	}
	if math.Abs(s.Saved()/PaperSaved-1) > 0.1 {
		t.Errorf("Saved() = %.1f %%, want %.1f %% of the paper", s.Saved()*100, PaperSaved*100)
	}
	if s.Saturates < PaperWindow || s.Saturates > PaperWindow+1 {
		t.Errorf("0.95 of the peak at window %d, want %d of the paper", s.Saturates, PaperWindow)
	}
}

// The paper's numbers are left out if the configuration does not meet the paper's conditions.
func TestOtherConditions(t *testing.T) {
	c := DefaultConfig()
	c.MaxQPs = 64
	list, err := c.Run(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if p.Figure == 4 && p.Paper != nil {
			t.Errorf("64 QPs, window %d: %.1f Mop/s is compared with %.1f for thousands of QPs",
				p.X, p.Y, *p.Paper)
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
		t.Error("two runs with the same seed differ")
	}
	c.Seed++
	other, _ := c.Run(nil)
	for i, p := range other {
		if p.Series != Unordered && p.Series != Units && p.Y != first[i].Y {
			t.Errorf("figure %d, %s, x %d depends on the seed", p.Figure, p.Series, p.X)
		}
	}
	if reflect.DeepEqual(first, other) {
		t.Error("two runs with different seeds are equal")
	}
}

// The rates agree with those computed by hand from the mechanism.
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
			t.Errorf("%s: %.2f Mop/s, want %.2f", what, got, want)
		}
	}
	many := Load{QPs: 4096, MRs: 4096}
	near("all hits: the link", run(p, Load{QPs: 64, MRs: 64}).Mops, 100e3/(166*8), 0.001)

	// All miss: the QPs in the slots of a stage pass it in a round trip and 40 ns for the WQEs on
	// PCIe.
	near("all miss", run(p, many).Mops, 2*10/0.540, 0.05)
	one := p
	one.Slots = 1
	near("all miss, one slot", run(one, many).Mops, 10/0.540, 0.05)

	// A shorter round trip increases the rate in proportion.
	quick := p
	quick.PCIeRTT = 350 * time.Nanosecond
	near("all miss, 350 ns", run(quick, many).Mops, 2*10/0.390, 0.07)

	// A slow PCIe limits the rate even with prefetching: a turn takes 640 bytes of payload, 640
	// of WQEs and 384 of QPC, MPT and MTT.
	narrow := p
	narrow.PCIeRate = 40e9
	many.Window = 64
	near("PCIe at 40 Gb/s", run(narrow, many).Mops, 10*40e3/(1664*8), 0.01)
	if r := run(narrow, many); r.PCIe < 0.99 || r.PCIe > 1.001 {
		t.Errorf("%.3f of PCIe is in use, want all of it", r.PCIe)
	}

	// "If the prefetching window is set too large, the resources may be replaced before they are
	// utilized" (III.A).
	small := p
	small.Cache = [Kinds]int{64, 64, 64, 64}
	wide := run(small, Load{QPs: 4096, MRs: 4096, Window: 512})
	fit := run(small, Load{QPs: 4096, MRs: 4096, Window: 16})
	if wide.Mops > 0.6*fit.Mops {
		t.Errorf("64 entries: %.1f Mop/s with window 512, %.1f with window 16: want a decline",
			wide.Mops, fit.Mops)
	}
}

// The cache replaces the least recently used entry, and only when it is full.
func TestCacheIsLRU(t *testing.T) {
	c := newCache(3, 10)
	for _, key := range []uint32{1, 2, 3} {
		c.insert(key)
	}
	c.find(1)
	c.insert(4) // replaces 2
	for key, want := range []bool{false, true, false, true, true, false} {
		if got := c.items[key].resident; got != want {
			t.Errorf("key %d: resident = %v, want %v", key, got, want)
		}
	}
	c.find(3)
	c.insert(5) // replaces 1
	if c.find(1) != nil || c.find(3) == nil || c.find(4) == nil || c.find(5) == nil {
		t.Error("insert(5) did not replace key 1")
	}
}

// In random order the hit rate of LRU is the number of entries divided by the number of QPs.
func TestRandomOrderHits(t *testing.T) {
	p := Default()
	r, err := Run(&p, Load{QPs: 8192, MRs: 8192, Random: true, Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	for k := range Kinds {
		if math.Abs(r.HitRate[k]-0.25) > 0.03 {
			t.Errorf("%v: hit rate %.3f, want 0.25", k, r.HitRate[k])
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
			t.Errorf("%s: Run() = %v, want ErrParams", name, err)
		}
	}
}

func TestLoadIsChecked(t *testing.T) {
	p := Default()
	for _, l := range []Load{
		{QPs: 0, MRs: 1}, {QPs: 1, MRs: 0}, {QPs: -1, MRs: 1}, {QPs: MaxQPs + 1, MRs: 1},
		{QPs: 1, MRs: MaxQPs + 1},
	} {
		if _, err := Run(&p, l); !errors.Is(err, ErrParams) {
			t.Errorf("Run(%+v) = %v, want ErrParams", l, err)
		}
	}
	for _, qps := range []int{0, -1, MaxQPs + 1} {
		if _, err := RunLight(&p, Light{QPs: qps}); !errors.Is(err, ErrParams) {
			t.Errorf("RunLight() = %v over %d QPs, want ErrParams", err, qps)
		}
	}
}

// All variants run, and prefetching helps in each of them.
func TestVariants(t *testing.T) {
	if testing.Short() {
		t.Skip("sixteen runs, skipped by -short")
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
			t.Errorf("%s: prefetching does not help: %+v", v.Name, *s)
		}
	}
}
