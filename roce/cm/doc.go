// Package cm implements the connection manager of the InfiniBand architecture (IBA chapter 12) with
// the conventions of rdma_cm (annex A11). It is a pure state machine: it turns MADs that QP1
// receives into events, and commands into MADs that QP1 sends.
//
// Programs use it by package roce: Device.Dial, Device.Listen and their siblings. There they meet
// its [Request], [Reason], [Features] and [Counters]. This package alone is for programs that send
// and receive MADs themselves, such as tests of other connection managers.
//
// # Use
//
// The package does no I/O and has no goroutine, lock, clock or random source. Time is the parameter
// now; random numbers come from [Config]. One goroutine at a time may use a [CM]. Its methods are
//
//   - inputs: [CM.HandleMAD], [CM.HandleTimeout];
//   - commands: Listen, Unlisten, Connect, Ready, Accept, Reject, SendMRA, CommEstablished,
//     Disconnect and Abort, and for datagrams Resolve and ReplySIDR;
//   - outputs, which the caller polls after each input or command: [CM.PollTransmit],
//     [CM.PollEvent], [CM.NextTimeout].
//
// The user of a CM names a connection by its local communication ID. The last event of a connection
// is [EventClosed]; after it the ID is invalid. A connection that ends before its first event is
// polled causes no event.
//
// The course of a connection, with the events and commands of both sides:
//
//	active                                   passive
//	Connect             -- REQ -->           EventConnectRequest
//	                                         (QP to RTR) Accept
//	EventConnectResponse  <-- REP --
//	(QP to RTS) Ready   -- RTU -->           EventEstablished (QP to RTS)
//	...
//	Disconnect          -- DREQ -->          EventDisconnected, Disconnect
//	EventDisconnected   <-- DREP --
//	EventClosed, after TIME-WAIT             EventClosed, after TIME-WAIT
//
// # Hostile peers
//
// The CM accepts a MAD for a connection only if it comes from the peer's address and names both
// communication IDs, which are random. The CM holds at most Config.MaxConns connections. At most
// Config.MaxHalfOpen of them were requested by peers and are not established, and a listener has at
// most its backlog of unanswered requests. Both limits are shared fairly among the prefixes of
// source addresses (IPv4 /32, IPv6 /64), so one host cannot use them up. When the limits are
// reached by many prefixes, new requests replace the oldest accepted connections whose peers do not
// proceed; connections that have ended are replaced, too. Times that a peer chooses are bounded.
// Dropped MADs are counted and use no memory.
//
// Config.Rate limits the MADs that belong to no connection, per prefix and in total, so that a
// flood of requests does not take the time of the data path. Config.Peers and ListenParams.Peers
// restrict who may send requests.
//
// The source address of a request may be forged. Until the peer has shown that it receives our
// messages, by sending our communication ID or data, the CM sends it at most three MADs per request
// received, and ends an accepted connection after 15 s.
//
// # Differences from the architecture
//
//   - The side that sent a REJ keeps it for a while (StateRefused) and sends it again for
//     duplicates.
//   - When the time of an MRA has passed, the CM retransmits its message, as Linux does, instead of
//     giving up.
//   - The CM sends an MRA by itself when a peer retransmits a message that the user has not
//     answered yet, unless it comes within half a response timeout: then the network has duplicated
//     it.
//   - The CM sends a DREP by itself if the user does not call Disconnect soon after
//     EventDisconnected.
//   - A stale connection is recognized by its address as well as by GUID and QPN, and it is not
//     ended at once: any host could forge a message that ends connections of others. The user gets
//     EventSuspect instead, checks the peer's QP, and calls Disconnect if it does not answer. The
//     new request is refused, as the architecture demands.
//   - RoCE has no alternate paths: a LAP is answered by an APR that says so. Redirection,
//     peer-to-peer connections and RD are not supported.
//
// # Reading order
//
// For maintainers:
//
//   - mad.go, codec.go, message.go, sidrmsg.go, ipcm.go, reason.go: the messages
//   - types.go: parameters, events and all limits
//   - features.go: extensions of RoCEv2, and the trailer by which two sides agree on them
//   - negotiate.go: attributes of the QP of a connection
//   - state.go: the states, and the table of what each message does in each state
//   - cm.go: inputs and outputs
//   - conn.go, answer.go: the tables, lists and timers; answers that need no connection
//   - life.go: creation, retransmission, TIME-WAIT and stale connections
//   - active.go, passive.go, release.go, sidr.go: the commands and the handlers of messages
//   - counters.go: what the CM counts, and how much it holds
package cm
