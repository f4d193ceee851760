// Package perf is "gorxe perf": bandwidth and latency of one operation between
// two ends, gorxe's or perftest's (ib_write_bw and its siblings: "stock"), with the flags and columns
// that a perftest user knows.
//
// Reading order: ops.go (the table of operations), params.go (what the client
// asks for and its limits), command.go (flags, client and server as the user
// sees them), protocol.go (the session over oob: run, ready, done), bw.go and
// lat.go (the loops that measure), report.go (columns and JSON). Then, for a peer that is a perftest: stock.go
// (what both roles share), stock_client.go, stock_server.go with stock_attend.go and stock_memory.go (how a server
// finds out what the client wants, which perftest does not say), stock_cm.go, stock_part.go and stock_mail.go (-R).
//
// How it measures:
//
//   - Bandwidth: each QP keeps -t work requests outstanding, posted in batches of
//     which the last is signalled; the time runs from the first post to the last
//     completion. The peak is the best of all spans of at least 10 ms and 8 batches between two
//     completions. With -b both ends do so, and the sum is shown.
//   - write-lat: the client WRITEs, the server polls the last byte of its
//     buffer, WRITEs back; send-lat: the same with SEND and receive completions. Both
//     show half of the round trip, as perftest does. read-lat and atomic-lat show the
//     time from post to completion.
//   - The latency loops run with manual progress: the measuring thread itself
//     receives and sends, and polls memory through the MR's accessors. A server
//     within "gorxe up" shares that device's own progress thread instead, which
//     costs a hand-over between threads for write-lat and send-lat.
package perf
