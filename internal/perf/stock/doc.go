// Package stock runs the tests of package perf against perftest's own programs (ib_write_bw and
// related ones, called stock programs here), as client and as server. Package perftest implements
// the messages that it exchanges with them.
//
// The client follows perftest's protocol for the test that the user has chosen. Dial recognizes a
// gorxe server by its hello and then returns a client of package perf.
//
// The server is harder. A perftest client does not say which test it runs: perftest expects the
// users of both sides to give the same flags. Server infers the test from what the client does:
//
//   - READs, atomics and WRITEs for bandwidth need nothing from the server but its memory.
//   - SENDs arrive as receive completions. If a second one follows without a reply, it is a
//     bandwidth test. Otherwise the server replies to the first one. If the client has a receive
//     for the reply, it is a latency test, and the server replies to each message.
//   - write-lat is recognized by its single queue pair and the number of barriers before the first
//     message. The server then watches the memory that the client writes to, and finds the size of
//     the messages by the position of their last byte: see writeWatcher.
//
// Reading order:
//   - params.go: parameters, keys and queue pairs in terms of perftest
//   - dial.go, client.go: the client
//   - server.go: the server; a session has a goroutine for the messages of perftest's protocol
//   - messages.go: the session's other goroutine, which handles the client's RDMA messages
//   - memory.go: finding the messages of write-lat in memory
//   - cm.go, cmlink.go: connections by rdma_cm (-R)
//   - ends.go: recognizing the end of a test over rdma_cm
package stock
