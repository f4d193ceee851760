// Package dump is the command "gorxe dump", which prints RoCEv2 packets of a capture file or an
// interface. Reading and printing packets is in internal/dump.
//
// Reading order:
//
//   - command.go: flags and the run.
package dump
