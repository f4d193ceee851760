// Package bench is the command "gorxe bench" with its subcommands. Package internal/bench and the
// packages below papers do the work.
//
// # Reading order
//
//   - bench.go: "gorxe bench", and the hidden subcommand of its child processes.
//   - statusbyte.go, indirect.go, scale.go, flow.go, rftp.go: the subcommands for the papers.
//   - programs.go: programs under "gorxe run".
//   - flags.go: the flags that these commands share.
package bench
