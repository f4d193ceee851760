// Package cm is the connection manager of the InfiniBand architecture (IBA chapter 12) with the
// rdma_cm's conventions on top (annex A11), as a pure state machine: it turns MADs that come to QP1
// into events, and commands into MADs to send from there.
//
// It does no I/O and owns no goroutine, lock, clock or random source: time is the parameter now,
// random numbers come from [Config]. One thread owns a [CM]. There are
//
//   - inputs: [CM.HandleMAD], [CM.HandleTimeout];
//   - commands: Listen, Unlisten, Connect, Ready, Accept, Reject, SendMRA, CommEstablished,
//     Disconnect, Abort; for datagrams Resolve and ReplySIDR;
//   - outputs, to poll after either: [CM.PollTransmit], [CM.PollEvent], [CM.NextTimeout].
//
// A connection's name is its local communication ID. It ends with [EventClosed], whatever happened,
// unless the user has not heard of it at all; from then on the CM holds nothing of it that he could
// name.
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
// # Reading order
//
//   - mad.go, codec.go, message.go, sidrmsg.go, ipcm.go, reason.go: the messages. Each is a struct
//     with one description of its fields that serves both directions.
//   - types.go: what users give and get, and every limit; negotiate.go: what to make of it for a QP
//   - state.go: states, what they imply, and the table of what each message does in each
//   - cm.go: inputs and outputs; conn.go: the tables, queues and timers; answer.go: answers without
//     a connection
//   - life.go: how connections begin and end, repetition, TIME-WAIT, stale connections
//   - active.go, passive.go, release.go, sidr.go: commands and messages of each part of the dialogue
//
// # Against hostile peers
//
// A MAD is believed only if it comes from the peer's address and names both communication IDs, which
// are random. Whatever peers do, the CM holds at most Config.MaxConns connections, of them at most
// Config.MaxHalfOpen that peers asked for and that are not established; a listener holds at most its
// backlog of requests. Both are shared by source address, so that one that floods leaves room for the
// others, and when many flood, accepted connections whose peers do not go on make room, as ended ones do whose peers do not say so. Times that a
// peer chooses are used within bounds. What is dropped is counted, and dropping costs no memory.
//
// # Where it goes beyond the architecture, or stays behind
//
//   - The side that sent a REJ remembers it for a while (StateRefused) and repeats it.
//   - After the time of an MRA has passed, the message is repeated as before, as Linux does, instead
//     of giving up.
//   - An MRA is sent by itself when a peer repeats a message that the user has not answered, half a
//     response time-out after it came or later: what comes sooner is the network's duplicate.
//   - A DREP is sent by itself when the user does not Disconnect soon after EventDisconnected.
//   - A stale connection has to have the same address as well as GUID and QPN: otherwise anyone could
//     break others' connections.
//   - There are no alternate paths on RoCE: LAP gets an APR that says so. Redirection, peer-to-peer
//     connects and RD are not supported.
package cm
