// Package perftest speaks the exchange of perftest, the RDMA world's own
// benchmarks (ib_write_bw and its siblings), so that each end of a test may be
// theirs or gorxe's. It is the part that goes over TCP, port DefaultPort; who
// moves the data is package perf.
//
// The client speaks first in every step, and each step is one message of the
// same length in either direction:
//
//	version       16 bytes of text, NUL-padded
//	cycle_buffer  int32, big endian: bytes that a small-message test cycles through
//	cache line    int32, big endian
//	path MTU      its enum (1..5) as a digit, NUL
//	key           108 bytes of text: what a peer must know of one queue pair
//	...           keys again, as often as the test wants: they are its barriers
//	report        size, iterations (uint64), peak, average, message rate
//	              (float64), each an exchange of 8 bytes, big endian
//	done          5 bytes, older versions only, after which the end closes
//
// How many keys come when depends on the test and is not said anywhere on the
// wire: see steps.go, which holds for all versions tried (6.06, which is
// Debian 12's 4.5+0.17, and 6.24, Debian 13's 25.01). A Server need not know it: it
// answers each message by its kind.
//
// From 6.28 on perftest compares the two ends' parameters in one more step, but
// only with a peer that announces at least that. gorxe announces 6.20.
//
// With -R the two ends meet by rdma_cm instead, on a port of the same number:
// each message is one SEND, and a key 56 bytes of binary numbers (mail.go). After the path MTU
// two blank keys are exchanged, between which the client connects every queue pair by rdma_cm, too.
//
// Two gorxe ends know each other by a mark behind the version's NUL, where
// perftest's readers do not look, and go on with package oob's exchange on the
// same connection.
//
// A peer that speaks something else, an unknown version, or nothing, gets no
// more than a bounded amount of memory and time; the error quotes what it sent.
//
// Reading order: version.go, key.go, report.go, link.go, mail.go, steps.go,
// client.go, server.go.
package perftest
