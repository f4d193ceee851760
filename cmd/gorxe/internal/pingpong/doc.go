// Package pingpong is the command "gorxe pingpong", which plays ping-pong with the example programs
// of rdma-core. The protocol is in internal/pingpong.
//
// Reading order:
//
//   - command.go: flags, the run and its report.
package pingpong
