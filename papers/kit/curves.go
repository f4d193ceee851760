package kit

import (
	"image/color"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Curves are lines over a common axis.
type Curves struct {
	Title, X, Y string
	LogX, LogY  bool // logarithmic axes; points that are not positive are left out
	PowersOf2   bool // with LogX: label the axis with powers of two
	ZeroY       bool // the axis begins at 0
	Lines       []Line
}

// Style is how a Line looks.
type Style int

// The styles of lines.
const (
	Solid   Style = iota
	Dashed        // a dashed line
	Dots          // points without a line
	Markers       // a solid line with a point at each value
	Rings         // black rings without a line
)

// Line is one curve of Curves.
type Line struct {
	Name  string
	X, Y  []float64 // of equal length
	Style Style
}

// Add appends a point.
func (l *Line) Add(x, y float64) { l.X, l.Y = append(l.X, x), append(l.Y, y) }

const (
	lineWidth  = 1.4 // points, as the others
	dotRadius  = 1.2
	markRadius = 2
	ringRadius = 4.5
	headSpace  = 0.05 // above the highest curve, relative to the axis
)

func (c *Curves) height() vg.Length { return curvesHeight }

func (c *Curves) draw() (*diagram, error) {
	d := &diagram{Plot: newPlot(c.Title, c.X, c.Y)}
	for i := range c.Lines {
		if err := c.add(d, &c.Lines[i], palette[i%len(palette)]); err != nil {
			return nil, err
		}
	}
	if c.LogX && d.X.Max > d.X.Min {
		d.X.Scale, d.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		if c.PowersOf2 {
			d.X.Tick.Marker = plot.TickerFunc(powersOf2)
		}
	}
	if c.LogY {
		d.Y.Scale, d.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		return d, nil
	}
	if c.ZeroY {
		d.Y.Min = 0
	}
	d.Y.Max += headSpace * (d.Y.Max - d.Y.Min)
	return d, nil
}

func (c *Curves) add(d *diagram, l *Line, col color.RGBA) error {
	pts := c.points(l)
	if len(pts) == 0 {
		return nil
	}
	line, dots, err := plotter.NewLinePoints(pts)
	if err != nil {
		return err
	}
	line.Color, line.Width = col, vg.Points(lineWidth)
	dots.GlyphStyle = draw.GlyphStyle{Color: col, Shape: draw.CircleGlyph{},
		Radius: vg.Points(dotRadius)}
	switch l.Style {
	case Dashed:
		line.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
	case Markers:
		dots.Radius = vg.Points(markRadius)
	case Rings:
		dots.GlyphStyle = draw.GlyphStyle{Color: color.Black, Shape: draw.RingGlyph{},
			Radius: vg.Points(ringRadius)}
	}
	e := legendEntry{text: l.Name}
	if l.Style == Solid || l.Style == Dashed || l.Style == Markers {
		d.Add(line)
		e.symbols = append(e.symbols, line)
	}
	if l.Style == Dots || l.Style == Rings || l.Style == Markers {
		d.Add(dots)
		e.symbols = append(e.symbols, dots)
	}
	d.legend = append(d.legend, e)
	return nil
}

// points returns the points of l that the axes can show.
func (c *Curves) points(l *Line) plotter.XYs {
	var pts plotter.XYs
	for i := range min(len(l.X), len(l.Y)) {
		x, y := l.X[i], l.Y[i]
		bad := math.IsNaN(x) || math.IsNaN(y) || math.IsInf(x, 0) || math.IsInf(y, 0)
		if bad || (c.LogX && x <= 0) || (c.LogY && y <= 0) {
			continue
		}
		pts = append(pts, plotter.XY{X: x, Y: y})
	}
	return pts
}

// powersOf2 returns a tick for each power of two from least to most, with a label for every other.
func powersOf2(least, most float64) []plot.Tick {
	var ticks []plot.Tick
	for x, i := 1, 0; float64(x) <= most; x, i = x*2, i+1 {
		if float64(x) < least {
			continue
		}
		label := ""
		if i%2 == 0 {
			label = strconv.Itoa(x)
		}
		ticks = append(ticks, plot.Tick{Value: float64(x), Label: label})
	}
	return ticks
}
