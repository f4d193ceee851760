// Package roce provides a software RDMA NIC with a verbs API. It speaks standard RoCEv2, so its
// peers can be hardware NICs, the Linux kernel's rxe, or other programs that use this package.
//
// # Devices and objects
//
// [Open] creates a [Device] on a Linux network interface, over AF_XDP or, without privileges, over
// UDP sockets. [New] creates one on any [Port], for example on the in-memory link of package
// loopback, which also works on other operating systems. The objects of a Device follow the rules
// of verbs and have the names of libibverbs:
//
//   - A protection domain ([PD]) groups memory and queue pairs.
//   - A memory region ([MR]) is memory that work requests and peers can access. [MW] and [FastMR]
//     change access rights by work requests.
//   - A queue pair ([QP]) sends and receives. [SendWR] and [RecvWR] are its work requests. An [SRQ]
//     is a receive queue for several QPs.
//   - A completion queue ([CQ]) reports the results of work requests as [WC].
//   - An address handle ([AH]) addresses datagrams.
//
// A program needs to import only this package. The examples show each operation with error
// handling. docs/guide.md is a tutorial, and docs/migrating.md lists the calls of libibverbs and
// librdmacm beside those of this package.
//
// Two packages on top of this one need no verbs: roce/messenger, for messages, calls, and reading
// and writing memory of the peer with contexts; and roce/rsocket, for net.Conn and net.Listener.
// They own the buffers and the completion queue, and release them safely when a connection ends.
//
// # Connections
//
// There are two ways to connect RC and UC queue pairs:
//
//   - [Device.Dial] and [Device.Listen] use the connection manager, as rdma_cm does. The peer may
//     be any program on rdma_cm. [Device.ResolveUD] and [Device.ListenUD] do the same for
//     datagrams. [Device.Serve] accepts connections and releases their objects when they end.
//   - [QP.Connect] takes the peer's [Endpoint], which both sides exchange by other means, such as
//     TCP. [QP.Local] returns the local one.
//
// If both sides are RC queue pairs of this package, they use selective repeat: packets that arrive
// after a lost one are kept, and only missing packets are retransmitted. See [WithSelectiveRepeat],
// [WithCongestionControl] and [QP.Stats].
//
// A UD queue pair needs [QP.Activate] instead. [QP.AttachMulticast] joins an IP multicast group.
//
// For one-sided operations (WRITE, READ, atomics) the peer also needs a [RemoteBuffer], which
// [MR.Remote] returns.
//
// # Traffic classes
//
// A connection has a traffic class from 0, the default, to 7, the most urgent: see
// [PathOptions].Class and [QPConfig].Class. Its packets carry the class as DSCP and, in a VLAN, as
// PCP ([WithClassMap]), in both directions: the side that dials chooses the class, and the other
// side adopts it.
//
// # Progress
//
// Some thread must run the protocol: receive, answer, retransmit. [WithProgress] selects it.
//
//   - [Auto], the default: a goroutine of the Device, which is locked to its OS thread unless the
//     Device is in memory. It spins for a while after the last packet, then sleeps. Peers' requests
//     are served at any time.
//   - [Manual]: the calls of [CQ.Poll], [CQ.Wait] and [Device.Progress]. This gives the lowest
//     latency, because no work passes between threads. A program that stops calling them stops
//     answering, and its peers' retries are exhausted.
//
// A program that polls memory or a CQ in a loop calls [Device.Progress] or [CQ.Poll] in it. With
// Auto progress these yield the processor, so the loop may share it with the Device. With
// [Device.Drive], a goroutine runs the protocol of a Device with Auto progress itself for some
// time.
//
// # Simulated time
//
// In a bubble of testing/synctest, devices on a link of package loopback run in the bubble's time:
// delays are exact, and a test of time-outs takes microseconds. Create the link and the devices in
// the bubble, and close the devices in it:
//
//	func TestTimeout(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			link, err := loopback.NewLink(loopback.Config{
//				Plan: loopback.Plan{Delay: 30 * time.Millisecond},
//			})
//			...
//			dev, err := roce.New(link.Port(0))
//			...
//			defer dev.Close()
//			start := time.Now()
//			conn, err := dev.Dial(ctx, addr, qp, roce.DialOptions{})
//			// time.Since(start) is 60 ms
//		})
//	}
//
// There, [CQ.Poll] and [Device.Progress] sleep for 10 us of the bubble's time if they find nothing
// to do. The file synctest_test.go has complete tests.
//
// With [Expert].Clock the program itself controls the time. With [Expert].Rand, too, and a virtual
// link of package loopback, a run replays from its seeds: every packet has the same bytes at the
// same time. [Expert].Wait, for example that of a loopback.Sim, lets calls such as Dial, Accept and
// [CQ.Wait] block in virtual time.
//
// # Memory
//
// From posting until the completion, the Device owns the memory that the SGEs of a work request
// name. After [CQ.Poll] has returned the completion, plain reads see everything that the Device
// wrote before it.
//
// WRITEs and atomics of a peer cause no completion on this side. A program may poll the memory that
// a peer writes, with [MR.Load8], [MR.Load32] or [MR.Load64]. The Device stores the last aligned
// word of each packet atomically, after all other bytes of the packet, and stores the last packet
// of each WRITE after all packets before it. So a program that loads a new value at the end of a
// WRITE sees all bytes of that WRITE and of earlier ones. Atomics of peers are atomic with respect
// to [MR.Add64], [MR.CompareAndSwap64], [MR.Load64] and [MR.Store64].
//
// A program may change memory that peers READ. The Device loads the last aligned word of each
// packet first, atomically, and then the other bytes. Only aligned words of up to 8 bytes are
// consistent; change them with [MR.Store8], [MR.Store32] or [MR.Store64], which have release
// ordering. Plain writes are possible where readers detect torn data, for example by a checksum.
//
// # Errors
//
// Failed calls return errors that wrap a sentinel of this package, such as [ErrSQFull]; test for it
// with errors.Is. A failed work request completes with a [Status] other than [Success], and on RC
// its QP goes to [StateErr]. [WC.Err] turns a completion into an error that says what to do, and
// errors.Is(err, RemAccessErr) tells the statuses apart. Events that concern no single work request
// come from [Device.Events], and [WithLogger] writes them to a log. When the network interface
// disappears, [Device.Done] is closed, and calls that wait return [ErrGone].
//
// # Concurrency
//
// All methods may be called from any goroutine. PostSend and PostRecv hold a short lock of their
// queue. Creating, changing and closing objects waits for the thread that runs the protocol.
//
// # Reading order
//
// For maintainers:
//
//   - types.go, options.go, errors.go, statuserror.go: addresses, keys, options and errors
//   - workrequest.go, completion.go, attr.go, engine_unsafe.go: work requests, completions and QP
//     attributes, and how they are passed to the engine
//   - device.go, host.go, failure.go: a Device, and its part of the loop (package internal/loop)
//   - memory.go, region.go, window.go: PD, MR, MW and FastMR
//   - alloc.go, alloc_linux.go, alloc_unsafe.go, alloc_other.go: memory for regions, on Linux and
//     on other systems
//   - bufferpool.go: BufferPool, buffers of one region
//   - queuepair.go, createqp.go, connect.go, postlock.go: QP, its creation, its connection, and the
//     lock of its posters
//   - cq.go, owncq.go, srq.go, ah.go, await.go: CQ, the CQ of a QP's own, SRQ and AH; waiting for a
//     condition
//   - dial.go, listen.go, acceptqueue.go, request.go, conn.go, datagram.go: connections with the
//     connection manager
//   - gsi.go, pathcache.go: QP1 and the paths of its messages
//   - serve.go: a server's connections
//   - cmid.go, disconnect.go: how the events of package roce/cm reach their waiters, and how Close
//     disconnects
//   - alive.go: keepalives
//   - private.go, features.go: what private data can carry; extensions of RoCEv2
//   - congestion.go, stats.go, report.go: algorithms of congestion control; statistics of a QP; the
//     report about a device for monitoring
//   - class.go, backlog.go: traffic classes, and the limit on what is queued below the engine
//   - gid.go, watch.go, multicast.go: addresses, changes of addresses and neighbors, groups
//   - prefetch.go, huge.go, huge_unsafe.go, layout_unsafe.go: many QPs and regions in caches and
//     the TLB
//   - budget.go, limits.go, rand.go: limits of memory, of all resources, random numbers
//   - inside.go: engine objects for package internal/uverbs
//   - pkey.go: partitions
//   - events.go, log.go, trace.go: asynchronous events, the log, and traces of QPs
//   - port.go, open_linux.go, open_other.go: the kind of port that Open chooses
//   - join.go, join_linux.go: joining and hosting a node service
//   - service.go: a device of a node service
//   - counters.go, countertypes.go, metrics.go, counterhelp.go: counters, and their descriptions
package roce
