// Package kit is what the benchmarks share: rows of results, a progress bar, pinned threads, names of plots, what the user is told, whether AF_XDP works.
package kit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/gorxe/gorxe/internal/cli"
)

// Bar shows progress where somebody looks.
func Bar(w io.Writer, steps int) *progressbar.ProgressBar {
	file, ok := w.(*os.File)
	return progressbar.NewOptions(steps,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetVisibility(ok && term.IsTerminal(int(file.Fd()))),
		progressbar.OptionShowCount(),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionClearOnFinish(),
	)
}

// maxCPU bounds the CPUs that can be asked for.
const maxCPU = 1024

// AllowedCPUs are those that this process may use, at least one.
func AllowedCPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("ask which CPUs this process may use: %w", err)
	}
	var list []int
	for i := range maxCPU {
		if set.IsSet(i) {
			list = append(list, i)
		}
	}
	if len(list) == 0 {
		return nil, errors.New("this process may use no CPU that gorxe knows: give it others (taskset)")
	}
	return list, nil
}

// Pin ties the calling thread to a CPU; a negative one leaves it free.
func Pin(cpu int) error {
	if cpu < 0 {
		return nil
	}
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("pin the measuring thread to CPU %d: %w: choose others with --cpus", cpu, err)
	}
	return nil
}

// PlotFormat is "svg" or "png" by the file's name, or "".
func PlotFormat(name string) string {
	switch ext := strings.ToLower(filepath.Ext(name)); ext {
	case ".svg", ".png":
		return ext[1:]
	}
	return ""
}

// CheckPlot refuses a plot that could not be written when all has been measured: its folder is missing, or, unless any name will do,
// its name says no format. The empty name is no plot.
func CheckPlot(name string, anyName bool) error {
	if name == "" {
		return nil
	}
	if !anyName && PlotFormat(name) == "" {
		return cli.Usagef("%s: a plot's name has to end in .svg or .png", name)
	}
	if _, err := os.Stat(filepath.Dir(name)); err != nil {
		return fmt.Errorf("the plot needs its folder: %w", err)
	}
	return nil
}
