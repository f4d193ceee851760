package bench

import (
	"fmt"
	"image/color"
	"os"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/gorxe/gorxe/cmd/gorxe/internal/bench/kit"
)

// The picture is a grid of panels, one a figure, with a bar a lane.
const (
	panelColumns = 2
	panelWidth   = 11 * vg.Centimeter
	panelHeight  = 5.2 * vg.Centimeter
	barWidth     = 14
	margin       = 0.3 * vg.Centimeter
	labelRoom    = 1.25 // the axis goes so far beyond the longest bar, for its label
)

var (
	ownColor   = color.RGBA{R: 0x1f, G: 0x6f, B: 0xb4, A: 0xff}
	otherColor = color.RGBA{R: 0xa6, G: 0xb4, B: 0xc0, A: 0xff}
	rangeStyle = draw.LineStyle{Color: color.RGBA{A: 0xff}, Width: vg.Points(0.8)}
)

// plot draws the medians, with lines from the least to the greatest value, into a file whose name says the format.
func (b *bench) plot(name string) (err error) {
	rows := (len(b.figures) + panelColumns - 1) / panelColumns
	columns := min(panelColumns, len(b.figures))
	panels := make([][]*plot.Plot, rows)
	for i := range rows {
		panels[i] = make([]*plot.Plot, columns)
	}
	for i := range b.figures {
		p, err := b.figures[i].panel(b.samples[b.figures[i].name])
		if err != nil {
			return fmt.Errorf("draw %s: %w", b.figures[i].name, err)
		}
		panels[i/columns][i%columns] = p
	}
	canvas, err := draw.NewFormattedCanvas(vg.Length(columns)*panelWidth, vg.Length(rows)*panelHeight, kit.PlotFormat(name))
	if err != nil {
		return fmt.Errorf("draw a plot: %w", err)
	}
	tiles := draw.Tiles{Rows: rows, Cols: columns, PadTop: margin, PadBottom: margin, PadLeft: margin, PadRight: margin, PadX: margin, PadY: margin}
	areas := plot.Align(panels, tiles, draw.New(canvas))
	for i, row := range panels {
		for k, p := range row {
			if p != nil {
				p.Draw(areas[i][k])
			}
		}
	}
	return save(name, canvas)
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
func (f *figure) panel(samples map[string][]sample) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = f.title
	p.Title.TextStyle.Font.Size = font.Points(11)
	p.X.Label.Text = f.unit + ", more is better"
	if f.unit == unitLatency {
		p.X.Label.Text = "us a round trip, less is better"
	}
	p.X.Min = 0
	var labels []string
	var texts plotter.XYLabels
	var ranges plotter.XYs
	var errs plotter.XErrors
	for i, l := range slices.Backward(f.lanes) {
		v := column(samples[l.name], valueOf)
		if len(v) == 0 {
			continue
		}
		at, m := float64(len(labels)), kit.Median(v)
		bar, err := plotter.NewBarChart(plotter.Values{m}, vg.Points(barWidth))
		if err != nil {
			return nil, err
		}
		bar.Horizontal, bar.XMin, bar.LineStyle.Width, bar.Color = true, at, 0, otherColor
		if i == 0 {
			bar.Color = ownColor
		}
		p.Add(bar)
		labels = append(labels, l.label())
		ranges = append(ranges, plotter.XY{X: m, Y: at})
		errs = append(errs, struct{ Low, High float64 }{m - slices.Min(v), slices.Max(v) - m})
		texts.XYs = append(texts.XYs, plotter.XY{X: slices.Max(v), Y: at})
		texts.Labels = append(texts.Labels, fmt.Sprintf(" %.3g", m))
		p.X.Max = max(p.X.Max, slices.Max(v)*labelRoom)
	}
	p.NominalY(labels...)
	return p, f.decorate(p, texts, ranges, errs)
}

// decorate adds the ranges and the values to the bars.
func (f *figure) decorate(p *plot.Plot, texts plotter.XYLabels, at plotter.XYs, errs plotter.XErrors) error {
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

// label is the lane's name in the picture.
func (l *lane) label() string {
	switch {
	case l.loss > 0:
		return fmt.Sprintf("%s, %g %% loss", l.name, l.loss*100)
	case l.name == laneLossless:
		return "gorxe, no loss"
	case l.name == laneTCPLossless:
		return "tcp, no loss"
	}
	return l.name
}
