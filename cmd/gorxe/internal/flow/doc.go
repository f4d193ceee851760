// Package flow is the command "gorxe flow": "gorxe flow check" computes the worst-case response
// times of flows that share a link, and "gorxe flow run" sends their messages (package
// internal/flowplan).
//
// # Reading order
//
//   - command.go: the command and what its subcommands share
//   - check.go: flags and run of "gorxe flow check"
//   - run.go: flags and run of "gorxe flow run"
package flow
