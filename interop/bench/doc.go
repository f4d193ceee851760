// Command bench sets gorxe against the kernel's rxe inside the same two guests: gorxe on both ends, then rxe on both
// ends, on the same emulated NICs and CPUs, in turns.
//
//	make interop-bench
//	go run ./interop/bench --json
//
// Each round has every figure once on each side, and the side that goes first changes from round to round. rxe is measured by
// Debian's perftest, gorxe by 'gorxe perf'. The device rxe0 stays while gorxe runs: gorxe's XDP program then takes UDP port
// 4791 and rxe has nothing to do. Between runs nothing of gorxe is attached.
//
// The guests are emulated, so the figures say how the two compare on this very host and no more: never set them against
// figures from outside a guest.
//
// Reading order: main.go; figures.go (what is measured), sides.go (the two programs), trial.go (one run in the
// guests), compare.go (the rounds), cpu.go, report.go (medians, ratios, output).
package main
