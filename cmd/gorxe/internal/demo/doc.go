// Package demo is the command "gorxe demo", which runs every operation between two devices and
// checks all data. The operations are in internal/demo.
//
// Reading order:
//
//   - command.go: flags, the run and the table of results.
package demo
