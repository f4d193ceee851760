// Package cli is what the subcommands of gorxe share: how a command ends, how
// flags are read, and how results are shown.
//
// Reading order: run.go (exit status, the one-line error, the signal context),
// values.go (sizes, durations, percentages, bounded integers as flags),
// output.go (aligned tables and JSON), stats.go (latency summaries).
//
// The conventions it holds: results go to stdout, everything else to stderr;
// exit status 0 means that the command did what was asked, 2 that it was asked
// wrongly (a flag, an argument), 1 that it failed; an error is one line which
// says what is wrong and what to do.
package cli
