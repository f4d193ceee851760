// Package loopback is a network in memory. A [Link] connects two or more ports inside one process
// and injects faults according to a [Plan], in real or virtual time. [Inject] and [Tee] wrap any
// driver.Port: the first injects the same faults, the second captures frames to a pcap file.
//
// Two devices on a link in memory, for a program or a test without a network:
//
//	link, err := loopback.NewLink(loopback.Config{
//		Seed: 1, Plan: loopback.Plan{Loss: 0.01, Delay: 10 * time.Microsecond},
//	})
//	...
//	a, err := roce.New(link.Port(0))
//	b, err := roce.New(link.Port(1))
//
// Their addresses are 10.77.0.1, 10.77.0.2 and so on: see Port.Addrs. Link.SetPlan changes the
// faults while devices run, for example to cut a cable, and Link.SetFilter decides on single
// frames.
//
// # Real and virtual time
//
// In real time each Port may have its own goroutine as owner. Frames cross in single-producer
// single-consumer rings, and Wait blocks. In a bubble of testing/synctest, "real" time is the time
// of the bubble: a delayed frame arrives exactly when it is due.
//
// In virtual time (Config.Virtual) the whole Link belongs to one goroutine, and nothing happens
// between its calls. It moves the clock with Link.Advance, finds the next arrival with
// Link.NextEvent, and Wait returns at once. The same seed and the same calls give the same frames
// at the same times; Link.TraceHash is a digest of all of them. [Drive] does all this for devices
// until a condition holds, and a [Sim] runs programs that block. Link.SetBottleneck adds a queue
// that several senders share, with tail drop and ECN marks.
//
// Link.SetBandwidth limits what a Port sends, in real and virtual time, and Port.Backlog reports
// what waits for it.
//
// # Buffers
//
// A Port sends from its own buffers, which are allocated once. The receiver borrows the buffer of a
// frame and returns it through a second ring when it releases the frame. The number of frames in
// flight per direction is limited. A frame that exceeds the limit is dropped and counted at the
// receiver, as by a NIC with a full ring. Returning a buffer that the caller does not hold is a bug
// and panics.
//
// # Reading order
//
// For maintainers:
//
//   - plan.go: Plan, the possible faults, and how the fate of a frame is drawn
//   - link.go: Link, its clock and virtual time
//   - port.go, receive.go: the path of a frame from Send to Receive, and of its buffer back
//   - output.go: the bandwidth of a Port or direction, and its backlog
//   - ring.go, due.go: the queues in between
//   - bottleneck.go: Bottleneck, a queue that all frames to a Port share
//   - wait.go: Wait, Wake, Close
//   - network.go: addresses, neighbors and multicast groups
//   - inject.go, inject_rx.go, lane.go: Inject, faults on any port
//   - tee.go: Tee, a capture on any port
//   - sim.go, drive.go: Sim, programs that block in virtual time; Drive, without such programs
//   - wrap.go: how a wrapper offers the inner port's other interfaces
package loopback
