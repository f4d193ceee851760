// Package ping is "gorxe ping", and the service that answers it in "gorxe up".
//
// A round trip is one RC SEND by the client and one by the server, which sends
// back what it received, from the very memory that it received it in. That
// is chosen over WRITE and polled memory because the server sleeps until a receive
// completes, so an idle "up" costs nothing, and because both directions then take
// part: post, wire, receive completion, post, wire, receive completion. The reply
// is compared with what was sent, byte by byte.
//
// RC sends lost packets again, so a packet's loss shows as a slow round
// trip and in the retransmissions; a ping counts as lost if its answer has not
// come when the command ends, or its connection broke.
//
// Reading order: command.go (flags, loop, summary), link.go (one connection, the
// client's end), serve.go.
package ping
