package kit

import (
	"bytes"
	"fmt"
	"image/color"
	"os"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Panel is one diagram of a plot: *Bars or *Curves.
type Panel interface {
	draw() (*diagram, error)
	height() vg.Length
}

// diagram is a panel ready for drawing. Its legend is drawn below it, one entry per line with the
// text to the right of the symbol, so that texts cannot overlap anything however wide the viewer's
// font is.
type diagram struct {
	*plot.Plot
	legend []legendEntry
}

type legendEntry struct {
	text    string
	symbols []plot.Thumbnailer
}

// A plot is a grid of panels.
const (
	panelColumns = 2
	panelWidth   = 11 * vg.Centimeter
	curvesHeight = 6.5 * vg.Centimeter
	margin       = 0.5 * vg.Centimeter

	titleSize = 11 // points, as the other font sizes

	legendSize   = 9
	legendLine   = 13 * vg.Inch / 72    // from one entry to the next
	legendGap    = 0.15 * vg.Centimeter // between the diagram and its legend
	symbolWidth  = 0.9 * vg.Centimeter
	symbolMargin = 0.25 * vg.Centimeter // between a symbol and its text
)

// Colors of lines, in the order of use. The first one is ours.
var palette = []color.RGBA{
	{R: 0x1f, G: 0x6f, B: 0xb4, A: 0xff}, {R: 0xd9, G: 0x6c, B: 0x1e, A: 0xff},
	{R: 0x5b, G: 0x8c, B: 0x3a, A: 0xff}, {R: 0x8a, G: 0x5a, B: 0xa5, A: 0xff},
}

func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.TextStyle.Font.Size = font.Points(titleSize)
	p.Title.Padding = vg.Points(4)
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.TickerFunc(shortTicks), plot.TickerFunc(shortTicks)
	return p
}

// shortTicks returns the default ticks with labels as short as possible: 25 instead of 25.00.
func shortTicks(least, most float64) []plot.Tick {
	ticks := plot.DefaultTicks{}.Ticks(least, most)
	for i := range ticks {
		if ticks[i].Label != "" {
			const digits = 4
			ticks[i].Label = strconv.FormatFloat(ticks[i].Value, 'g', digits, 64)
		}
	}
	return ticks
}

// SavePlots draws panels into the file name if it ends in .svg or .png, otherwise into name.svg and
// name.png. It returns the names of the files.
func SavePlots(name string, panels []Panel) ([]string, error) {
	files := []string{name}
	if PlotFormat(name) == "" {
		files = []string{name + ".svg", name + ".png"}
	}
	for _, f := range files {
		if err := savePlot(f, panels); err != nil {
			return nil, fmt.Errorf("draw the plot %s: %w", f, err)
		}
	}
	return files, nil
}

func savePlot(name string, panels []Panel) error {
	columns := max(1, min(panelColumns, len(panels)))
	rows := max(1, (len(panels)+columns-1)/columns)
	grid := make([][]*plot.Plot, rows)
	for i := range grid {
		grid[i] = make([]*plot.Plot, columns)
	}
	var list []*diagram
	var height, legend vg.Length
	for i, panel := range panels {
		d, err := panel.draw()
		if err != nil {
			return err
		}
		list = append(list, d)
		grid[i/columns][i%columns] = d.Plot
		height = max(height, panel.height())
		legend = max(legend, d.legendHeight())
	}
	// The legends are in the space between the rows.
	tiles := draw.Tiles{
		Rows: rows, Cols: columns, PadTop: margin, PadBottom: margin + legend,
		PadLeft: margin, PadRight: margin, PadX: 2 * margin, PadY: margin + legend,
	}
	canvas, err := draw.NewFormattedCanvas(vg.Length(columns)*panelWidth,
		vg.Length(rows)*(height+legend+margin)+margin, PlotFormat(name))
	if err != nil {
		return err
	}
	areas := slices.Concat(plot.Align(grid, tiles, draw.New(canvas))...)
	for i, d := range list {
		d.Draw(areas[i])
		d.drawLegend(areas[i])
	}
	return writeFile(name, canvas)
}

func (d *diagram) legendHeight() vg.Length {
	if len(d.legend) == 0 {
		return 0
	}
	return legendGap + vg.Length(len(d.legend))*legendLine
}

// drawLegend draws the legend below area, aligned with the diagram's left axis.
func (d *diagram) drawLegend(area draw.Canvas) {
	style := d.Legend.TextStyle
	style.Font.Size = font.Points(legendSize)
	style.XAlign, style.YAlign = draw.XLeft, draw.YCenter
	left := d.DataCanvas(area).Min.X
	for i, e := range d.legend {
		bottom := area.Min.Y - legendGap - vg.Length(i+1)*legendLine
		symbol := draw.Canvas{Canvas: area.Canvas, Rectangle: vg.Rectangle{
			Min: vg.Point{X: left, Y: bottom},
			Max: vg.Point{X: left + symbolWidth, Y: bottom + legendLine},
		}}
		for _, s := range e.symbols {
			s.Thumbnail(&symbol)
		}
		area.FillText(style, vg.Point{X: symbol.Max.X + symbolMargin, Y: symbol.Center().Y}, e.text)
	}
}

func writeFile(name string, canvas vg.CanvasWriterTo) error {
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return err
	}
	data := b.Bytes()
	if PlotFormat(name) == "svg" {
		data = fixTextWidths(data)
	}
	return os.WriteFile(name, data, 0o644)
}
