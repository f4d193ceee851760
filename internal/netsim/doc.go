// Package netsim simulates a network that several senders share, in virtual time: hosts with
// gorxe devices, and optionally with TCP flows, send to one receiver through a switch whose output
// has a limited bandwidth and queue. [Run] runs one [Scenario]. Frames are real: the device under
// test is the same code that runs on a network interface. A result depends on the protocol and the
// seed, but not on the machine.
//
// # Reading order
//
//   - scenario.go: Scenario and Sender, what is simulated
//   - run.go: the clock, and the life of a scenario
//   - sender.go: QPs that always have operations outstanding
//   - tcp.go, tcp_sender.go, tcp_receiver.go, cubic.go: a model of TCP CUBIC
//   - result.go: Result, the rates of all flows
package netsim
