package paper

import (
	"fmt"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/gorxe/gorxe/internal/stat"
)

// Panel is one picture of a plot.
type Panel interface{ draw() (*plot.Plot, error) }

const (
	barWidth   = 14
	labelRoom  = 1.25 // the axis goes so far beyond the longest bar, for its label
	legendRoom = 0.3  // of the axis, above the curves
	legendLog  = 6    // the same as a factor
	barRoom    = 0.8  // around the outer bars, in distances between bars
	titleSize  = 11
	lineWidth  = 1.2
)

// The colours: ours first, then those of others.
var (
	OwnColor   = color.RGBA{R: 0x1f, G: 0x6f, B: 0xb4, A: 0xff}
	OtherColor = color.RGBA{R: 0xa6, G: 0xb4, B: 0xc0, A: 0xff}
	rangeStyle = draw.LineStyle{Color: color.RGBA{A: 0xff}, Width: vg.Points(0.8)}
	palette    = []color.RGBA{OwnColor, {R: 0xd9, G: 0x6c, B: 0x1e, A: 0xff}, {R: 0x5b, G: 0x8c, B: 0x3a, A: 0xff}, {R: 0x8a, G: 0x5a, B: 0xa5, A: 0xff}}
)

// Bar is one bar of Bars: the median of its values, with a line from the least to the greatest.
type Bar struct {
	Label  string
	Values []float64
	Own    bool // in our colour
}

// Bars are horizontal bars, the first on top. A bar without values is left out.
type Bars struct {
	Title, X string // X: what the axis shows
	Bars     []Bar
}

func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.TextStyle.Font.Size = font.Points(titleSize)
	return p
}

func (b *Bars) draw() (*plot.Plot, error) {
	p := newPlot(b.Title, b.X, "")
	p.X.Min = 0
	var labels []string
	var texts plotter.XYLabels
	var ranges plotter.XYs
	var errs plotter.XErrors
	for _, l := range slices.Backward(b.Bars) {
		v := l.Values
		if len(v) == 0 {
			continue
		}
		at, m := float64(len(labels)), stat.Median(v)
		bar, err := plotter.NewBarChart(plotter.Values{m}, vg.Points(barWidth))
		if err != nil {
			return nil, err
		}
		bar.Horizontal, bar.XMin, bar.LineStyle.Width, bar.Color = true, at, 0, OtherColor
		if l.Own {
			bar.Color = OwnColor
		}
		p.Add(bar)
		labels = append(labels, l.Label)
		ranges = append(ranges, plotter.XY{X: m, Y: at})
		errs = append(errs, struct{ Low, High float64 }{m - slices.Min(v), slices.Max(v) - m})
		texts.XYs = append(texts.XYs, plotter.XY{X: slices.Max(v), Y: at})
		texts.Labels = append(texts.Labels, fmt.Sprintf(" %.3g", m))
		p.X.Max = max(p.X.Max, slices.Max(v)*labelRoom)
	}
	p.NominalY(labels...)
	p.Y.Min, p.Y.Max = -barRoom, float64(len(labels)-1)+barRoom // few bars stand close together
	return p, decorate(p, texts, ranges, errs)
}

// decorate adds the ranges and the values to the bars.
func decorate(p *plot.Plot, texts plotter.XYLabels, at plotter.XYs, errs plotter.XErrors) error {
	bars, err := plotter.NewXErrorBars(struct {
		plotter.XYs
		plotter.XErrors
	}{at, errs})
	if err != nil {
		return err
	}
	bars.LineStyle = rangeStyle
	values, err := plotter.NewLabels(texts)
	if err != nil {
		return err
	}
	for i := range values.TextStyle {
		values.TextStyle[i].YAlign = draw.YCenter
	}
	p.Add(bars, values)
	return nil
}

// Line is one curve of Curves.
type Line struct {
	Name   string
	X, Y   []float64 // of equal length
	Dashed bool
	Dots   bool // points without a line
}

// Curves are lines over a common axis.
type Curves struct {
	Title, X, Y string
	LogX, LogY  bool // points that are not positive are left out then
	ZeroY       bool // the axis begins at 0
	Lines       []Line
}

func (c *Curves) draw() (*plot.Plot, error) {
	p := newPlot(c.Title, c.X, c.Y)
	p.Legend.Top = true
	if c.LogX {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	}
	if c.LogY {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	}
	for i := range c.Lines {
		if err := c.add(p, &c.Lines[i], palette[i%len(palette)]); err != nil {
			return nil, err
		}
	}
	if c.ZeroY && !c.LogY {
		p.Y.Min = 0
	}
	// Room for the legend above the curves.
	if c.LogY {
		p.Y.Max *= legendLog
	} else {
		p.Y.Max += legendRoom * (p.Y.Max - p.Y.Min)
	}
	return p, nil
}

func (c *Curves) add(p *plot.Plot, l *Line, col color.RGBA) error {
	pts := c.points(l)
	if len(pts) == 0 {
		return nil
	}
	if l.Dots {
		s, err := plotter.NewScatter(pts)
		if err != nil {
			return err
		}
		s.Color, s.Radius = col, vg.Points(1.2)
		s.Shape = draw.CircleGlyph{}
		p.Add(s)
		p.Legend.Add(l.Name, s)
		return nil
	}
	line, err := plotter.NewLine(pts)
	if err != nil {
		return err
	}
	line.Color, line.Width = col, vg.Points(lineWidth)
	if l.Dashed {
		line.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
	}
	p.Add(line)
	p.Legend.Add(l.Name, line)
	return nil
}

// points leaves out what the axes cannot show.
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
