// Package xdpbench measures bare frames between two ports, as a baseline for everything built on
// top of them. It uses only the ports: no protocol, no ICRC, only UDP frames to port 4791 whose
// payload is copied into the send buffers.
//
//   - OneWay measures delivered frames per second, with one sending and one receiving thread.
//   - PingPong measures round-trip times, with both threads spinning or both blocking.
//
// Each side has its own thread, which can be pinned to a CPU. On a shared machine, compare only
// results of the same run.
//
// Reading order:
//
//   - oneway.go: OneWay
//   - pingpong.go: PingPong
//   - bench.go: what both share
package xdpbench
