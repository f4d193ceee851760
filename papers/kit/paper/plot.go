package paper

import (
	"fmt"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/gorxe/gorxe/papers/kit"
)

// A plot is a grid of panels.
const (
	panelColumns = 2
	panelWidth   = 11 * vg.Centimeter
	panelHeight  = 5.2 * vg.Centimeter
	tallHeight   = 7.5 * vg.Centimeter // of curves
	margin       = 0.3 * vg.Centimeter
)

// SavePlots draws panels into the file name if it ends in .svg or .png, else into name.svg and name.png. It returns what
// it wrote.
func SavePlots(name string, panels []Panel) ([]string, error) {
	files := []string{name}
	if kit.PlotFormat(name) == "" {
		files = []string{name + ".svg", name + ".png"}
	}
	for _, f := range files {
		if err := savePlot(f, panels); err != nil {
			return nil, err
		}
	}
	return files, nil
}

func savePlot(name string, panels []Panel) error {
	height := panelHeight
	var plots []*plot.Plot
	for _, panel := range panels {
		p, err := panel.draw()
		if err != nil {
			return fmt.Errorf("draw a plot: %w", err)
		}
		if _, ok := panel.(*Curves); ok {
			height = tallHeight
		}
		plots = append(plots, p)
	}
	return SaveGrid(name, plots, panelWidth, height)
}

// SaveGrid draws plots of one size into a file whose name ends in .svg or .png, two in a row.
func SaveGrid(name string, plots []*plot.Plot, width, height vg.Length) error {
	columns := max(1, min(panelColumns, len(plots)))
	rows := max(1, (len(plots)+columns-1)/columns)
	grid := make([][]*plot.Plot, rows)
	for i := range grid {
		grid[i] = make([]*plot.Plot, columns)
	}
	for i, p := range plots {
		grid[i/columns][i%columns] = p
	}
	canvas, err := draw.NewFormattedCanvas(vg.Length(columns)*width, vg.Length(rows)*height, kit.PlotFormat(name))
	if err != nil {
		return fmt.Errorf("draw a plot: %w", err)
	}
	tiles := draw.Tiles{Rows: rows, Cols: columns, PadTop: margin, PadBottom: margin, PadLeft: margin, PadRight: margin, PadX: margin, PadY: margin}
	areas := plot.Align(grid, tiles, draw.New(canvas))
	for i, row := range grid {
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
