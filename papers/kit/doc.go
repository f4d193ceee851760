// Package kit has the parts that the benchmarks of this repository share: options, rounds in which
// the compared sides alternate, results with a baseline and a paper's figures, plots, and access to
// the CPUs.
//
// # Reading order
//
//   - options.go: the options of a benchmark and their checks.
//   - rounds.go: the rounds of a benchmark, with a progress bar.
//   - parallel.go: simulations on all CPUs.
//   - row.go: Row, one value compared with a baseline, and warnings about unreliable rows.
//   - result.go: Series, the values of a method, of its baseline and of a paper; as JSON and table.
//   - stats.go: mean and coefficient of variation.
//   - plot.go, svg.go: plots as SVG and PNG, a grid of panels with legends.
//   - curves.go, bars.go: panels with curves, and with bars.
//   - cpu.go: pinned threads, CPU time, memory of the process.
//   - offload_unsafe.go: segmentation offload of an interface.
//   - report.go: Report and its output.
package kit
