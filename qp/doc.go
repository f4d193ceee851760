// Package qp is gorxe's engine: queue pairs that speak the reliable (RC), unreliable (UC) and
// datagram (UD) transports of the InfiniBand architecture, as a pure state machine.
//
// The engine does no I/O. It has no goroutine, lock, clock, socket or random source of its own:
// time is the parameter now, random numbers come from [Config], packets come in through
// [Engine.HandlePacket] and leave through [Engine.PollTransmit], which writes straight into the
// caller's transmit buffer. A million packets of loss and reordering therefore replay from one
// seed.
//
// There are four kinds of method:
//
//   - inputs, which the owner feeds: HandlePacket, HandleTimeout, HandleDoorbells;
//   - commands, which a user gives: PostSend, PostRecv, Modify, CreateQP, DestroyQP;
//   - outputs, which the owner polls: PollTransmit, PollEvent, NextTimeout, and the CQ's Poll;
//   - getters.
//
// One thread owns an engine and everything in it. Only the methods that say so may be called from
// another goroutine: they are PostSend, PostRecv (single producer rings, then a doorbell on a
// lock-free list), CQ.Poll and CQ.Arm (single consumer ring) and the getters QPN, Type and State.
//
// # Reading order
//
//   - types.go, ah.go: work requests, completions, statuses, states
//   - ring.go, sq.go, rq.go, cq.go: the queues between user and engine
//   - qp.go: a QP's fields in the order of their use; path.go: paths that QPs share
//   - engine.go: QP table, doorbells, run queue, events; timer.go: the timer wheel; prefetch.go and package sched:
//     whose turn comes, and how what it needs is fetched ahead
//   - modify.go: the state machine of RESET, INIT, RTR, RTS, SQD, SQE and ERR as a table
//   - requester.go: a work request becomes packets; completer.go: what answers do to it;
//     retry.go: go-back-N, time-outs, RNR waits; window.go: how much may be in flight; deferred.go: payloads that the owner copies
//   - responder.go: a request packet is checked and executed; respond.go: its answers are built
//   - local.go: BIND_MW, LOCAL_INV and REG_MR; flush.go: FLUSH and ATOMIC WRITE, both sides
//   - unreliable.go: UC and UD
//
// # PSNs
//
// On the wire a PSN has 24 bits. Inside, both halves of a QP count packets in 64 bits that never
// wrap and whose low 24 bits are the PSN, so that ordinary comparison is right everywhere; the one
// place that turns a wire PSN into a count is [extend].
package qp
