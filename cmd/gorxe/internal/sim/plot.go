package sim

import (
	"fmt"
	"image/color"
	"os"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/gorxe/gorxe/cmd/gorxe/internal/rnicsim"
)

// The picture is a grid of panels, one a figure: the model as lines, what the paper states as rings.
const (
	panelColumns = 2
	panelWidth   = 12 * vg.Centimeter
	panelHeight  = 8 * vg.Centimeter
	margin       = 0.4 * vg.Centimeter
	headRoom     = 1.35 // above the highest value, for the legend
)

var (
	seriesColors = map[string]color.Color{
		rnicsim.Prefetch:   color.RGBA{R: 0x1f, G: 0x6f, B: 0xb4, A: 0xff},
		rnicsim.NoPrefetch: color.RGBA{R: 0xc4, G: 0x4e, B: 0x1a, A: 0xff},
		rnicsim.Unordered:  color.RGBA{R: 0x7a, G: 0x8a, B: 0x96, A: 0xff},
	}
	paperStyle = draw.GlyphStyle{Color: color.Black, Radius: vg.Points(4.5), Shape: draw.RingGlyph{}}
)

// plotAll draws PREFIX.svg and PREFIX.png, and names them.
func plotAll(prefix string, figures []rnicsim.Figure, points []rnicsim.Point) ([]string, error) {
	rows := (len(figures) + panelColumns - 1) / panelColumns
	panels := make([][]*plot.Plot, rows)
	for i := range figures {
		p, err := panel(&figures[i], points)
		if err != nil {
			return nil, fmt.Errorf("draw figure %d: %w", figures[i].Number, err)
		}
		panels[i/panelColumns] = append(panels[i/panelColumns], p)
	}
	var files []string
	for _, format := range []string{"svg", "png"} {
		canvas, err := draw.NewFormattedCanvas(panelColumns*panelWidth, vg.Length(rows)*panelHeight, format)
		if err != nil {
			return nil, fmt.Errorf("draw a plot: %w", err)
		}
		tiles := draw.Tiles{Rows: rows, Cols: panelColumns, PadTop: margin, PadBottom: margin, PadLeft: margin, PadRight: margin, PadX: margin, PadY: margin}
		for i, row := range plot.Align(panels, tiles, draw.New(canvas)) {
			for k, area := range row {
				panels[i][k].Draw(area)
			}
		}
		name := prefix + "." + format
		if err := save(name, canvas); err != nil {
			return nil, err
		}
		files = append(files, name)
	}
	return files, nil
}

func save(name string, canvas vg.CanvasWriterTo) error {
	file, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("write the plot: %w", err)
	}
	_, err = canvas.WriteTo(file)
	if e := file.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("write the plot: %w", err)
	}
	return nil
}

// panel draws one figure.
func panel(f *rnicsim.Figure, points []rnicsim.Point) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = f.Title
	p.Title.TextStyle.Font.Size = font.Points(11)
	p.X.Label.Text, p.Y.Label.Text = f.X, f.Y
	p.Legend.Top = true
	p.Legend.TextStyle.Font.Size = font.Points(9)
	p.Legend.Padding = vg.Points(1)
	var paper plotter.XYs
	for _, series := range f.Series {
		var ours plotter.XYs
		for _, q := range points {
			if q.Figure != f.Number || q.Series != series {
				continue
			}
			ours = append(ours, plotter.XY{X: float64(q.X), Y: q.Y})
			if q.Paper != nil {
				paper = append(paper, plotter.XY{X: float64(q.X), Y: *q.Paper})
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
	if len(paper) > 0 { // none with few QPs
		rings, err := plotter.NewScatter(paper)
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
