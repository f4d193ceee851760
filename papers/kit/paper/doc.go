// Package paper is what the reruns of papers' experiments share, on top of package kit: tables and JSON with the paper's figure
// beside ours, rounds in which the sides take turns, plots with bars and curves.
//
// # Reading order
//
//   - stats.go: how much series vary.
//   - row.go: Row, one line of results, as JSON (Result) and as a table.
//   - rounds.go: Rounds: the sides of every experiment take turns.
//   - panel.go, plot.go: bars and curves, as SVG and PNG.
//   - cpu.go: the sides' CPUs, CPU time, memory of a process.
package paper
