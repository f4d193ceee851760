// Package sim is "gorxe sim": models of RDMA hardware, run and set beside what their papers report. It has one, "gorxe sim
// prefetch", of package model.
//
// Reading order: command.go (flags and the run), report.go (table, JSON, assumptions), plot.go (the picture).
package sim
