// Package rsocket provides stream sockets over RDMA: [Conn] is a net.Conn, [Listener] a
// net.Listener. They speak the protocol of librdmacm's rsockets, so that a peer may be a program
// that uses rsocket(7), for example with the preloaded library librspreload.
//
// A client:
//
//	c, err := rsocket.Dial(ctx, dev, "10.0.0.1:7471", rsocket.Config{})
//
// A server:
//
//	l, err := rsocket.Listen(dev, ":7471", rsocket.Config{})
//	c, err := l.Accept()
//
// Everything that works with net.Conn works with these: net/http, gRPC, crypto/tls. [Dialer] has
// the DialContext that http.Transport needs. The examples show it.
//
// # Copies
//
// [Conn.Write] copies the data into memory of the connection, from which the device sends it.
// [Conn.Read] copies it out of the memory that the peer writes into. [Conn.ReadFrom] and
// [Conn.WriteTo], which io.Copy uses, avoid these copies: they read and write that memory itself.
//
// [Conn.Map] opens memory of the program to [Conn.WriteAt] of the peer (riomap and riowrite).
//
// # Progress
//
// A Conn has no goroutine. Calls that wait process what has arrived, for each other, too. The
// device receives data at any time, up to [Config].ReadBuffer. With roce.Manual, the calls that
// wait also run the device; with roce.Auto, its own goroutine does.
//
// In a bubble of testing/synctest, connections run in the bubble's time. Devices with Expert.Clock
// are not supported.
//
// # Security
//
// As with TCP, nothing is encrypted or authenticated: run crypto/tls over a Conn, and restrict
// peers with [Config].Peers or roce.WithPeers. Each connection has its own protection domain. Its
// peer can only WRITE, and only into the receive buffer of this connection, and memory of
// [Conn.Map]. A peer that breaks the protocol loses its connection.
//
// # Reading order
//
// For maintainers:
//
//   - config.go, errors.go: options, Addr, errors
//   - endpoint.go: the verbs objects of a connection
//   - dial.go, listen.go: how connections are established
//   - conn.go: Conn, and how it ends
//   - wait.go: calls that wait, and the processing of completions
//   - deadline.go: deadlines
//   - read.go, write.go: the stream
//   - collect.go: how much is sent in one WRITE
//   - maps.go: memory that a side opens to the other
//
// Package core, below this one, is the protocol.
package rsocket
