// Package indirect moves data by RDMA without waiting for the peer's memory to be ready: the
// dynamic method of Li, Shi, Wang and He (Journal of UESTC 47(5), 2018), on verbs. A transfer whose
// request is refused or not answered is sent at once into a buffer that the peer has reserved. The
// peer moves it to its destination once that is registered.
//
// # Usage
//
// Both sides create an Endpoint on a device (New). One listens (Endpoint.Listen, Listener.Accept),
// the other dials (Endpoint.Dial). Peers that exchange their parameters by other means use
// Endpoint.Prepare and Conn.Join. Both sides may then start transfers: Conn.Write and Conn.Read
// block; Conn.Post does not, and its events come from Endpoint.Poll or Wait. A side that serves
// transfers has a Host, which maps addresses to memory and says whether it is ready. Space is a
// Host over a single memory region.
//
// An Endpoint has no goroutine: Poll, Wait, Serve, Write and Read drive it. A side that only serves
// calls Serve.
//
// A program does not notice how a transfer travels. Acked means that the request was taken, really
// or by the transport's simulation. Sent means that a Write's source may be reused. Done with
// StatusOK means that every byte is at its destination. Counters show which way the data went.
//
// # Wire format
//
// Requests, answers and releases are datagrams between two UD QPs, which may be lost (package core
// has their format). Data is RDMA WRITEs on an RC QP, so the NIC retransmits it. At most eight
// messages of Config.Segment bytes are in flight; roce.Expert.MaxWindow bounds the window in
// packets. Messages into the indirect buffer carry immediate data: transfer, slot and number. All
// of it is plain RoCEv2, so a host with only libibverbs can be either side. The parameters are
// exchanged in the private data of the connection manager's messages (Params).
//
// # Indirect buffer
//
// Config.IndirectBuffer bytes are reserved. Each new connection is granted slots of MaxTransfer
// bytes in a separate memory region, whose key ends with the connection. When the buffer has been
// given away, further connections get fewer slots or none; their transfers wait for their answers.
// A slot belongs to the initiator while it is free, and to one transfer from its first byte until
// the responder has released it. An initiator without a free slot keeps its data and keeps asking.
// Package core describes what happens when registration never succeeds or the initiator dies with
// data parked.
//
// # Reading order
//
// For maintainers:
//
//   - config.go, host.go, params.go: what programs configure.
//   - endpoint.go, conn.go, listen.go: the objects.
//   - transfer.go: what they do.
//   - drive.go: completions in, actions out.
//
// The protocol itself is in package core.
package indirect
