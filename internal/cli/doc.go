// Package cli contains what the subcommands of gorxe share: exit status and error messages, flag
// values, tables and JSON, and latency summaries.
//
// Conventions: results go to stdout, everything else to stderr. The exit status is 0 if the command
// did what was asked, 2 if a flag or an argument was wrong, and 1 if the command failed. An error
// is one line that says what is wrong and what to do.
//
// Reading order:
//
//   - run.go: running a command, exit status, signals.
//   - complete.go: completion of flags and interfaces in shells.
//   - flags.go: helpers for flags that several commands have.
//   - values.go: flag values: sizes, durations, percentages, bounded integers and choices.
//   - output.go: tables, JSON and progress bars.
//   - stats.go: latency summaries and rates.
package cli
