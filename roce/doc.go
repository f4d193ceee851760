// Package roce is an RDMA NIC in software: verbs in Go, as standard RoCEv2 packets, on an ordinary Ethernet
// interface (Open, over AF_XDP) or on any driver.Port (New), an in-memory link for example.
//
// # The objects
//
// A Device has protection domains (PD), memory regions (MR, FastMR) and windows (MW) in them, completion queues (CQ),
// shared receive queues (SRQ) and queue pairs (QP): the verbs' objects with the verbs' rules. Names are those of libibverbs: PostSend,
// PostRecv, CQ.Poll, statuses by their ibv_wc_status names.
//
// Two ends exchange an Endpoint (QP.Local) and, for one-sided operations, a RemoteBuffer (MR.Remote) by any means, TCP
// or a file, and each calls QP.Connect. The Examples show every operation on the in-memory link: ExampleQP_write,
// ExampleQP_sendRecv, ExampleQP_read, ExampleQP_atomics, ExampleQP_datagram.
//
// Programs on the RDMA world's connection manager, rdma_cm, are met by Device.Dial and Device.Listen (their Examples), for
// datagrams by Device.ResolveUD and Device.ListenUD. UD QPs attach to IP multicast groups with QP.AttachMulticast.
//
// # Who turns the crank
//
// The protocol below is a pure state machine; a Device drives it in one of two ways.
//
//   - Auto progress (the default): a goroutine locked to its OS thread receives, answers and retransmits. It
//     spins (Expert.Spin) after the last packet, then sleeps in the kernel. Peers' one-sided operations are served
//     without the program's doing.
//   - Manual progress (WithProgress(Manual)): CQ.Poll, CQ.Wait and Device.Progress do that work in the thread that calls them.
//     There is no hand-over between threads, which makes it the faster way to poll; but a device that nobody polls answers
//     nobody, and its peers' retries run out.
//
// With Expert.Clock the caller owns the time as well: a simulation replays from a seed.
//
// # Memory
//
// From PostSend or PostRecv to the completion, the memory that an SGE names belongs to the NIC. A completion orders
// memory: what the NIC wrote before it can be read plainly after CQ.Poll returned it.
//
// Peers' WRITEs and atomics need no completion here. A program that polls memory which a peer writes has to use the
// accessors MR.Load8 and MR.Load64: of each packet of a WRITE, the last aligned word is published atomically after
// all its other bytes, and packets land in order, so who sees a flag at the WRITE's end sees the data before it. 8-byte atomics of peers
// hold against MR.Add64, MR.CompareAndSwap64, MR.Load64 and MR.Store64. MR.Close returns when no packet can touch the
// memory any more.
//
// # Concurrency
//
// All methods may be called from any goroutine. Posting takes a small lock of the queue; nothing on the data path
// waits for the control path. Creating, changing and closing objects costs a round trip to the device's thread.
//
// # Reading order
//
//   - types.go, options.go, errors.go: the vocabulary
//   - device.go: a Device's life; memory.go, window.go, queuepair.go, connect.go, cq.go, srq.go, ah.go: its objects
//   - dial.go, listen.go, conn.go, datagram.go: connections; gsi.go, dialogue.go: QP1, and how the connection manager's events
//     (package cm) reach those who wait; multicast.go
//   - host.go: how the loop (internal/loop), which moves the packets, reaches the device
//   - region.go: methods of MR and FastReg; prefetch.go, budget.go: many QPs and regions: what comes next is fetched ahead, and what the machine does not have is refused
//   - postlock.go: the lock of posters
//   - gid.go, watch.go: addresses, and what happens when they, the link or a neighbour change
//   - events.go, counters.go, rand.go
package roce
