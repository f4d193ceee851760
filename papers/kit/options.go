package kit

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
)

// The links that a benchmark can use.
const (
	Veth   = "veth"   // AF_XDP on a veth pair
	Memory = "memory" // the link in memory of package loopback
)

// Options are the settings that the benchmarks share.
type Options struct {
	Link     string        // Veth or Memory
	Rounds   int           // each round measures everything once
	Duration time.Duration // of one measurement
	Only     []string      // names of what to measure; empty means everything
	CPUs     []int         // one for each of the two sides; nil means the first two
	Plot     string        // file to draw the results into; "" means none
}

// Check refuses names in o.Only that are not among known, a plot that could not be written, and
// CPUs that this process may not use. It chooses the CPUs if o.CPUs is nil. kind says what the
// names are, for the error message; bothFormats allows a plot name without extension, which means
// both an SVG and a PNG file.
func (o *Options) Check(kind string, known []string, bothFormats bool) (err error) {
	if err := Known(kind, o.Only, known); err != nil {
		return err
	}
	if err := CheckPlot(o.Plot, bothFormats); err != nil {
		return err
	}
	o.CPUs, err = TwoCPUs(o.CPUs)
	return err
}

// Known returns a usage error if one of the given names is not among known. kind says what the
// names are.
func Known(kind string, given, known []string) error {
	for _, name := range given {
		if !slices.Contains(known, name) {
			return cli.Usagef("there is no %s %q: choose from %s", kind, name,
				strings.Join(known, ", "))
		}
	}
	return nil
}

// PlotFormat returns "svg" or "png" for a file name with that extension, otherwise "".
func PlotFormat(name string) string {
	switch ext := strings.ToLower(filepath.Ext(name)); ext {
	case ".svg", ".png":
		return ext[1:]
	}
	return ""
}

// CheckPlot returns an error if a plot could not be written to the file name after the
// measurement: its directory is missing, or its extension is unknown. With bothFormats any
// extension will do. The empty name means no plot.
func CheckPlot(name string, bothFormats bool) error {
	if name == "" {
		return nil
	}
	if !bothFormats && PlotFormat(name) == "" {
		return cli.Usagef("%s: the name of a plot must end in .svg or .png", name)
	}
	if _, err := os.Stat(filepath.Dir(name)); err != nil {
		return fmt.Errorf("cannot write the plot: %w: create the directory or choose another", err)
	}
	return nil
}
