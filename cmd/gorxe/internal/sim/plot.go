package sim

import (
	"fmt"
	"image/color"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/gorxe/gorxe/papers/kit/paper"
	"github.com/gorxe/gorxe/papers/prefetch/model"
)

// The picture is a grid of panels, one a figure: the model as lines, what the paper states as rings.
const (
	panelWidth  = 12 * vg.Centimeter
	panelHeight = 8 * vg.Centimeter
	headRoom    = 1.5 // above the highest value, for the legend
)

var (
	seriesColors = map[string]color.Color{
		model.Prefetch:   color.RGBA{R: 0x1f, G: 0x6f, B: 0xb4, A: 0xff},
		model.NoPrefetch: color.RGBA{R: 0xc4, G: 0x4e, B: 0x1a, A: 0xff},
		model.Unordered:  color.RGBA{R: 0x7a, G: 0x8a, B: 0x96, A: 0xff},
		model.Units:      color.RGBA{R: 0x2e, G: 0x7d, B: 0x4f, A: 0xff},
	}
	paperStyle = draw.GlyphStyle{Color: color.Black, Radius: vg.Points(4.5), Shape: draw.RingGlyph{}}
)

// plotAll draws PREFIX.svg and PREFIX.png, and names them.
func plotAll(prefix string, figures []model.Figure, points []model.Point) ([]string, error) {
	files := []string{prefix + ".svg", prefix + ".png"}
	for _, name := range files {
		var panels []*plot.Plot
		for i := range figures {
			p, err := panel(&figures[i], points)
			if err != nil {
				return nil, fmt.Errorf("draw figure %d: %w", figures[i].Number, err)
			}
			panels = append(panels, p)
		}
		if err := paper.SaveGrid(name, panels, panelWidth, panelHeight); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// panel draws one figure.
func panel(f *model.Figure, points []model.Point) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = f.Title
	p.Title.TextStyle.Font.Size = font.Points(11)
	p.X.Label.Text, p.Y.Label.Text = f.X, f.Y
	p.Legend.Top = true
	p.Legend.TextStyle.Font.Size = font.Points(9)
	p.Legend.Padding = vg.Points(1)
	var stated plotter.XYs
	for _, series := range f.Series {
		var ours plotter.XYs
		for _, q := range points {
			if q.Figure != f.Number || q.Series != series {
				continue
			}
			ours = append(ours, plotter.XY{X: float64(q.X), Y: q.Y})
			if q.Paper != nil {
				stated = append(stated, plotter.XY{X: float64(q.X), Y: *q.Paper})
			}
		}
		line, dots, err := plotter.NewLinePoints(ours)
		if err != nil {
			return nil, err
		}
		line.Color, line.Width = seriesColors[series], vg.Points(1.5)
		dots.Color, dots.Shape, dots.Radius = line.Color, draw.CircleGlyph{}, vg.Points(2)
		p.Add(line, dots)
		p.Legend.Add(series, line, dots)
	}
	if len(stated) > 0 { // none with few QPs
		rings, err := plotter.NewScatter(stated)
		if err != nil {
			return nil, err
		}
		rings.GlyphStyle = paperStyle
		p.Add(rings)
		p.Legend.Add("stated in the paper", rings)
	}
	p.Y.Min, p.Y.Max = 0, p.Y.Max*headRoom
	if f.LogX && p.X.Max > p.X.Min {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.TickerFunc(doublings)
	}
	return p, nil
}

// doublings marks powers of two and labels every other.
func doublings(least, top float64) []plot.Tick {
	var ticks []plot.Tick
	for x, i := 1, 0; float64(x) <= top; x, i = x*2, i+1 {
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
