package kit

import (
	"fmt"
	"image/color"
	"slices"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/gorxe/gorxe/internal/stat"
)

// Bars are horizontal bars, the first on top. A bar without values is left out.
type Bars struct {
	Title, X string // X says what the axis shows
	Bars     []Bar
}

// Bar shows the median of its values and a line from the smallest to the largest.
type Bar struct {
	Label  string
	Values []float64
	Own    bool // drawn in the color of gorxe
}

const (
	barWidth    = 10                   // points
	barHeight   = 0.95 * vg.Centimeter // of a bar with its label
	axisHeight  = 2.2 * vg.Centimeter  // of the title and the axis
	valueSpace  = 1.25                 // length of the axis relative to the longest bar
	valueMargin = 4                    // points between the end of a bar and its value
	labelMargin = 9                    // points between a bar and the middle of its label
)

var (
	otherColor = color.RGBA{R: 0xa6, G: 0xb4, B: 0xc0, A: 0xff}
	rangeStyle = draw.LineStyle{Color: color.RGBA{A: 0xff}, Width: vg.Points(0.8)}
)

func (b *Bars) height() vg.Length { return axisHeight + vg.Length(len(b.Bars))*barHeight }

func (b *Bars) draw() (*diagram, error) {
	p := newPlot(b.Title, b.X, "")
	p.HideY()
	p.X.Min = 0
	var labels, values plotter.XYLabels
	var ranges struct {
		plotter.XYs
		plotter.XErrors
	}
	n := 0
	for _, l := range slices.Backward(b.Bars) {
		v := l.Values
		if len(v) == 0 {
			continue
		}
		y, m, longest := float64(n), stat.Median(v), slices.Max(v)
		n++
		bar, err := plotter.NewBarChart(plotter.Values{m}, vg.Points(barWidth))
		if err != nil {
			return nil, err
		}
		bar.Horizontal, bar.XMin, bar.LineStyle.Width, bar.Color = true, y, 0, otherColor
		if l.Own {
			bar.Color = palette[0]
		}
		p.Add(bar)
		labels.XYs = append(labels.XYs, plotter.XY{X: 0, Y: y})
		labels.Labels = append(labels.Labels, l.Label)
		ranges.XYs = append(ranges.XYs, plotter.XY{X: m, Y: y})
		ranges.XErrors = append(ranges.XErrors,
			struct{ Low, High float64 }{m - slices.Min(v), longest - m})
		values.XYs = append(values.XYs, plotter.XY{X: longest, Y: y})
		values.Labels = append(values.Labels, fmt.Sprintf("%.3g", m))
		p.X.Max = max(p.X.Max, longest*valueSpace)
	}
	lines, err := plotter.NewXErrorBars(ranges)
	if err != nil {
		return nil, err
	}
	lines.LineStyle = rangeStyle
	p.Add(lines)
	// Labels are above their bars and values to the right of them. Both start at a fixed point,
	// so that they overlap nothing however wide the viewer's font is.
	for _, l := range []struct {
		texts  plotter.XYLabels
		offset vg.Point
	}{
		{labels, vg.Point{Y: vg.Points(barWidth/2 + labelMargin)}},
		{values, vg.Point{X: vg.Points(valueMargin)}},
	} {
		texts, err := plotter.NewLabels(l.texts)
		if err != nil {
			return nil, err
		}
		texts.Offset = l.offset
		for i := range texts.TextStyle {
			texts.TextStyle[i].YAlign = draw.YCenter
		}
		p.Add(texts)
	}
	p.Y.Min, p.Y.Max = -0.4, float64(n)-0.2
	return &diagram{Plot: p}, nil
}
