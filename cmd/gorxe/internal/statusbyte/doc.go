// Package statusbyte is the command "gorxe statusbyte", which sends streams of many devices over
// one queue pair. The streams are in internal/streams, the protocol is in transport/statusbyte.
//
// Reading order:
//
//   - command.go: the command and the flags that send and recv share.
//   - send.go: the command send.
//   - recv.go: the command recv.
//   - tail.go: the command tail.
//   - report.go: printing reports.
package statusbyte
