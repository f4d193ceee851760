// Package xdpbench measures what bare frames reach between two Ports: the yardstick for everything that runs on
// top of them. It uses the Ports' own code and nothing above it: no protocol, no ICRC, only UDP frames to port 4791 with
// payloads of a given size, of which every byte is copied into the transmit buffer.
//
//   - OneWay: delivered frames per second, one thread sending and one receiving;
//   - PingPong: round trips, both threads spinning, or both blocking.
//
// Each end has a thread of its own, locked and on request pinned to a CPU. On a machine that is shared, compare
// only figures of one run.
package xdpbench
