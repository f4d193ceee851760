// Package packetfuzz sends hostile RoCEv2 packets to a host and checks that the host still serves
// an honest peer. It is the work of "gorxe fuzz".
//
// A run is a sequence of cases. A case is a few packets, all made from the seed and the number of
// the case: packets of a class that RoCE stacks are known to have mishandled, or valid packets with
// random errors. Package fuzz/packets makes them. The same seed and number make the same case,
// except for the numbers that the host chooses: its QPN, PSN, keys and path MTU.
//
// Most errors of a stack are behind its first checks. So the fuzzer connects to the host by the
// connection manager, as an rping client, and sends most cases to the queue pair of that
// connection, with the PSN that it expects. Before some cases it lets the host READ, and answers
// that READ only by the packets of the case. Or it connects as a perftest client, and then also
// knows memory that it may access.
//
// All frames have the sender's own address, except where an error of a case is in the address.
//
// Reading order:
//   - config.go: Config and Report
//   - run.go: Run: the cases of a run, one after another
//   - cases.go: the packets of a case
//   - session.go: the connection whose queue pair at the host the cases aim at
//   - tap.go: the port between the device and the interface, which sends the cases' frames
//   - check.go: the honest peer
package packetfuzz
