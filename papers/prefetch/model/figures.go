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
	Paper  *float64 `json:"paper"` // null if the paper states none
}

// The series of the figures.
const (
	Prefetch   = "prefetch"
	NoPrefetch = "no prefetch"
	Unordered  = "no prefetch, random order"
	Units      = "no prefetch, random order, units"
)

// Figure describes a figure of the paper.
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

// Numbers of the paper: message rates in Mop/s, latencies in microseconds, and limits.
const (
	PaperPeak    = 70.0
	PaperHalf    = 35.0  // figure 4 without prefetching; "half of the peak" in figure 3
	PaperMemory  = 40.0  // figure 5
	PaperLatency = 2.4   // figure 6
	PaperMissed  = 2.9   // figure 6
	PaperGain    = 1.25  // abstract: throughput improves by 125 %
	PaperSaved   = 0.179 // abstract: latency falls by 17.9 %
	PaperWindow  = 7     // smallest window with the peak rate
	PaperQPs     = 2048  // beyond which the commodity NIC's rate falls
	PaperMRs     = 256   // MPT and MTT entries of figure 5
	PaperLight   = 100   // QPC entries of figure 6
)

// Config is the configuration of a simulation.
type Config struct {
	Params
	Window   int // prefetch window in figures 3, 5 and 6
	Memory   int // MPT and MTT entries of figure 5
	LightQPC int // QPC entries of figure 6
	MaxQPs   int // largest number of QPs in figures 3 and 4
	Seed     uint64
}

// DefaultConfig returns the configuration of the paper.
func DefaultConfig() Config {
	p := Default()
	return Config{Params: p, Window: p.Window(), Memory: PaperMRs, LightQPC: PaperLight,
		MaxQPs: 16384, Seed: 1}
}

const (
	topWindow = 16   // largest window of figure 4
	topMRs    = 2048 // largest number of MRs of figure 5
)

// decline has further points of figure 3, where the rate falls.
var decline = []int{2176, 2304, 2560, 3072, 6144}

// Figures returns the figures 3 to 6 of the paper.
func (c *Config) Figures() []Figure {
	return []Figure{
		{
			Number: 3, Title: "Figure 3: connections", X: "QPs", Y: "Mop/s", LogX: true,
			Series: []string{Prefetch, NoPrefetch, Unordered, Units}, measure: connections,
			paper: statedConnections,
			xs:    inOrder(powers(1, c.MaxQPs), decline, c.MaxQPs),
		},
		{
			Number: 4, Title: "Figure 4: prefetch window", X: "window, QPs", Y: "Mop/s",
			Series: []string{Prefetch}, measure: windows, paper: c.statedWindows,
			xs: upTo(topWindow),
		},
		{
			Number: 5, Title: "Figure 5: memory regions", X: "MRs", Y: "Mop/s", LogX: true,
			Series: []string{Prefetch, NoPrefetch}, measure: regions, paper: statedRegions,
			xs: powers(16, topMRs),
		},
		{
			Number: 6, Title: "Figure 6: light load", X: "QPs", Y: "us", LogX: true,
			Series: []string{Prefetch, NoPrefetch}, measure: latency, paper: statedLatency,
			xs: powers(4, 256),
		},
	}
}

// Steps returns the number of values that Run computes.
func (c *Config) Steps() int {
	steps := 0
	for _, f := range c.Figures() {
		steps += len(f.xs) * len(f.Series)
	}
	return steps
}

// Run computes all values. progress, if not nil, is called before each of them; its error ends
// the run.
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

// Check returns an error that wraps ErrParams if a value is out of range.
func (c *Config) Check() error {
	if err := c.Params.Check(); err != nil {
		return err
	}
	for _, f := range []struct {
		what          string
		v, least, top int
	}{
		{"prefetch window", c.Window, 1, sched.MaxWindow},
		{"entries of the MPT and MTT caches of figure 5", c.Memory, 1, MaxCache},
		{"entries of the QPC cache of figure 6", c.LightQPC, 1, MaxCache},
		{"QPs of figure 3", c.MaxQPs, 1, MaxQPs},
	} {
		if f.v < f.least || f.v > f.top {
			return fmt.Errorf("%w: %s: %d: choose %d to %d", ErrParams, f.what, f.v, f.least, f.top)
		}
	}
	return nil
}

// connections computes figure 3: QPs with an MR each.
func connections(c *Config, series string, x int) (float64, error) {
	l := Load{QPs: x, MRs: x, Random: series == Unordered || series == Units,
		Units: series == Units, Seed: c.Seed}
	if series == Prefetch {
		l.Window = c.Window
	}
	return c.rate(&c.Params, l)
}

// statedConnections returns the paper's numbers of figure 3: with prefetching "a stable
// throughput at the peak value under large-scale QPs", without it the peak up to 2048 and half of
// it at 16,384.
func statedConnections(series string, x int) (float64, bool) {
	switch {
	case x == PaperQPs, x > PaperQPs && series == Prefetch:
		return PaperPeak, true
	case x == 16384:
		return PaperHalf, true
	}
	return 0, false
}

// windows computes figure 4, with the largest number of QPs of figure 3.
func windows(c *Config, _ string, x int) (float64, error) {
	return c.rate(&c.Params, Load{QPs: c.MaxQPs, MRs: c.MaxQPs, Window: x})
}

// statedWindows returns the paper's numbers of figure 4. They are for more QPs than the caches
// hold.
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

// regions computes figure 5: one MR per QP, large caches for QPCs and WQEs, small ones for the MRs.
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

// statedRegions returns the paper's numbers of figure 5.
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

// latency computes figure 6.
func latency(c *Config, series string, x int) (float64, error) {
	p := c.Params
	p.Cache[QPC] = c.LightQPC
	return RunLight(&p, Light{QPs: x, Window: c.Window, Hint: series == Prefetch})
}

// statedLatency returns the paper's numbers of figure 6.
func statedLatency(series string, x int) (float64, bool) {
	switch {
	case x <= 64:
		return PaperLatency, true
	case x >= 128 && series == NoPrefetch:
		return PaperMissed, true
	}
	return 0, false
}

// inOrder returns list and the elements of more up to top in ascending order.
func inOrder(list, more []int, top int) []int {
	for _, x := range more {
		if x <= top {
			list = append(list, x)
		}
	}
	slices.Sort(list)
	return list
}

// powers returns least times the powers of two, up to top.
func powers(least, top int) []int {
	var list []int
	for x := least; x <= top; x *= 2 {
		list = append(list, x)
	}
	return list
}

// upTo returns 0 to n.
func upTo(n int) []int {
	list := make([]int, n+1)
	for i := range list {
		list[i] = i
	}
	return list
}
