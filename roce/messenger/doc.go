// Package messenger provides messages, calls and one-sided operations over RDMA. It owns the queue
// pair, the completion queue and the buffers of a connection, so that programs need no verbs.
//
//	c, err := messenger.Dial(ctx, dev, addr, messenger.Config{})
//	...
//	defer c.Close()
//	answer, err := c.Call(ctx, []byte("hello"))
//
// # Messages and calls
//
// Send and Recv exchange messages. Call sends a request and waits for its answer, which the peer's
// Handler returns (Conn.Handle). Both sides of a connection can do all of it, from any number of
// goroutines. A Message is a part of the receive ring; Release returns it.
//
// Nothing grows without bound: if the peer's program does not take messages, Send and Call wait
// until their contexts end. Messages that are longer than Config.MaxMessage of either side fail
// with ErrTooLarge; use WriteAt and ReadAt for large data.
//
// # One-sided operations
//
// ReadAt, WriteAt, CompareAndSwap and FetchAdd access memory that the peer has registered in its
// Conn.PD and described to this side, for example in a message with the bytes of
// roce.MR.Remote().MarshalBinary. The peer's program takes no part. Do executes a list of
// operations at once, which is the fastest way for many small ones.
//
// # Contexts
//
// When a context ends, the call returns at once, and the connection never touches the memory of its
// arguments again: data goes through buffers of the connection, which stay in use until the late
// completion. The exception are operations with an SGE, which do not copy: see Conn.Do.
//
// # Errors and keepalives
//
// Errors name the operation and the peer (*Error), and wrap the reason. If the peer has closed the
// connection, errors.Is(err, io.EOF) is true. A peer that dies is noticed at most 10 s after its
// last packet with the defaults, or 4.3 s after something was sent to it: see KeepAlive and Timeout
// of Config.Connect. Then calls return roce.ErrConnLost with a *roce.StatusError.
//
// # Progress
//
// A connection has no goroutine: callers that wait handle its completions, for all callers. With
// Manual progress they also run the protocol. Then a message that was sent leaves this side at the
// latest during the next call that waits, such as Recv or Flush. In a bubble of testing/synctest
// nothing differs. In virtual time (roce.Expert.Clock), set Config.Go.
//
// # On the wire
//
// A connection is an RC connection of the connection manager (rdma_cm). Each side describes itself
// in the private data of the request or the reply, 12 bytes, integers in big-endian order:
//
//	bytes 0 to 3   "gMSG"
//	byte  4        the version, 1
//	byte  5        0
//	bytes 6 to 7   credits: messages that the other side may send at first
//	bytes 8 to 11  length of the longest message that this side receives, in bytes
//
// Each message is a SEND with immediate. The payload is that of the program. The immediate has
// three fields:
//
//	bits 28 to 31  kind
//	bits 16 to 27  credits: further messages that the receiver may send
//	bits 0 to 15   ID of a call, otherwise 0
//
// The kinds are:
//
//	0  a message; needs a credit. A SEND without immediate is one, too
//	1  a request; needs a credit. Its ID must not be that of a request that was not answered yet
//	2  the answer to the request with the same ID
//	3  the same, if it failed; the payload is a text
//	4  credits only; no payload
//	5  the request with this ID was canceled, and is answered nevertheless; no payload; needs a
//	   credit
//
// So that no RNR NAK ever occurs, a side posts receives for all credits that it grants, for its own
// unanswered requests, and 24 for messages of kind 4. It sends such a message when half of the
// credits that it could grant have accumulated; otherwise credits travel with other messages. A
// program on libibverbs can follow these rules.
//
// Without these private data the peer is a plain one: both sides send SENDs without immediate,
// there are no calls, and RNR NAKs hold a sender up whose peer has posted no receive. One-sided
// operations work with every peer.
//
// # Reading order
//
// For maintainers:
//
//   - config.go, errors.go: the vocabulary
//   - wire.go: what is on the wire
//   - conn.go, serve.go: a Conn and its objects; servers
//   - wait.go: how callers wait, and handle completions for each other
//   - send.go, recv.go: the send queue and the receive ring, credits
//   - call.go: calls in both roles
//   - onesided.go: READ, WRITE and atomics
package messenger
