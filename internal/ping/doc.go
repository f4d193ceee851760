// Package ping measures round trips of RDMA messages. It is the protocol of "gorxe ping", and the
// service in "gorxe up" that answers it.
//
// A ping is one RC SEND by the client, and one by the server, which sends back what it received
// from the memory in which it received it. The client compares the reply with what it sent. SENDs
// were chosen instead of WRITEs and polled memory, because a server can then sleep until a receive
// completes.
//
// A server that sleeps needs several times as long as a round trip to wake up. Before a ping the
// client can therefore send an empty message, to which the server replies like to a ping. The
// server then polls for the ping, for at most a millisecond and a small share of the time.
//
// RC retransmits lost packets. A lost packet therefore shows as a slow round trip and in the
// retransmission counter. A ping counts as lost only if its reply has not arrived when the command
// ends, or if its connection has failed.
//
// Reading order:
//   - params.go: parameters of a session
//   - client.go, server.go: the two sides
//   - awake.go: how long the server polls
package ping
