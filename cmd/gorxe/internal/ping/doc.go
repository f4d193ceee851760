// Package ping is the command "gorxe ping". Packages internal/ping and internal/rping implement the
// two protocols that it uses.
//
// Reading order:
//   - command.go: the flags and the summary
//   - loop.go: pinging a gorxe
//   - rping.go: pinging an rping server
package ping
