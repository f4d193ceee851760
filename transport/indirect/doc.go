// Package indirect moves data by RDMA without waiting for the peer's memory to be ready: the dynamic method of Li, Shi, Wang and He
// (Journal of UESTC 47(5), 2018), on verbs. A transfer whose request is refused, or goes unanswered, is sent at once into a buffer that the peer has
// reserved, and moved to its destination there once that has been registered.
//
// # For programs
//
// Both ends make an Endpoint on a device (New). One listens (Endpoint.Listen, Listener.Accept), the other dials (Endpoint.Dial); peers
// that meet by other means use Endpoint.Prepare and Conn.Join. Either end then begins transfers: Conn.Write and Conn.Read block, Conn.Post
// does not, and its events come from Endpoint.Poll or Wait. Who serves transfers has a Host, which says what an address means and
// whether the memory there is ready; Space is one over a single memory region.
//
// An Endpoint has no thread: Poll, Wait, Serve, Write and Read turn its crank, in whatever goroutine calls them. An end that only serves
// runs Serve.
//
// It makes no difference to the program how a transfer goes. Acked says that the request was taken, really or by the transport's own
// word; Sent, that a Write's source may be reused; Done with StatusOK, that every byte is in its place. Counters tell which way the data went.
//
// # On the wire
//
// Requests, answers and releases are datagrams between two UD QPs (package core has their format), which may be lost. Data is RDMA WRITEs on an RC QP, so
// its retransmission, with go-back-N upon the first gap, is the NIC's: eight messages of Config.Segment bytes are in flight at most; the
// window in packets is the device's (roce.Expert.MaxWindow). Messages into the indirect buffer carry immediate data: transfer, slot, number. All of it is plain
// RoCEv2, so that a host with nothing but libibverbs can be either end; the parameters are exchanged in the private data of the
// connection manager's messages (Params).
//
// # The indirect buffer
//
// Config.IndirectBuffer bytes are reserved. Each connection is granted slots of MaxTransfer bytes when it is made, a memory region of its own, whose
// key dies with the connection; what is left when the buffer has been given away is fewer slots, or none: transfers of that connection wait for their
// answers. A slot belongs to the initiator while it is free, and to one transfer from its first byte until the responder has
// released it. An initiator without a free slot keeps its data, and keeps asking: nothing is lost, nothing overwritten. What
// happens when registration never succeeds, or the initiator dies with data parked, is written in package core.
//
// # Reading order
//
// core: the protocol; config.go, host.go, params.go: what programs say; endpoint.go, conn.go: the objects; transfer.go: what they do;
// drive.go: how completions and actions meet.
package indirect
