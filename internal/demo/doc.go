// Package demo runs every RDMA operation between two devices, checks every byte and measures the
// time.
//
// Device A has manual progress and is driven by the goroutine that runs the demo. Device B has a
// separate thread. As on two hosts, only packets connect them. A row of the report is one operation
// with one message size:
//
//   - P50 and P99 are latencies of single messages. For RC they end with the completion of the send
//     work request, for UC and UD with the arrival at B.
//   - Gbps is the rate of messages in batches of up to 64. Filling and comparing buffers is not
//     timed.
//   - Count is the number of messages that arrived and were checked. UC and UD do not retransmit;
//     the report counts their lost messages separately.
//
// Reading order:
//
//   - demo.go: Config, New and Run; the two devices and their memory.
//   - operations.go: the table of operations and message sizes.
//   - trial.go: sending messages of one size and waiting for them.
//   - poll.go: polling without using a whole core.
//   - verify.go: filling and checking the memory.
//   - atomics.go, invalidate.go, bulk.go: operations that need more than trial.go.
//   - report.go: the report.
package demo
