// Command bench compares gorxe with the kernel's rxe inside the same two guests: gorxe on both
// sides, then rxe on both sides, then perftest under gorxe run on both sides, on the same emulated
// NICs and CPUs, alternating.
//
//	make interop-bench
//	go run ./interop/bench --json
//
// Each round measures every figure once on each side, and the side that goes first changes from
// round to round. rxe and gorxe run are measured by Debian's perftest, gorxe by 'gorxe perf'. The
// device rxe0 stays while gorxe runs: gorxe's XDP program then takes UDP port 4791 and rxe is idle.
// Between runs nothing of gorxe is attached.
//
// The guests are emulated, so the figures compare the two on this host only. Do not compare them
// with figures from outside a guest.
//
// Reading order:
//
//   - main.go: flags.
//   - figures.go: what is measured.
//   - sides.go: the programs.
//   - trial.go: one run in the guests.
//   - compare.go, cpu.go: the rounds.
//   - report.go: medians, ratios, output.
package main
