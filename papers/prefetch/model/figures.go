package model

import (
	"fmt"
	"slices"

	"github.com/gorxe/gorxe/qp/sched"
)

// Point is one value of a figure of the paper.
type Point struct {
	Figure int      `json:"figure"`
	Series string   `json:"series"`
	X      int      `json:"x"`
	Y      float64  `json:"y"`
	Paper  *float64 `json:"paper"` // null where the paper states none
}

// Series of the figures.
const (
	Prefetch   = "prefetch"
	NoPrefetch = "no prefetch"
	Unordered  = "no prefetch, random order"
	Units      = "no prefetch, random order, units"
)

// Figure describes one of the paper's.
type Figure struct {
	Number  int
	Title   string
	X, Y    string
	Series  []string
	LogX    bool
	measure func(c *Config, series string, x int) (float64, error)
	paper   func(series string, x int) (float64, bool)
	xs      []int
}

// What the paper states: message rates in Mop/s, latencies in microseconds, and where things change.
const (
	PaperPeak    = 70.0
	PaperHalf    = 35.0  // figure 4 without prefetching; "half of the peak" in figure 3
	PaperMemory  = 40.0  // figure 5
	PaperLatency = 2.4   // figure 6
	PaperMissed  = 2.9   // figure 6
	PaperGain    = 1.25  // abstract: throughput improves by 125 %
	PaperSaved   = 0.179 // abstract: latency falls by 17.9 %
	PaperWindow  = 7     // from which on the rate is at its peak
	PaperQPs     = 2048  // beyond which the commodity NIC's rate falls
	PaperMRs     = 256   // MPT and MTT entries of figure 5
	PaperLight   = 100   // QPC entries of figure 6
)

// Config says what to simulate.
type Config struct {
	Params
	Window   int // of the series with prefetching, in figures 3, 5 and 6
	Memory   int // MPT and MTT entries of figure 5
	LightQPC int // QPC entries of figure 6
	MaxQPs   int // where figures 3 and 4 end
	Seed     uint64
}

// DefaultConfig is the paper's.
func DefaultConfig() Config {
	p := Default()
	return Config{Params: p, Window: p.Window(), Memory: PaperMRs, LightQPC: PaperLight, MaxQPs: 16384, Seed: 1}
}

const (
	topWindow = 16 // where figure 4 ends
	topMRs    = 2048
)

// decline are QPs of figure 3 between powers of two, where the rate falls.
var decline = []int{2176, 2304, 2560, 3072, 6144}

// Figures are the paper's figures 3 to 6.
func (c *Config) Figures() []Figure {
	return []Figure{
		{
			Number: 3, Title: "Figure 3: connections", X: "QPs", Y: "Mop/s", LogX: true,
			Series: []string{Prefetch, NoPrefetch, Unordered, Units}, measure: connections, paper: statedConnections,
			xs: inOrder(powers(1, c.MaxQPs), decline, c.MaxQPs),
		},
		{
			Number: 4, Title: "Figure 4: prefetch window", X: "window, QPs", Y: "Mop/s",
			Series: []string{Prefetch}, measure: windows, paper: c.statedWindows, xs: upTo(topWindow),
		},
		{
			Number: 5, Title: "Figure 5: memory regions", X: "MRs", Y: "Mop/s", LogX: true,
			Series: []string{Prefetch, NoPrefetch}, measure: regions, paper: statedRegions, xs: powers(16, topMRs),
		},
		{
			Number: 6, Title: "Figure 6: light load", X: "QPs", Y: "us", LogX: true,
			Series: []string{Prefetch, NoPrefetch}, measure: latency, paper: statedLatency, xs: powers(4, 256),
		},
	}
}

// Steps is how many values Run computes.
func (c *Config) Steps() int {
	steps := 0
	for _, f := range c.Figures() {
		steps += len(f.xs) * len(f.Series)
	}
	return steps
}

// Run computes all values; progress, if not nil, is called before each and may end the run by an error.
func (c *Config) Run(progress func(what string) error) ([]Point, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	var points []Point
	for _, f := range c.Figures() {
		for _, s := range f.Series {
			for _, x := range f.xs {
				if progress != nil {
					if err := progress(fmt.Sprintf("figure %d, %s", f.Number, s)); err != nil {
						return nil, err
					}
				}
				y, err := f.measure(c, s, x)
				if err != nil {
					return nil, err
				}
				p := Point{Figure: f.Number, Series: s, X: x, Y: y}
				if v, ok := f.paper(s, x); ok {
					p.Paper = &v
				}
				points = append(points, p)
			}
		}
	}
	return points, nil
}

// Check refuses what makes no sense.
func (c *Config) Check() error {
	if err := c.Params.Check(); err != nil {
		return err
	}
	for _, f := range []struct {
		what          string
		v, least, top int
	}{
		{"the prefetch window", c.Window, 1, sched.MaxWindow},
		{"the MPT and MTT caches of figure 5", c.Memory, 1, MaxCache},
		{"the QPC cache of figure 6", c.LightQPC, 1, MaxCache},
		{"the QPs of figure 3", c.MaxQPs, 1, MaxQPs},
	} {
		if f.v < f.least || f.v > f.top {
			return fmt.Errorf("%w: %s: %d; choose %d to %d", ErrParams, f.what, f.v, f.least, f.top)
		}
	}
	return nil
}

// connections is figure 3: QPs with an MR each.
func connections(c *Config, series string, x int) (float64, error) {
	l := Load{QPs: x, MRs: x, Random: series == Unordered || series == Units, Units: series == Units, Seed: c.Seed}
	if series == Prefetch {
		l.Window = c.Window
	}
	return c.rate(&c.Params, l)
}

// statedConnections: with prefetching "a stable throughput at the peak value under large-scale QPs", without it the peak up to 2048
// and half of it at 16,384.
func statedConnections(series string, x int) (float64, bool) {
	switch {
	case x == PaperQPs, x > PaperQPs && series == Prefetch:
		return PaperPeak, true
	case x == 16384:
		return PaperHalf, true
	}
	return 0, false
}

// windows is figure 4: as many QPs as figure 3 has at most.
func windows(c *Config, _ string, x int) (float64, error) {
	return c.rate(&c.Params, Load{QPs: c.MaxQPs, MRs: c.MaxQPs, Window: x})
}

// statedWindows: of many QPs. With so few that the paper's NIC has room for all, it says nothing of windows.
func (c *Config) statedWindows(_ string, x int) (float64, bool) {
	switch {
	case c.MaxQPs <= PaperQPs:
	case x == 0:
		return PaperHalf, true
	case x >= PaperWindow:
		return PaperPeak, true
	}
	return 0, false
}

// regions is figure 5: an MR a QP, all QPs and WQEs in their caches, small caches for the MRs.
func regions(c *Config, series string, x int) (float64, error) {
	p := c.Params
	p.Cache[MPT], p.Cache[MTT] = c.Memory, c.Memory
	p.Cache[QPC], p.Cache[WQE] = max(p.Cache[QPC], x), max(p.Cache[WQE], x)
	l := Load{QPs: x, MRs: x}
	if series == Prefetch {
		l.Window = c.Window
	}
	return c.rate(&p, l)
}

func statedRegions(series string, x int) (float64, bool) {
	if series == Prefetch || x <= PaperMRs {
		return PaperPeak, true
	}
	return PaperMemory, true
}

func (c *Config) rate(p *Params, l Load) (float64, error) {
	r, err := Run(p, l)
	if err != nil {
		return 0, err
	}
	return r.Mops, nil
}

// latency is figure 6.
func latency(c *Config, series string, x int) (float64, error) {
	p := c.Params
	p.Cache[QPC] = c.LightQPC
	return RunLight(&p, Light{QPs: x, Window: c.Window, Hint: series == Prefetch})
}

func statedLatency(series string, x int) (float64, bool) {
	switch {
	case x <= 64:
		return PaperLatency, true
	case x >= 128 && series == NoPrefetch:
		return PaperMissed, true
	}
	return 0, false
}

// inOrder puts what more has up to top in its places of list.
func inOrder(list, more []int, top int) []int {
	for _, x := range more {
		if x <= top {
			list = append(list, x)
		}
	}
	slices.Sort(list)
	return list
}

// powers are the powers of two from least on, up to top.
func powers(least, top int) []int {
	var list []int
	for x := least; x <= top; x *= 2 {
		list = append(list, x)
	}
	return list
}

// upTo is 0 to n.
func upTo(n int) []int {
	list := make([]int, n+1)
	for i := range list {
		list[i] = i
	}
	return list
}
