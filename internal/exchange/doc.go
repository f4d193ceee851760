// Package exchange implements gorxe's own out-of-band protocol. Before RDMA traffic can flow, the
// client and the server of a tool (gorxe ping, gorxe perf) use it to exchange queue pairs, buffers
// and the parameters of a test.
//
// The exchange runs over TCP, port DefaultPort. Each message is one line with a JSON object whose
// first field is "gorxe", the version of the exchange. A message has at most MaxMessage bytes, and
// every send and receive has a deadline. The receiver checks a message from its first byte on and
// returns an error that quotes the bytes that do not fit. A peer that speaks another protocol, or
// sends nothing, therefore costs a bounded amount of memory and time.
//
// A session looks like this:
//
//	client                                   server
//	request  service, params, QPs  ------->  checks it, creates and connects its QPs
//	connects its QPs               <-------  accept  QPs
//	run      bytes, ...            ------->  prepares the run
//	starts the run                 <-------  ready
//	done     result                <------>  done    result
//	(run, ready and done repeat as often as the client wants)
//	closes the connection
//
// Either side may instead send an error, with a text for the user of the other side, and close the
// connection. A session ends when its connection ends.
//
// Endpoints of queue pairs may have features (roce.Features) and a traffic class, which the server
// adopts. A server sends such a field only to a client whose request has it, because old versions
// refuse fields that they do not know. A client that an old server refuses for that reason repeats
// its request without the field.
//
// The parameters of run and done belong to the service: see packages ping and perf. Package
// perftest implements another protocol on port 18515; Server.Detect lets a server support both.
//
// Reading order:
//   - message.go: the messages, their limits and the errors
//   - conn.go: Conn sends and receives messages
//   - request.go: the client's request, also to old servers
//   - server.go: Server accepts sessions and passes them to services
//   - gid.go: which GIDs a client may name
//   - limits.go: the limits of a Server
//   - pending.go: connections that have not sent a request yet
package exchange
