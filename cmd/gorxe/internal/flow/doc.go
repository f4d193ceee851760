// Package flow is the command "gorxe flow": "gorxe flow check" computes the worst-case response
// times of flows that share a link, "gorxe flow run" sends their messages, and "gorxe flow serve"
// receives them on another host (package internal/flowplan).
//
// # Reading order
//
//   - command.go: the command and what its subcommands share
//   - check.go: flags and run of "gorxe flow check"
//   - run.go: flags and run of "gorxe flow run"
//   - serve.go: flags and run of "gorxe flow serve"
package flow
