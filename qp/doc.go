// Package qp is gorxe's engine: queue pairs that run the reliable (RC), unreliable (UC) and
// datagram (UD) transports of the InfiniBand architecture, as a pure state machine.
//
// Programs use it by package roce. This package alone is for programs that run the engine
// themselves: simulators, tests with any sequence of losses, and devices on unusual hosts.
//
// # Use
//
// The engine does no I/O and has no goroutines, locks, clocks or random source. The caller passes
// the time to each method and a random source in [Config]. Received packets go to
// [Engine.HandlePacket], and [Engine.PollTransmit] writes packets to the caller's transmit buffers.
// A test can therefore replay any sequence of losses and reorderings from a seed.
//
// There are four kinds of methods:
//
//   - inputs from the owner: HandlePacket, HandleNext, HandleEnd, HandleTimeout, HandleDoorbells;
//   - commands from the user: PostSend, PostRecv, Modify, CreateQP, DestroyQP;
//   - outputs to the owner: PollTransmit, PollRun, TransmitEnd, PollEvent, NextTimeout, and Poll of
//     a CQ;
//   - getters.
//
// An engine and everything in it belong to one goroutine at a time, the owner. Others may only call
// methods whose comments say so: PostSend and PostRecv (rings with one producer, and a lock-free
// list of doorbells), CQ.Poll and CQ.Arm (a ring with one consumer), and the getters QPN, Type and
// State.
//
// # Selective repeat
//
// With [Attr.Selective] the responder of an RC QP holds packets that arrive after a gap and reports
// them, and the requester retransmits only what is missing; see docs/selective-repeat.md. Without
// it, and on UC, the QP works as the architecture specifies.
//
// # Traffic classes
//
// QPs have a traffic class from 0 to 7, and may have a rate; see [ClassConfig], [Attr] and
// docs/traffic-classes.md. While all QPs are in class 0, without rates and FIFO order, the engine
// has one run queue. Otherwise each class has a queue, and the highest class that can send is
// served. The owner must then bound what it queues below the engine: [Engine.Bounded],
// [Engine.SetBacklogged].
//
// # PSNs
//
// A PSN on the wire has 24 bits. Requester and responder count packets in 64 bits, which never
// wrap. The low 24 bits of a count are the PSN. Counts can be compared as integers. [extend]
// converts a PSN from the wire to a count.
//
// # Reading order
//
// For maintainers:
//
//   - types.go, ah.go, ah_unsafe.go, counters.go: work requests, completions, statuses, states,
//     counters
//   - ring.go, sq.go, rq.go, cq.go: the queues between user and engine
//   - qp.go, qpn.go, path.go, footprint_unsafe.go: a QP's fields in the order of their use; its
//     number; paths that QPs share; the memory that a QP needs
//   - engine.go, doorbell.go, table.go, list.go: inputs and outputs, the run queue and events;
//     doorbells; the QP table; lists of QPs
//   - class.go, class_queue.go, class_sched.go, bucket.go: traffic classes: configuration; queues;
//     which QP sends next; token buckets
//   - tuning.go: thresholds and delays that affect only performance
//   - timer.go: the timer wheel
//   - prefetch.go: what is prefetched for the QPs that are next (see package sched)
//   - modify.go: the states RESET, INIT, RTR, RTS, SQD, SQE and ERR as a table
//   - requester.go, middle.go, deferred.go, runs.go: from a work request to packets; middle
//     packets; payloads that the caller copies; runs of packets
//   - completer.go: handling of responses
//   - retry.go, silence.go: go-back-N, timeouts, RNR waits; probes of peers that answer nothing
//   - selective.go, selective_ack.go, selective_lost.go, selective_send.go, selective_read.go:
//     selective repeat at the requester: which packets are held or lost; acknowledgments; when a
//     missing packet is lost; retransmission; READ responses
//   - window.go, congestion.go, pacing.go, dcqcn.go: the limit of packets in flight; the algorithms
//     that adapt it to the path; when the next packet may be sent
//   - arrivals.go: received middle packets
//   - responder.go, execute.go: checks and execution of request packets
//   - reorder.go, reorder_fill.go, reorder_place.go, reorder_pool.go: selective repeat at the
//     responder: what it holds after a gap, how it executes that, what it can put in memory at
//     once, the memory for the rest
//   - respond.go, history.go, ack.go: responses; answers to duplicates; when ACKs are sent
//   - cnp.go, pathstats.go, counts.go, rtts.go, meter.go: ECN marks and congestion notification
//     packets; statistics of a QP
//   - local.go: BIND_MW, LOCAL_INV and REG_MR
//   - flush.go: FLUSH and ATOMIC WRITE, both sides
//   - outside.go: queues and memory of other processes
//   - alive.go: keepalives, and why a QP failed
//   - unreliable.go, multicast.go: UC and UD; multicast groups
package qp
