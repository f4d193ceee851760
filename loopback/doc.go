// Package loopback is a network in memory: Ports that exchange Ethernet
// frames inside one process, with faults by a seeded plan, in real or virtual
// time; and wrappers that put the same faults, or a pcap capture, on any Port.
//
// # Reading order
//
//   - plan.go: Plan, what can go wrong, and how the fate of a frame is drawn.
//   - link.go: Link: ports, clock, virtual time.
//   - port.go, receive.go: how a frame goes from Send to Receive, and its
//     buffer back.
//   - ring.go, due.go: the queues in between.
//   - wait.go: Wait, Wake, Close.
//   - network.go: addresses and neighbours (driver.Network).
//   - inject.go, inject_rx.go, lane.go: Inject: a plan on any Port.
//   - tee.go: Tee: a capture on any Port.
//   - wrap.go: how a wrapper keeps the inner Port's other interfaces.
//
// # Real and virtual time
//
// In real time each Port may be owned by a goroutine of its own; frames cross
// in single-producer single-consumer rings and Wait blocks.
//
// In virtual time (Config.Virtual) the whole Link belongs to one goroutine.
// Nothing happens but by its calls: it moves the clock by Link.Advance, finds
// the next arrival by Link.NextEvent, and Wait returns at once. The same seed
// and the same calls give the same frames at the same instants, to the bit;
// Link.TraceHash is a digest of all of it.
//
// # Buffers
//
// A Port sends from buffers of its own, made once; a frame's buffer is lent
// to the receiver and comes back by a second ring when it is released. Each
// direction has a bounded number of frames under way; what exceeds it is
// dropped and counted at the receiver, as by a NIC whose ring is full. Giving
// back a buffer that one does not hold panics: it is a bug in the caller.
package loopback
