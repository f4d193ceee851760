package kit

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/gorxe/gorxe/internal/cli"
)

// Report is what a benchmark found.
type Report interface {
	// Warn writes warnings about unreliable figures.
	Warn(w io.Writer)
	// JSON returns the value whose JSON form is the output with --json.
	JSON() any
	// WriteTable writes the output for people.
	WriteTable(w io.Writer) error
	// Panels returns the diagrams of the plot.
	Panels() []Panel
}

// Print writes r to stdout as a table or, with asJSON, as JSON, warnings to stderr, and the plot
// into the file plot unless that is empty. If the plot fails, the figures are still written.
func Print(r Report, asJSON bool, plot string, stdout, stderr io.Writer) error {
	r.Warn(stderr)
	var files []string
	var plotErr error
	if plot != "" {
		files, plotErr = SavePlots(plot, r.Panels())
	}
	if asJSON {
		return errors.Join(cli.JSON(stdout, r.JSON()), plotErr)
	}
	if err := r.WriteTable(stdout); err != nil {
		return errors.Join(err, plotErr)
	}
	if len(files) > 0 {
		fmt.Fprintf(stdout, "\nPlot: %s\n", strings.Join(files, ", "))
	}
	return plotErr
}
