// Package figures measures how gorxe uses lossy, long and shared networks: the figures of "gorxe
// sim network". Each experiment is a scenario of package netsim, of which one or more figures are
// taken. The same seed gives the same figures on every machine.
//
// # Reading order
//
//   - figure.go: experiments, figures and their targets
//   - links.go: one QP on a lossy or long link
//   - shared.go: several flows through one bottleneck
//   - run.go: Options and Run
//   - report.go: Report as table and JSON
//   - curves.go: the plot
package figures
