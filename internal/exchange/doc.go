// Package exchange is how two gorxe ends tell each other, out of band, what RDMA
// needs to know beforehand: queue pairs, buffers and the parameters of a test.
//
// It runs over TCP, DefaultPort, one message a line: a JSON object whose first
// field is "gorxe", the version of this exchange. A message is at most MaxMessage
// bytes; every send and receive has a deadline; what does not look like a
// message from its first bytes on is refused at once, with an error that quotes
// it. So a peer that speaks something else, or says nothing, costs a bounded
// amount of memory and time.
//
// The way of a session:
//
//	client                                   server
//	request  service, params, QPs  ------->  checks, makes and connects its QPs
//	connects its QPs               <-------  accept  QPs
//	run      bytes, ...            ------->  prepares
//	starts                         <-------  ready
//	done     result                <------>  done    result
//	(run, ready, done again, as often as the client wants)
//	closes
//
// Either end may send error instead, with a text for the other's user, and
// close. The end of the connection ends the session.
//
// Reading order: message.go, conn.go, server.go, lobby.go. What the services do with it
// is theirs: see packages session, ping and perf. perftest's own exchange (port
// 18515) is another protocol, package perftest's; perf tells the two apart by
// Server.Greet. A Server lets a peer say what it wants before it gives it a place.
package exchange
