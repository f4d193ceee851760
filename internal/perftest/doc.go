// Package perftest implements the out-of-band protocol of perftest, the common RDMA benchmarks
// (ib_write_bw and related programs), so that either side of a test can be perftest or gorxe. It
// covers the messages only; package perf moves the data.
//
// The protocol runs over TCP, port DefaultPort. The client sends first in every step, and each step
// is one message of the same length in either direction:
//
//	version       16 bytes of text, NUL-padded
//	cycle_buffer  int32, big endian: bytes that a small-message test cycles through
//	cache line    int32, big endian
//	path MTU      its enumerated value (1 to 5) as a digit, NUL
//	key           108 bytes of text: what a peer must know about one queue pair
//	...           further keys, which serve as barriers
//	report        size, iterations (uint64), peak, average, message rate (float64):
//	              five exchanges of 8 bytes, big endian
//	done          5 bytes, sent by older versions only before they close the connection
//
// The number and order of the keys depend on the test, which the protocol does not announce: see
// steps.go. The table there holds for versions 6.06 (Debian 12, 4.5+0.17) and 6.24 (Debian 13,
// 25.01). A Server does not need it: it answers each message according to its kind.
//
// From version 6.28 on, perftest compares the parameters of both sides in an additional step, but
// only with a peer that announces at least this version. gorxe announces 6.20.
//
// With perftest's -R, the two sides connect by rdma_cm instead, on a port with the same number.
// Each message is then one SEND, and a key has 56 bytes of binary numbers. After the path MTU, the
// sides exchange two blank keys. Between these, the client connects each queue pair by rdma_cm.
//
// Two gorxe sides recognize each other by a mark after the version's NUL, which perftest ignores.
// They continue on the same connection with the protocol of package exchange.
//
// A peer that speaks another protocol or an unknown version, or sends nothing, costs a bounded
// amount of memory and time. The error quotes what it sent.
//
// Reading order:
//   - version.go, key.go, report.go: the messages
//   - link.go, cmlink.go: how messages travel over TCP and over rdma_cm
//   - steps.go: which messages each test exchanges
//   - client.go, server.go: the two sides
//   - errors.go: the errors
package perftest
