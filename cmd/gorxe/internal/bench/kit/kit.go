// Package kit is what the benchmarks share: medians and spreads, a progress bar, pinned threads, names of plots.
package kit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// Median is the middle value, or the mean of the two in the middle; 0 of nothing. It leaves v alone.
func Median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	m := len(s) / 2
	if len(s)%2 == 1 {
		return s[m]
	}
	return (s[m-1] + s[m]) / 2
}

// Spread is (max-min)/median: 0 if all are equal, or if the median is 0.
func Spread(v []float64) float64 {
	m := Median(v)
	if m == 0 {
		return 0
	}
	return (slices.Max(v) - slices.Min(v)) / m
}

// Ratios divides pairwise, round by round. Rounds without a baseline value are left out.
func Ratios(v, base []float64) []float64 {
	r := make([]float64, 0, len(v))
	for i := range min(len(v), len(base)) {
		if base[i] != 0 {
			r = append(r, v[i]/base[i])
		}
	}
	return r
}

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
