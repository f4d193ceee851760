// Package core is the protocol of rsockets as a state machine: what a stream sends when, and what
// it makes of what the peer sends. It has no goroutines, locks or clocks, and posts no work
// requests itself. Package rsocket runs it on a queue pair.
//
// docs/rsocket.md describes the protocol. A Stream is the state of one side:
//
//   - [Stream.Open] takes the peer's [Hello], which the connection manager has delivered.
//   - [Stream.Received] takes a message of the peer. It checks everything that the peer states. An
//     error means that the peer broke the protocol, and that the connection must end.
//   - [Stream.Space], [Stream.Send] and [Stream.Control] say which RDMA WRITEs are due now, as
//     [Write]. [Stream.Completed] reports that they have completed.
//   - [Stream.Readable] and [Stream.Consume] are the receiving side of the program.
//
// # Reading order
//
//   - hello.go: the data that both sides exchange when they connect
//   - message.go: immediates, and the entries that a side writes into memory of the other
//   - stream.go: Config, Stream, the state of the connection
//   - send.go: credits, target buffers, the send buffer, completions
//   - receive.go: the receive buffer, and what grants its space to the peer again
//   - maps.go: memory that a side opens to the other
package core
